"""A fit as a JSON file: numbers, names and labels, no code and no data."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mlmcgrad.mixed.design import Coding
from mlmcgrad.mixed.families import Family
from mlmcgrad.mixed.families import family as family_of
from mlmcgrad.mixed.parameters import Layout
from mlmcgrad.mixed.result import Factor, Fit
from mlmcgrad.mixed.search import Certificate
from mlmcgrad.runs.atomic import write_atomically

_FORMAT = "mlmcgrad mixed model 1"
_PLAIN = ("problem", "rows", "iterations", "seconds", "seed")
_LISTS = ("names", "notes", "log_likelihood")
_TENSORS = ("theta", "parameter_covariance", "monte_carlo_covariance")


def save(fit: Fit, path: str | Path) -> None:
    """Write a fit, all of it or nothing; a file that is there is replaced."""
    found = fit.certificate
    content: dict[str, Any] = {
        "format": _FORMAT,
        "family": fit.family.name,
        "link": getattr(getattr(fit.family, "link", None), "name", None),
        "coding": fit.coding.state(),
        "blocks": list(fit.layout.blocks),
        "dispersion": fit.layout.dispersion,
        "certificate": None
        if found is None
        else {
            "displacement": found.displacement.tolist(),
            "error": found.error.tolist(),
            "p_value": found.p_value,
            "passes": found.passes,
        },
        "factors": [
            {
                "name": f.name,
                "groups": list(f.groups),
                "terms": list(f.terms),
                "mean": f.mean.tolist(),
                "sd": f.sd.tolist(),
            }
            for f in fit.factors
        ],
    }
    content |= {name: getattr(fit, name) for name in _PLAIN}
    content |= {name: list(getattr(fit, name)) for name in _LISTS}
    content |= {name: getattr(fit, name).tolist() for name in _TENSORS}
    text = json.dumps(_strict(content), ensure_ascii=False, indent=1, allow_nan=False)
    write_atomically(Path(path), text.encode())


def load(path: str | Path, family: Family | None = None) -> Fit:
    """Read a fit that `Fit.save` has written.

    Args:
        path: the file.
        family: the object, for a family that is not one of the library.
    """
    path = Path(path)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise ValueError(f"its format is not {_FORMAT!r}")
        return _fit(content, family)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(
            f"path {str(path)!r} is not a fit that Fit.save has written, or is damaged: {reason}"
        ) from None


def _fit(content: dict[str, Any], family: Family | None) -> Fit:
    certificate = content["certificate"]
    if certificate is not None:
        certificate = Certificate(
            _tensor(certificate["displacement"]),
            _tensor(certificate["error"]),
            _number(certificate["p_value"]),
            int(certificate["passes"]),
        )
    factors = tuple(
        Factor(
            str(f["name"]),
            tuple(f["groups"]),
            tuple(f["terms"]),
            _tensor(f["mean"]),
            _tensor(f["sd"]),
        )
        for f in content["factors"]
    )
    names = tuple(content["names"])
    layout = Layout(len(names), tuple(content["blocks"]), bool(content["dispersion"]))
    value, error = content["log_likelihood"]
    found = Fit(
        coding=Coding.from_state(content["coding"]),
        family=family_of(content["family"], content["link"]) if family is None else family,
        factors=factors,
        names=names,
        layout=layout,
        certificate=certificate,
        log_likelihood=(_number(value), _number(error)),
        notes=tuple(content["notes"]),
        problem=content["problem"],
        rows=int(content["rows"]),
        iterations=int(content["iterations"]),
        seconds=float(content["seconds"]),
        seed=int(content["seed"]),
        theta=_tensor(content["theta"]),
        parameter_covariance=_tensor(content["parameter_covariance"]),
        monte_carlo_covariance=_tensor(content["monte_carlo_covariance"]),
    )
    if found.theta.shape != (layout.size,) or found.parameter_covariance.shape[0] != layout.size:
        raise ValueError(f"theta has {len(found.theta)} entries, not {layout.size}")
    return found


def _strict(value: Any) -> Any:
    """The same with null for a number that is not there: JSON has no NaN."""
    if isinstance(value, dict):
        return {key: _strict(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_strict(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _tensor(values: Any) -> Tensor:
    def numbers(value: Any) -> Any:
        return [numbers(each) for each in value] if isinstance(value, list) else _number(value)

    return torch.tensor(numbers(values), dtype=torch.float64)
