"""Functions that want a random key: dropout, augmentation, a sampled latent."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import lru_cache
from typing import Any

KEY = "key"
"""The name of the argument by which a function asks for one."""


@lru_cache
def takes_key(function: Callable[..., Any]) -> bool:
    """Whether a function has an argument ``key``. A pooled constraint has one where its statistics have."""
    function = getattr(function, "statistics", function)
    try:
        return KEY in inspect.signature(function).parameters
    except (TypeError, ValueError):  # a built-in without a signature
        return False


def call(function: Callable[..., Any], params: Any, batch: Any, key: Any) -> Any:
    """A user's function on a batch, with the key where it takes one."""
    return function(params, batch, key=key) if takes_key(function) else function(params, batch)
