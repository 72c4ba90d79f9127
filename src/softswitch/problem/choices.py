"""Accepted values of settings that are strings. This module imports nothing, so that help texts appear at once."""

ANSWERS = ("auto", "average", "last", "best")
"""Values of ``iterate`` and ``answer``, the iterate to return: chosen automatically, the mean of the feasible ones, the
last, or the best by the clients' reports."""
CRITERIA = ("softmax", "max", "mean", "pooled")
"""Values of ``Method.criterion``, the aggregate of the clients' constraints that the switch compares with λ."""
ALPHA_SCALES = ("raw", "spread", "change")
"""Values of ``SoftmaxSGM.alpha_scale``, the unit of the softmax sharpness α."""
LOSSES = ("squared", "absolute", "quantile")
"""Values of ``loss``, the regression loss of a table's model."""

BINARY, MULTICLASS, NUMBER = ("binary", "multiclass", "number")
"""Types of a table's label: two classes, more classes, or a number (regression)."""

SCORES = ("auto", "linear", "boosting")
"""Values of ``score``, the model whose outputs are compared with a threshold: a mean of the two others, a linear model,
and gradient boosting."""
THRESHOLDS = ("shared", "per-client")
"""Values of ``thresholds``: whether all clients share a decision threshold."""
