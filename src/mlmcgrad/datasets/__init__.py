"""Pictures to train on: `digits` ships with scikit-learn, `cifar10` is fetched and cached.

Labels are dropped: nothing here is supervised.
"""

from mlmcgrad.datasets.cifar10 import DataUnavailableError, cifar10
from mlmcgrad.datasets.dataset import Dataset
from mlmcgrad.datasets.digits import digits

__all__ = ["DataUnavailableError", "Dataset", "cifar10", "digits"]
