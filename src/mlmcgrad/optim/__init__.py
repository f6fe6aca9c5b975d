"""Optimizers whose convergence the paper proves for multilevel gradients.

All are `torch.optim.Optimizer`s for θ_n = θ_{n−1} − γ_n A_{n−1} Ĥ_n, n = 1, 2, …; they differ in
the matrix A, which is I for `SGD`. The step size `lr` is a number, a schedule of n
(`mlmcgrad.schedules`), or driven by a torch LR scheduler.

`RandomIterate` follows an optimizer and keeps the iterate θ_R of the theorems.
"""

from mlmcgrad.optim._base import AdaptiveOptimizer
from mlmcgrad.optim.adagrad import Adagrad
from mlmcgrad.optim.amsgrad import AMSGrad
from mlmcgrad.optim.full_adagrad import FullAdagrad
from mlmcgrad.optim.random_iterate import RandomIterate
from mlmcgrad.optim.rmsprop import RMSProp
from mlmcgrad.optim.sgd import SGD
from mlmcgrad.optim.stochastic_newton import StochasticNewton

__all__ = [
    "SGD",
    "AMSGrad",
    "Adagrad",
    "AdaptiveOptimizer",
    "FullAdagrad",
    "RMSProp",
    "RandomIterate",
    "StochasticNewton",
]
