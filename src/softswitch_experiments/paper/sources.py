"""Digest of the source files that an experiment depends on: its own module and everything of ours that it imports."""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

PACKAGES = ("softswitch", "softswitch_experiments")
HERE = "softswitch_experiments.paper"


def digest(run: Callable[..., Any]) -> str:
    """Return a digest that changes with any source file behind an experiment's function."""
    state = hashlib.sha256()
    for name in sorted(import_closure(defining_modules(run))):
        state.update(name.encode() + b"\0" + _source(name) + b"\0")
    return state.hexdigest()[:16]


def defining_modules(run: Callable[..., Any]) -> set[str]:
    """Return the modules that define a function and, for a ``partial``, its arguments."""
    if isinstance(run, partial):
        values = (*run.args, *run.keywords.values())
        return defining_modules(run.func).union(*(_modules_of_value(value) for value in values))
    return {run.__module__}


def import_closure(modules: Iterable[str]) -> set[str]:
    """Return these modules and all modules of both packages that they import, except the list of experiments."""
    visited: set[str] = set()
    pending = set(modules)
    while pending:
        name = pending.pop()
        visited.add(name)
        pending |= _imports(name) - visited
    return visited


def _modules_of_value(value: Any) -> set[str]:
    if callable(value) and hasattr(value, "__module__"):
        return defining_modules(value)
    loaded = [(name, module) for name, module in list(sys.modules.items()) if name.startswith(f"{HERE}.")]
    return {name for name, module in loaded if any(assigned is value for assigned in _assigned_values(name, module))}


def _assigned_values(name: str, module: ModuleType) -> Iterator[Any]:
    for node in _tree(name).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in targets:
            if isinstance(target, ast.Name):
                yield getattr(module, target.id, None)


@cache
def _imports(name: str) -> set[str]:
    modules: set[str] = set()
    for node in ast.walk(_tree(name)):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names if alias.name.split(".")[0] in PACKAGES}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in PACKAGES:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            submodules = {one for one in names if _file(one)}
            modules |= submodules
            if submodules != names:
                modules.add(str(node.module))
    return modules - {*PACKAGES, HERE}


@cache
def _file(name: str) -> Path | None:
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):
        return None
    return Path(spec.origin) if spec is not None and spec.origin else None


@cache
def _source(name: str) -> bytes:
    file = _file(name)
    return file.read_bytes() if file is not None else b""


@cache
def _tree(name: str) -> ast.Module:
    return ast.parse(_source(name))
