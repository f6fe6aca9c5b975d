"""Train an importance weighted autoencoder on 8×8 digits, with and without the multilevel gradient.

IWAE's gradient is biased: five draws of the encoder stand in for the posterior. MLMC-IWAE runs an
i-SIR chain of random length on these draws, so its bias is that of √n steps, at a cost of log n.
"""

import torch

import mlmcgrad as mg
from mlmcgrad import iwae
from mlmcgrad.datasets import digits


def train(method: iwae.objective.Method, iterations: int, seed: int = 1) -> tuple[float, float]:
    """Test NLL after training, and decoder evaluations per picture and iteration."""
    data = digits()
    pictures, test = (torch.from_numpy(data.as_floats(x)) for x in (data.train, data.test))
    rng = torch.Generator().manual_seed(seed)
    model = iwae.LatentModel(iwae.DIGITS, iwae.Bernoulli(), rng)
    objective = iwae.Objective(model, method=method, truncation=mg.schedules.power(1.0, 0.5))
    optimizer = mg.optim.AMSGrad(model.parameters(), lr=mg.schedules.power(0.01, -0.5))
    spent = 0
    for n in range(1, iterations + 1):
        batch = pictures[torch.randint(len(pictures), (50,), generator=rng)]
        optimizer.zero_grad()
        spent += objective.backward(batch, n=n, generator=rng).estimate.evaluations
        optimizer.step()
    nll = iwae.negative_log_likelihood(model, test, torch.Generator().manual_seed(0))
    return nll.value, spent / (50 * iterations)


def main(iterations: int = 3000) -> None:
    """Print a line for each method."""
    print("method   test NLL   decoder evaluations per picture and iteration")
    for method in ("iwae", "mlmc", "br"):
        nll, cost = train(method, iterations)
        print(f"{method:6s} {nll:10.2f} {cost:12.1f}")


if __name__ == "__main__":
    main()
