"""Startup: imports on first use, and the settings of JAX's compilation cache. Imports no heavy library."""

from __future__ import annotations

import ast
import inspect
import os
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

CACHE_BYTES = 2**30  # size of the cache; the least recently used programs are deleted first
MIN_COMPILE_SECONDS = 0.1  # programs that compile faster are not stored


def lazy_attributes(module: str) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__all__``, ``__getattr__`` and ``__dir__`` of a module that imports its public names on first use.

    They are the names that its source imports as ``from origin import name as name``, in a block for type checkers.
    """
    statements = ast.walk(ast.parse(inspect.getsource(sys.modules[module])))
    imports = [statement for statement in statements if isinstance(statement, ast.ImportFrom)]
    origins = {name.asname: str(line.module) for line in imports for name in line.names if name.asname}

    def get_attribute(name: str) -> Any:
        if name not in origins:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        value = getattr(import_module(origins[name]), name)
        setattr(sys.modules[module], name, value)
        return value

    return list(origins), get_attribute, lambda: sorted(origins)


def enable_compilation_cache() -> None:
    """Store compiled programs in the user's cache folder, if JAX's environment variables do not set another one."""
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    try:
        folder = cache_folder()
    except RuntimeError:  # the user has no home folder
        return
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder)
    os.environ.setdefault("JAX_COMPILATION_CACHE_MAX_SIZE", str(CACHE_BYTES))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", str(MIN_COMPILE_SECONDS))


def cache_folder() -> Path:
    """Return the folder of compiled programs, in ``$XDG_CACHE_HOME`` or ``~/.cache``; RuntimeError without a home."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "softswitch" / "programs"
