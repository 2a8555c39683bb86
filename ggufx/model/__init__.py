"""A file seen as a model: its weights in memory, layers, experts, hyperparameters."""
