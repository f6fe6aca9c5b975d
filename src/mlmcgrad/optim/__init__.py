"""Adaptive optimizers whose convergence the paper proves for multilevel gradients.

All are `torch.optim.Optimizer`s for θ_n = θ_{n−1} − γ_n A_{n−1} Ĥ_n, n = 1, 2, …; they differ in
the matrix A. Plain stochastic gradient, A = I, is `torch.optim.SGD`. Any of them takes `lr` as a
float, as a schedule of n (`mlmcgrad.schedules`), or driven by a torch LR scheduler.

`RandomIterate` follows an optimizer and keeps the iterate θ_R of the theorems.
"""

from mlmcgrad.optim.adagrad import Adagrad
from mlmcgrad.optim.amsgrad import AMSGrad
from mlmcgrad.optim.full_adagrad import FullAdagrad
from mlmcgrad.optim.random_iterate import RandomIterate
from mlmcgrad.optim.rmsprop import RMSProp
from mlmcgrad.optim.stochastic_newton import StochasticNewton

__all__ = ["AMSGrad", "Adagrad", "FullAdagrad", "RMSProp", "RandomIterate", "StochasticNewton"]
