"""Choose, compare and certify gradient estimators on your problem.

| function | answers |
|---|---|
| `plan` | which estimator, how long a chain, for a budget? |
| `compare` | which of several gradients is best, at which budget? |
| `certify` | what is the true gradient here, and is the sampler right? |
| `level_test` | do the levels telescope, how fast do they decay? |
| `to_arviz`, `to_dict` | the chains, for R̂, effective sample sizes and trace plots in ArviZ |
| `describe` | an estimator as Python code |
"""

from mlmcgrad.diagnostics._certify import Certificate, certify
from mlmcgrad.diagnostics._checks import Check
from mlmcgrad.diagnostics._compare import Comparison, Contender, Reference, compare
from mlmcgrad.diagnostics._export import to_arviz, to_dict
from mlmcgrad.diagnostics._levels import LevelRow, LevelTest, level_test
from mlmcgrad.diagnostics._plan import Plan, Predicted, Truncations, describe, plan

__all__ = [
    "Certificate",
    "Check",
    "Comparison",
    "Contender",
    "LevelRow",
    "LevelTest",
    "Plan",
    "Predicted",
    "Reference",
    "Truncations",
    "certify",
    "compare",
    "describe",
    "level_test",
    "plan",
    "to_arviz",
    "to_dict",
]
