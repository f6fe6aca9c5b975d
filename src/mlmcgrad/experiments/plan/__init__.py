"""Which gradient is best for the model of a training: `mlmcgrad plan`."""
