"""Functions that take a random key, for dropout, augmentation or sampling."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import lru_cache
from typing import Any

KEY = "key"
"""Name of the argument that receives the random key."""


@lru_cache
def takes_key(function: Callable[..., Any]) -> bool:
    """Return whether a function has an argument ``key`` after params and batch, without a default or with None.

    An argument of that name with another default, in the function or by ``functools.partial``, does not count.
    """
    try:
        arguments = inspect.signature(function, follow_wrapped=False).parameters
    except (TypeError, ValueError):  # a built-in without a signature
        return False
    if KEY not in arguments or KEY in list(arguments)[:2]:
        return False
    key = arguments[KEY]
    accepts_keyword = key.kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return accepts_keyword and (key.default is inspect.Parameter.empty or key.default is None)


def call_with_key(function: Callable[..., Any], params: Any, batch: Any, key: Any) -> Any:
    """Call a user's function on a batch, with the key if it takes one."""
    return function(params, batch, key=key) if takes_key(function) else function(params, batch)
