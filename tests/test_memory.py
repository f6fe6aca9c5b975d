"""Peak memory does not grow with the chain length; measured as the resident set of a child."""

import subprocess
import sys

import pytest

BEGIN = """
import resource
import torch, mlmcgrad as mg
torch.set_num_threads(1)
theta = torch.zeros(1000, requires_grad=True)
"""
MALA = """
kernel = mg.kernels.MALA(lambda x: -0.5 * x.square().sum(1), step_size=0.02)
x0, context = torch.zeros(8, 1000), ()
"""
ISIR = """
kernel = mg.kernels.ISIR(
    lambda z, y: (z[:, :2] * y).sum(1),
    lambda rows, y, generator: torch.randn(rows, 1000, generator=generator),
    5,
    rao_blackwell={rao_blackwell},
    chunk=512,
)
mg.kernels.isir._PART_DRAWS = 2**10  # of 4 MB
x0, context = None, (torch.ones(2, 2),)
"""
IMPORTANCE = """
kernel = mg.kernels.Importance(
    lambda z, y: (z[:, :2] * y).sum(1),
    lambda rows, y, generator: torch.randn(rows, 1000, generator=generator),
    5,
    chunk=512,
)
mg.kernels.importance._PART_DRAWS = 2**10
x0, context = None, (torch.ones(2, 2),)
"""
END = """
def loss(x, *_):
    return 0.5 * (x - theta).square().sum(1)
for length in (2**8, 2**13):  # the peak of a process never falls: the short chains come first
    gradient = mg.MarkovGradient(kernel, loss, mg.Average(length), chunk=512)
    estimate = gradient.backward(x0, *context, generator=torch.Generator().manual_seed(0))
    assert estimate.loss_evaluations > 5 * length, estimate.acceptance
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.parametrize(
    "kernel", [MALA, ISIR.format(rao_blackwell=False), ISIR.format(rao_blackwell=True), IMPORTANCE]
)
def test_peak_memory_does_not_depend_on_the_length(kernel: str) -> None:
    """All states of the long chains would take 0.26 GB; torch itself takes about 0.3 GB."""
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + kernel + END], capture_output=True, text=True, check=True
    )
    short, long = map(int, done.stdout.split())
    assert long <= 1.25 * short
