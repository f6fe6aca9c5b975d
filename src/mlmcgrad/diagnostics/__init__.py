"""Is it right on your problem, and how long must the chain be? Plans, bias, levels, chains."""

from mlmcgrad.diagnostics.certificate import Bias, Certificate, Check
from mlmcgrad.diagnostics.certifying import certify
from mlmcgrad.diagnostics.chains import Health, Weights, diagnose, effective_sample_size, weights
from mlmcgrad.diagnostics.choice import Choice, describe
from mlmcgrad.diagnostics.comparing import compare
from mlmcgrad.diagnostics.comparison import Comparison, Contender
from mlmcgrad.diagnostics.export import to_arviz, to_dict
from mlmcgrad.diagnostics.ladder import Accuracy, accuracy
from mlmcgrad.diagnostics.levels import LevelTest, level_test
from mlmcgrad.diagnostics.per_chain import chain_gradients
from mlmcgrad.diagnostics.planning import plan
from mlmcgrad.diagnostics.reference import Reference, long_run
from mlmcgrad.diagnostics.slopes import Fit, fit_line, fit_power

__all__ = [
    "Accuracy",
    "Bias",
    "Certificate",
    "Check",
    "Choice",
    "Comparison",
    "Contender",
    "Fit",
    "Health",
    "LevelTest",
    "Reference",
    "Weights",
    "accuracy",
    "certify",
    "chain_gradients",
    "compare",
    "describe",
    "diagnose",
    "effective_sample_size",
    "fit_line",
    "fit_power",
    "level_test",
    "long_run",
    "plan",
    "to_arviz",
    "to_dict",
    "weights",
]
