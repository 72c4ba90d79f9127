"""Lazy imports: public names that are imported on first use."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


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
