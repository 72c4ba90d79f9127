"""Accepted values of some settings. This module imports nothing, so that help texts appear at once."""

ANSWERS = ("auto", "average", "last", "best")
"""Which iterate to return: chosen during training, the mean of the feasible ones, the last, or the best by reports."""
CRITERIA = ("softmax", "max", "mean", "pooled")
"""What the switch compares with its threshold."""
ALPHA_SCALES = ("raw", "spread", "change")
"""What α is measured in."""
LOSSES = ("squared", "absolute", "quantile")
"""What a prediction of a number costs."""
ENGINES = ("compiled", "grid")
"""What moves data through the rounds."""

BINARY, MULTICLASS, NUMBER = ("binary", "multiclass", "number")
"""Types of the label of a table."""
