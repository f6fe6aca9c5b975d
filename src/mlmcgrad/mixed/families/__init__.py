"""Families of responses, by name or as objects.

| name | response | links | dispersion |
|---|---|---|---|
| bernoulli | 0 or 1 | logit, probit, cloglog | |
| binomial | successes among trials | logit, probit, cloglog | |
| poisson | counts | log | |
| negative_binomial | counts, var = μ + μ²/size | log | size |
| gaussian | real numbers | identity | sigma |
| gamma | positive numbers, var = μ²/shape | log | shape |

An object of your own with the members of `Family` is a family too.
"""

from __future__ import annotations

from mlmcgrad.mixed.families.base import Family, Weighted
from mlmcgrad.mixed.families.binomial import Bernoulli, Binomial, Cloglog, Link, Logit, Probit
from mlmcgrad.mixed.families.continuous import Gamma, Gaussian
from mlmcgrad.mixed.families.counts import NegativeBinomial, Poisson

_PROBABILITY: dict[str, Link] = {"logit": Logit(), "probit": Probit(), "cloglog": Cloglog()}
_FAMILIES: dict[str, dict[str, Family]] = {
    "bernoulli": {name: Bernoulli(link) for name, link in _PROBABILITY.items()},
    "binomial": {name: Binomial(link) for name, link in _PROBABILITY.items()},
    "poisson": {"log": Poisson()},
    "negative_binomial": {"log": NegativeBinomial()},
    "gaussian": {"identity": Gaussian()},
    "gamma": {"log": Gamma()},
}


def family(which: str | Family, link: str | None = None) -> Family:
    """Return the family with a name.

    Args:
        which: the name; an object with the members of `Family` is returned as it is.
        link: the name of the link; by default the first one of the family.

    Example:
        >>> family("bernoulli", "probit")
        Bernoulli(link=Probit(name='probit'), name='bernoulli', dispersion=None)
    """
    if isinstance(which, Family) and not isinstance(which, type):
        if link is not None:
            raise ValueError(f"link must be None for a family that is an object, got {link!r}")
        return which
    if not isinstance(which, str) or which not in _FAMILIES:
        raise ValueError(
            f"family must be one of {', '.join(_FAMILIES)}, or an object with the members of "
            f"mlmcgrad.mixed.Family, got {which!r}"
        )
    links = _FAMILIES[which]
    name = next(iter(links)) if link is None else link
    if name not in links:
        raise ValueError(
            f"link of the family {which} must be one of {', '.join(links)}, got {link!r}"
        )
    return links[name]


__all__ = [
    "Bernoulli",
    "Binomial",
    "Cloglog",
    "Family",
    "Gamma",
    "Gaussian",
    "Link",
    "Logit",
    "NegativeBinomial",
    "Poisson",
    "Probit",
    "Weighted",
    "family",
]
