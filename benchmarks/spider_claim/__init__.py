"""The SPIDER penalty against switching subgradients, on one owner's finite sums."""
