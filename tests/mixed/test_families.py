from typing import Any

import pytest
import torch
from scipy.integrate import quad

from mlmcgrad.mixed.families import (
    Bernoulli,
    Binomial,
    Cloglog,
    Gamma,
    Gaussian,
    Logit,
    NegativeBinomial,
    Poisson,
    Probit,
    family,
)

ONE = torch.tensor(1.0, dtype=torch.float64)


def _column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_names() -> None:
    assert family("bernoulli") == Bernoulli(Logit())
    assert family("bernoulli", "probit") == Bernoulli(Probit())
    assert family("binomial", "cloglog") == Binomial(Cloglog())
    assert family("poisson", "log") == Poisson()
    assert family("negative_binomial").dispersion == "size"
    assert family("gaussian", "identity").dispersion == "sigma"
    assert family("gamma").dispersion == "shape"
    mine = Bernoulli(Cloglog())
    assert family(mine) is mine


@pytest.mark.parametrize(
    ("which", "link", "message"),
    [
        ("normal", None, "family must be one of bernoulli, .* gamma, .*got 'normal'"),
        ("poisson", "logit", "link of the family poisson must be one of log, got 'logit'"),
        (Bernoulli, None, "or an object with the members of .*Family, got <class"),
        (3, None, "family must be one of .* got 3"),
        (Poisson(), "log", "link must be None for a family that is an object, got 'log'"),
    ],
)
def test_unknown_names(which: Any, link: str | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        family(which, link)


def test_probabilities_sum_to_one() -> None:
    for which, link, trials, most in (
        ("bernoulli", "logit", 1, 1),
        ("binomial", "probit", 6, 6),
        ("binomial", "cloglog", 11, 11),
        ("poisson", "log", 1, 200),
        ("negative_binomial", "log", 1, 20_000),
    ):
        y = torch.arange(most + 1).double()
        for log_dispersion in (-0.5, 1.0):
            found = family(which, link).slopes(
                ONE * 1.2, y, torch.full_like(y, trials), ONE * log_dispersion
            )[0]
            assert float(found.exp().sum()) == pytest.approx(1.0, abs=1e-12)


def test_densities_integrate_to_one() -> None:
    for law, low, high in ((Gaussian(), -30.0, 30.0), (Gamma(), 0.0, 120.0)):
        for log_dispersion in (0.3, 1.0):

            def density(y: float, law: Any = law, log: float = log_dispersion) -> float:
                return float(law.slopes(ONE * 1.2, ONE * y, ONE, ONE * log)[0].exp())

            assert quad(density, low, high, limit=400)[0] == pytest.approx(1.0, abs=1e-7)


def test_means() -> None:
    eta, none = ONE * 0.5, ONE * 0.0
    assert float(Bernoulli().mean(eta, none)) == pytest.approx(0.6224593312018546)
    assert float(Bernoulli(Probit()).mean(eta, none)) == pytest.approx(0.6914624612740131)
    assert float(Binomial(Cloglog()).mean(eta, none)) == pytest.approx(0.8077043544555239)
    for law in (Poisson(), NegativeBinomial(), Gamma()):
        assert float(law.mean(eta, none)) == pytest.approx(1.6487212707001282)
    assert float(Gaussian().mean(eta, none)) == 0.5


@pytest.mark.parametrize(
    ("law", "y", "trials", "message"),
    [
        (Bernoulli(), (0, 1, 2), (1, 1, 1), "bernoulli response must be 0 or 1, got 2.0 in row 2"),
        (Bernoulli(), (0, 1, 0.5), (1, 1, 1), "got 0.5 in row 2"),
        (Bernoulli(), (0, 1), (1, 3), "has no trials, got 3.0 of them; use the family 'binomial'"),
        (Binomial(), (0, 5), (3, 4), "from 0 to the number of trials.*got 5.0 in row 1"),
        (Binomial(), (-1, 5), (3, 5), "got -1.0 in row 0"),
        (Binomial(), (1, 1.5), (3, 5), "got 1.5 in row 1"),
        (Binomial(), (1, 0), (3, 0), "trials must be whole numbers ≥ 1, got 0.0"),
        (Binomial(), (1, 0), (3, 2.5), "trials must be whole numbers ≥ 1, got 2.5"),
        (Poisson(), (3, -1), (1, 1), "poisson response must be a whole number ≥ 0, got -1.0"),
        (Poisson(), (3, 0), (1, 2), "poisson response has no trials"),
        (NegativeBinomial(), (3, 1.5), (1, 1), "negative_binomial response must .* got 1.5"),
        (Gaussian(), (3, float("inf")), (1, 1), "gaussian response must be finite, got inf"),
        (Gaussian(), (3, 3), (1, 1), "gaussian response must vary, got 3.0 in all rows"),
        (Gamma(), (3, 0), (1, 1), "gamma response must be positive, got 0.0 in row 1"),
        (Gamma(), (3, 3), (1, 1), "gamma response must vary"),
    ],
)
def test_impossible_responses(
    law: Any, y: tuple[float, ...], trials: tuple[float, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        law.check(_column(*y), _column(*trials))
