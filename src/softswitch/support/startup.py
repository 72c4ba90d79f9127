"""Startup: imports on first use, and the settings of JAX's compilation cache. Imports no heavy library."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

CACHE_BYTES = 2**30  # the least recently used programs are deleted first
MIN_COMPILE_SECONDS = 0.1  # programs that compile faster are not stored


def lazy_attributes(module: str, modules: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the ``__getattr__`` and ``__dir__`` of a module that imports its names on first use.

    Args:
        module: Name of the module that exports the names.
        modules: For each public name the module that defines it, relative to the top-level package of ``module``.
    """
    package = module.split(".")[0]

    def get_attribute(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{modules[name]}"), name)
        setattr(sys.modules[module], name, value)
        return value

    return get_attribute, lambda: sorted(modules)


def enable_compilation_cache() -> None:
    """Store compiled programs in the user's cache folder; call before JAX is imported.

    JAX_ENABLE_COMPILATION_CACHE=false disables the cache. JAX_COMPILATION_CACHE_DIR sets another folder.
    """
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
    """Return the folder of compiled programs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "softswitch" / "programs"
