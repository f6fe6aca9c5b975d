"""Optimizers whose convergence the paper proves for multilevel gradients.

All are `torch.optim.Optimizer`s for θ_n = θ_{n−1} − γ_n A_{n−1} Ĥ_n, n = 1, 2, …; they differ in
the matrix A, which is I for `SGD`. The step size `lr` is a number, a schedule of n
(`mlmcgrad.schedules`), or driven by a torch LR scheduler.

Parameters in float16 or bfloat16 have a float32 state, and a step computes in float32.

`Averaged` follows an optimizer and averages its iterates; `RandomIterate` keeps the iterate θ_R of
the theorems.
"""

from mlmcgrad.optim._base import AdaptiveOptimizer
from mlmcgrad.optim.dense import FullAdagrad, StochasticNewton
from mlmcgrad.optim.diagonal import SGD, Adagrad, AMSGrad, RMSProp
from mlmcgrad.optim.iterates import Averaged, RandomIterate

__all__ = [
    "SGD",
    "AMSGrad",
    "Adagrad",
    "AdaptiveOptimizer",
    "Averaged",
    "FullAdagrad",
    "RMSProp",
    "RandomIterate",
    "StochasticNewton",
]
