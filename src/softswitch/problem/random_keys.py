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
    """Whether a function asks for a random key: by an argument ``key`` after params and batch, without a value or None.

    An argument of that name with a value of its own, in the function or by ``functools.partial``, is not asking.
    """
    try:
        arguments = inspect.signature(function, follow_wrapped=False).parameters
    except (TypeError, ValueError):  # a built-in without a signature
        return False
    if KEY not in arguments or KEY in list(arguments)[:2]:
        return False
    key = arguments[KEY]
    by_name = key.kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return by_name and (key.default is inspect.Parameter.empty or key.default is None)


def call(function: Callable[..., Any], params: Any, batch: Any, key: Any) -> Any:
    """A user's function on a batch, with the key where it takes one."""
    return function(params, batch, key=key) if takes_key(function) else function(params, batch)
