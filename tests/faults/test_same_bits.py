"""The same numbers to the last bit from every process."""

import io
import subprocess
import sys
from contextlib import redirect_stdout

from tests.faults import times

SCRIPT = """
import torch, mlmcgrad as mg
from mlmcgrad.paper.experiments.accuracy import accuracy
torch.set_num_threads(1)
for problem in (mg.problems.finite_chain(), mg.problems.skewed()):
    kernel = problem.kernel() if hasattr(problem, "kernel") else mg.kernels.MALA(
        problem.log_density, 0.3
    )
    gradient = mg.MarkovGradient(
        kernel, problem.loss, mg.MLMC(8), parameters=problem.parameters
    )
    result = accuracy(
        gradient, problem.start(8), reference=problem, ladder=[2, 4, 8], replicates=200,
        generator=torch.Generator().manual_seed(0),
    )
    print(result.rows, result.fit("second_moment"))
"""


def test_accuracy_is_the_same_in_every_process() -> None:
    """It differed in its last digits, by a least-squares solution, in every second process."""
    processes = [
        subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, text=True)
        for _ in range(times(1, 7))
    ]
    with redirect_stdout(io.StringIO()) as here:
        exec(SCRIPT, {})
    printed = {process.communicate()[0] for process in processes}
    assert all(process.returncode == 0 for process in processes)
    assert printed == {here.getvalue()}
