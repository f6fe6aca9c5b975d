"""Images to train on: `digits` ships with scikit-learn, `cifar10` is downloaded and cached.

Labels are dropped: nothing here is supervised.
"""

from mlmcgrad.datasets.cifar10_dataset import DataUnavailableError, cifar10
from mlmcgrad.datasets.dataset import Dataset
from mlmcgrad.datasets.digits_dataset import digits

__all__ = ["DataUnavailableError", "Dataset", "cifar10", "digits"]
