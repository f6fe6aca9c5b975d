"""`lme4::glmer` in an R that stays alive: packages and data are loaded before anything is timed."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_PROGRAM = r"""
suppressMessages({library(lme4); library(mlmRev)})
cbpp$period <- paste0("p", cbpp$period)  # in a CSV file the numbers 1 to 4 are numbers
Contraception$livch <- paste0("l", Contraception$livch)
export <- function(frame, path) { write.csv(frame, path, row.names = FALSE); cat("\n") }
timed <- function(formula, data, points) {
  gc()
  start <- proc.time()
  model <- suppressMessages(suppressWarnings(glmer(formula, data, binomial, nAGQ = points)))
  spent <- sum((proc.time() - start)[1:2])
  cat(format(c(spent, fixef(model), getME(model, "theta")), digits = 17), "\n")
}
cat(as.character(packageVersion("lme4")), "\n")
input <- file("stdin", "r")
while (length(line <- readLines(input, n = 1))) { eval(parse(text = line)); flush(stdout()) }
"""


class Fitted(NamedTuple):
    """What glmer found, and how long it took."""

    seconds: float  # of the processor
    theta: NDArray[np.float64]  # fixed effects, then the lower triangle of Λ


class Glmer(AbstractContextManager["Glmer"]):
    """R with lme4 and mlmRev.

    Attributes:
        version: of lme4.
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            ["Rscript", "--vanilla", "-e", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
        self.version = self._line()

    def __exit__(self, *_: object) -> None:
        """End R."""
        self._process.communicate()

    def read(self, name: str, path: Path) -> None:
        """Read a CSV file as a data frame of this name."""
        self._ask(f'{name} <- read.csv("{path}"); cat("\\n")')

    def export(self, name: str, path: Path) -> None:
        """Write a data frame to a CSV file."""
        self._ask(f'export({name}, "{path}")')

    def fit(self, formula: str, data: str, points: int) -> Fitted:
        """One call of glmer with so many points of quadrature; 1 is Laplace's approximation."""
        seconds, *theta = map(float, self._ask(f"timed({formula}, {data}, {points})").split())
        return Fitted(seconds, np.array(theta))

    def _ask(self, command: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        return self._line()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"R ended with the status {self._process.wait()}; see above")
        return line.strip()


def available() -> bool:
    """Whether R is there, with lme4 and mlmRev."""
    if shutil.which("Rscript") is None:
        return False
    packages = 'q(status = !all(sapply(c("lme4", "mlmRev"), requireNamespace, quietly = TRUE)))'
    return subprocess.run(["Rscript", "-e", packages], capture_output=True).returncode == 0
