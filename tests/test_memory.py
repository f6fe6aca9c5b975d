"""Peak memory does not grow with the chain length; measured as the resident set of a child."""

import subprocess
import sys

SCRIPT = """
import resource, sys
import torch, mlmcgrad as mg
torch.set_num_threads(1)
theta = torch.zeros(1000, requires_grad=True)
kernel = mg.kernels.MALA(lambda x: -0.5 * x.square().sum(1), step_size=0.02)
gradient = mg.MarkovGradient(
    kernel, lambda x: 0.5 * (x - theta).square().sum(1), mg.Average(int(sys.argv[1])), chunk=512
)
estimate = gradient.backward(
    torch.zeros(8, 1000), n=1, generator=torch.Generator().manual_seed(0)
)
assert estimate.loss_evaluations > 5 * int(sys.argv[1]), estimate.acceptance
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def _peak(length: int) -> int:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(length)], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


def test_peak_memory_does_not_depend_on_the_length() -> None:
    """All states of the long chains would take 0.5 GB; torch itself takes about 0.3 GB."""
    short, long = _peak(2**8), _peak(2**14)
    assert long <= 1.25 * short
