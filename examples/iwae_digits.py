"""Train importance weighted autoencoders on 8×8 digits by four gradients, over several seeds.

IWAE's gradient is biased: five draws of the encoder stand in for the posterior. BR-IWAE averages an
i-SIR chain of √n steps that starts from these draws; MLMC-IWAE has the same bias at a cost of
log n, and less variance for its cost with all levels of a chain and Rao-Blackwellised selections.
Takes about a quarter of an hour.
"""

import statistics
from typing import Any

import torch

import mlmcgrad as mg
from mlmcgrad import iwae
from mlmcgrad.paper.datasets import digits

METHODS: dict[str, dict[str, Any]] = {
    "IWAE": {"method": "iwae"},
    "MLMC-IWAE": {"method": "mlmc"},
    "MLMC-IWAE, all levels": {"method": "mlmc", "rao_blackwell": True, "multilevel": "sum"},
    "BR-IWAE": {"method": "br"},
}


def train(options: dict[str, Any], iterations: int, seed: int) -> tuple[float, float]:
    """Test NLL after training, and decoder evaluations per picture and iteration."""
    data = digits()
    pictures, test = (torch.from_numpy(data.as_floats(x)) for x in (data.train, data.test))
    rng = torch.Generator().manual_seed(seed)
    model = iwae.LatentModel(iwae.DIGITS, iwae.BernoulliLikelihood(), rng)
    length = mg.schedules.power(1.0, 0.5)
    objective = iwae.Objective(model, truncation=length, chunk=1024, **options)
    optimizer = mg.optim.AMSGrad(model.parameters(), lr=mg.schedules.power(0.01, -0.5))
    spent = 0
    for n in range(1, iterations + 1):
        batch = pictures[torch.randint(len(pictures), (50,), generator=rng)]
        optimizer.zero_grad()
        spent += objective.backward(batch, n=n, generator=rng).estimate.evaluations
        optimizer.step()
    nll = iwae.negative_log_likelihood(model, test, generator=torch.Generator().manual_seed(0))
    return nll.value, spent / (50 * iterations)


def main(iterations: int = 3000, seeds: int = 5) -> None:
    """Print a line for each method: mean and standard deviation over the seeds."""
    print(f"{'method':26s} test NLL of each seed, mean ± sd, decoder evaluations per picture")
    for name, options in METHODS.items():
        runs = [train(options, iterations, seed) for seed in range(1, seeds + 1)]
        nll, cost = [r[0] for r in runs], statistics.mean(r[1] for r in runs)
        spread = statistics.stdev(nll) if seeds > 1 else 0.0
        each = " ".join(f"{value:.2f}" for value in nll)
        print(f"{name:26s} {each}   {statistics.mean(nll):.3f} ± {spread:.3f}   {cost:.1f}")


if __name__ == "__main__":
    torch.set_num_threads(1)  # more only wait for one another on networks this small
    main()
