"""Importance weighted autoencoders: networks, likelihoods, the three objectives, evaluation.

Training in a run folder is `mlmcgrad.paper.training`.
"""

from mlmcgrad.iwae.evaluate import negative_log_likelihood, squared_gradient_norm
from mlmcgrad.iwae.networks import (
    CIFAR10,
    DIGITS,
    BernoulliLikelihood,
    DiscretizedLogisticLikelihood,
    LatentModel,
    Sizes,
)
from mlmcgrad.iwae.objective import Objective, ObjectiveInfo

__all__ = [
    "CIFAR10",
    "DIGITS",
    "BernoulliLikelihood",
    "DiscretizedLogisticLikelihood",
    "LatentModel",
    "Objective",
    "ObjectiveInfo",
    "Sizes",
    "negative_log_likelihood",
    "squared_gradient_norm",
]
