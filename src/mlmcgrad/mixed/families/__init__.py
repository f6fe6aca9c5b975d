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

from mlmcgrad.mixed.families.base import Family
from mlmcgrad.mixed.families.binomial import Bernoulli, Binomial
from mlmcgrad.mixed.families.gamma import Gamma
from mlmcgrad.mixed.families.gaussian import Gaussian
from mlmcgrad.mixed.families.links import Cloglog, Link, Logit, Probit
from mlmcgrad.mixed.families.negative_binomial import NegativeBinomial
from mlmcgrad.mixed.families.poisson import Poisson

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
    """The family with a name.

    Args:
        which: the name, or an object with the members of `Family`, which is returned.
        link: name of the link; by default the first of the family.

    Example:
        >>> family("bernoulli", "probit")
        Bernoulli(link=Probit(name='probit'), name='bernoulli', dispersion=None)
    """
    if not isinstance(which, str):
        if not isinstance(which, Family) or isinstance(which, type):
            raise ValueError(
                f"family must be one of {', '.join(_FAMILIES)}, or an object with the members of "
                f"mlmcgrad.mixed.families.Family, got {which!r}"
            )
        if link is not None:
            raise ValueError(f"link must be None for a family that is an object, got {link!r}")
        return which
    links = _FAMILIES.get(which)
    if links is None:
        raise ValueError(f"family must be one of {', '.join(_FAMILIES)}, got {which!r}")
    found = links.get(next(iter(links)) if link is None else link)
    if found is None:
        raise ValueError(
            f"link of the family {which} must be one of {', '.join(links)}, got {link!r}"
        )
    return found


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
    "family",
]
