"""Importance weighted autoencoders: networks, likelihoods, the three objectives, evaluation.

Training in a run folder is `mlmcgrad.training`.
"""

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
