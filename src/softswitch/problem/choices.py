"""The words that some settings may be. Nothing is imported here: help texts need them at once."""

ANSWERS = ("auto", "average", "last", "best")
"""Which iterate is wanted: whatever is best, the mean of the feasible ones, the last, or the best by its reports."""
CRITERIA = ("softmax", "max", "mean", "pooled")
"""What the switch compares with its threshold."""
ALPHA_SCALES = ("raw", "spread", "change")
"""What α is measured in."""
LOSSES = ("squared", "absolute", "quantile")
"""What a prediction of a number costs."""
ENGINES = ("compiled", "grid", "ray")
"""What moves data through the rounds."""

BINARY, MULTICLASS, NUMBER = LABEL_TYPES = ("binary", "multiclass", "number")
"""Types of the label of a table."""
