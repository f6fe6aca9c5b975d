"""Predictions and simulated responses of a fitted model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd
import torch
from torch import Tensor

from mlmcgrad.mixed.columns import Data
from mlmcgrad.mixed.design import Design

if TYPE_CHECKING:
    from mlmcgrad.mixed.result import Fit


def predict(fit: Fit, new: Data | None, *, linear: bool, random: bool) -> pd.Series:
    """The mean response of rows, or their linear predictor; see `Fit.predict`."""
    design = _design(fit, new)
    eta = design.offset + design.fixed @ fit.layout.beta(fit.theta)
    if random:
        for effects, factor in zip(design.effects, fit.factors, strict=True):
            eta = eta + _of_rows(effects.columns, effects.index, factor.mean)
    values = eta if linear else fit.family.mean(eta, fit.layout.log_dispersion(fit.theta))
    return pd.Series(values.numpy(), name="linear predictor" if linear else design.response)


def simulate(fit: Fit, new: Data | None, *, seed: int) -> pd.Series:
    """Responses with new random effects for all groups; see `Fit.simulate`."""
    design, generator = _design(fit, new), torch.Generator().manual_seed(seed)
    eta = design.offset + design.fixed @ fit.layout.beta(fit.theta)
    factor, begin = fit.layout.factor(fit.theta), 0
    for effects in design.effects:
        part = slice(begin, begin + len(effects.terms))
        # A group that the fit has not seen, of index −1, is one more group.
        shape = (len(effects.groups) + 1, len(effects.terms))
        u = torch.randn(shape, dtype=torch.float64, generator=generator)
        index = torch.where(effects.index < 0, len(effects.groups), effects.index)
        eta = eta + _of_rows(effects.columns, index, u @ factor[part, part].T)
        begin = part.stop
    log_dispersion = fit.layout.log_dispersion(fit.theta)
    y = fit.family.sample(eta, design.trials, log_dispersion, generator)
    return pd.Series(y.numpy(), name=design.response)


def _design(fit: Fit, new: Data | None) -> Design:
    if new is not None:
        return fit.coding.design(new)
    if fit.live is None:
        raise ValueError("new: a fit that was loaded has no data of its own; pass the rows")
    return fit.live.design


def _of_rows(columns: Tensor, index: Tensor, effects: Tensor) -> Tensor:
    """What the random effects of its group, (groups, terms), add to each row; 0 for index −1."""
    known = (index >= 0).to(columns.dtype)
    return known * (columns * effects[index.clamp(min=0)]).sum(1)
