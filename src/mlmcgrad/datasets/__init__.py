"""Images to train on: digits, MNIST, CIFAR-10, and pictures of yours.

`digits` ships with scikit-learn, `mnist` and `cifar10` are downloaded and cached, `pictures` reads
a file. Labels are dropped: nothing here is supervised.
"""

from mlmcgrad.datasets.binarisation import binarised
from mlmcgrad.datasets.cifar10_dataset import cifar10
from mlmcgrad.datasets.dataset import Dataset
from mlmcgrad.datasets.digits_dataset import digits
from mlmcgrad.datasets.mnist_dataset import mnist
from mlmcgrad.datasets.pictures_dataset import pictures
from mlmcgrad.datasets.sources import DataUnavailableError

__all__ = ["DataUnavailableError", "Dataset", "binarised", "cifar10", "digits", "mnist", "pictures"]
