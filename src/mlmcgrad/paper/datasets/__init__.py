"""Images to train on: digits, MNIST, CIFAR-10, and your own pictures.

`digits` ships with scikit-learn, `mnist` and `cifar10` are downloaded and cached, `pictures` reads
a file. Labels are dropped: nothing here is supervised.
"""

from mlmcgrad.paper.datasets.dataset import Dataset, binarised, digits, pictures
from mlmcgrad.paper.datasets.download import DataUnavailableError, cifar10, mnist

__all__ = ["DataUnavailableError", "Dataset", "binarised", "cifar10", "digits", "mnist", "pictures"]
