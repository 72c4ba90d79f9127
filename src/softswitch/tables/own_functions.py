"""Functions of a user's own, by the name that a file of settings gives them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from softswitch.support import checks


def function_named(where: str, setting: str, folder: Path) -> Callable[..., Any]:
    """The function that 'module:function' names; the module may lie in the given folder."""
    module, colon, name = where.partition(":")
    if not (module and colon and name):
        raise ValueError(f"{setting} must be 'module:function', but is {where!r}")
    sys.path.insert(0, str(folder))
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"{setting} must name a function that can be imported, but {where!r} cannot: {error}"
        ) from error
    finally:
        sys.path.remove(str(folder))
    checks.function(setting, found, "(params, batch) -> number")
    function: Callable[..., Any] = found
    return function
