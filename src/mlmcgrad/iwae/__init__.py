"""Importance weighted autoencoders: networks, the three objectives, evaluation."""

from mlmcgrad.iwae.evaluate import negative_log_likelihood, squared_gradient_norm
from mlmcgrad.iwae.likelihoods import Bernoulli, DiscretizedLogistic
from mlmcgrad.iwae.networks import CIFAR10, DIGITS, LatentModel, Sizes
from mlmcgrad.iwae.objective import Objective, Step

__all__ = [
    "CIFAR10",
    "DIGITS",
    "Bernoulli",
    "DiscretizedLogistic",
    "LatentModel",
    "Objective",
    "Sizes",
    "Step",
    "negative_log_likelihood",
    "squared_gradient_norm",
]
