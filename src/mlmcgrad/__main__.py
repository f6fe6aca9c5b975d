"""`python -m mlmcgrad` is the command `mlmcgrad`."""

import sys

from mlmcgrad.cli import main

if __name__ == "__main__":
    sys.exit(main())
