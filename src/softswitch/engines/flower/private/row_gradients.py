"""Gradients of single rows, added up by clients that compute them one after the other."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from softswitch.engines.flower.wire import Arrays


def clipped_total(gradients: Iterable[Arrays], like: Arrays, clip: float) -> Arrays:
    """The sum of gradients, none longer than ``clip``; one that is not finite counts as 0.

    Args:
        gradients: one a row.
        like: arrays of their shapes.
        clip: the longest that one may be.
    """
    total = {name: np.zeros(value.shape) for name, value in like.items()}
    with np.errstate(all="ignore"):  # a row may give anything
        for gradient in gradients:
            norm = np.sqrt(sum(float(np.square(part, dtype=float).sum()) for part in gradient.values()))
            if np.isfinite(norm):
                scale = min(1.0, clip / norm) if norm > 0 else 1.0
                total = {name: total[name] + scale * gradient[name] for name in total}
    return total
