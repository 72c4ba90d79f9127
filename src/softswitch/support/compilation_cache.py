"""Compiled programs are kept on disk: the second process of the command line need not compile them again."""

from __future__ import annotations

import os
from pathlib import Path

MAX_BYTES = 2**30
"""How much is kept; what was not used for longest goes first."""
MIN_SECONDS = 0.1
"""Seconds of compiling from which a program is kept."""


def enable_compilation_cache() -> None:
    """Tell JAX, which is not imported yet, where to keep programs; what the user has told it stays as it is.

    JAX_ENABLE_COMPILATION_CACHE=false keeps nothing, JAX_COMPILATION_CACHE_DIR names another folder.
    """
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    try:
        where = cache_folder()
    except RuntimeError:  # this user has no home
        return
    settings = {
        "JAX_COMPILATION_CACHE_DIR": str(where),
        "JAX_COMPILATION_CACHE_MAX_SIZE": str(MAX_BYTES),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": str(MIN_SECONDS),
    }
    os.environ |= {name: value for name, value in settings.items() if name not in os.environ}


def cache_folder() -> Path:
    """Where the user's caches are."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "softswitch" / "programs"
