"""Which source files an experiment's outcome rests on: its own module, and all of the package that this imports."""

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
    """A digest of the source files behind an experiment's function: another one once any of them is changed."""
    summed = hashlib.sha256()
    for name in sorted(reached(homes(run))):
        summed.update(name.encode() + b"\0" + _source(name) + b"\0")
    return summed.hexdigest()[:16]


def homes(run: Callable[..., Any]) -> set[str]:
    """The modules in which a function, and what is filled into it, are defined."""
    if isinstance(run, partial):
        return homes(run.func).union(*(_homes_of_value(value) for value in (*run.args, *run.keywords.values())))
    return {run.__module__}


def reached(modules: Iterable[str]) -> set[str]:
    """These modules and all of the package that they import, wherever in their text; not the list of experiments."""
    found: set[str] = set()
    waiting = set(modules)
    while waiting:
        name = waiting.pop()
        found.add(name)
        waiting |= _imported(name) - found
    return found


def _homes_of_value(value: Any) -> set[str]:
    """Modules of the experiments in which a value was given its name."""
    if callable(value) and hasattr(value, "__module__"):
        return homes(value)
    loaded = [(name, module) for name, module in list(sys.modules.items()) if name.startswith(f"{HERE}.")]
    return {name for name, module in loaded if any(given is value for given in _given(name, module))}


def _given(name: str, module: ModuleType) -> Iterator[Any]:
    """The values of the names that a module's own text assigns."""
    for node in _tree(name).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in targets:
            if isinstance(target, ast.Name):
                yield getattr(module, target.id, None)


@cache
def _imported(name: str) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(_tree(name)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.split(".")[0] in PACKAGES}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in PACKAGES:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            known = {one for one in inner if _file(one)}
            found |= known or {str(node.module)}
            if known != inner:
                found.add(str(node.module))
    return found - {*PACKAGES, HERE}


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
