"""Functions that are made anew and yet the same: what was compiled for one of them serves the others.

``optax.cosine_decay_schedule(0.1, 500)`` and ``partial(loss, weight=2.0)`` are new objects with every call. Two such
functions are alike where their code is the same and all that it takes from around it is: numbers and words by their
value, functions and frozen settings by being alike, modules of known libraries, classes and JAX arrays by being the
same object. A function that refers to anything else, a list or an object that may change, say, is like itself only.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import fields, is_dataclass
from functools import partial
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import jax

LIBRARIES = {"builtins", "equinox", "flax", "functools", "itertools", "jax", "math", "numpy", "operator", "optax"}
"""Whose names mean the same as long as the process lives."""


class Alike:
    """A function, equal to every function that is like it.

    Attributes:
        function: the function itself, or None for none.
    """

    def __init__(self, function: Callable[..., Any] | None) -> None:
        self.function = function
        key = _key(function, ())
        self._key: Hashable = _Itself(function) if key is None else key
        self._hash = hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Alike) and self._hash == other._hash and self._key == other._key

    def __hash__(self) -> int:
        return self._hash


class _Itself:
    """Any object, equal to itself only."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and self._value is other._value

    def __hash__(self) -> int:
        return id(self._value)


def _key(value: Any, within: tuple[Any, ...]) -> Hashable | None:
    """What a value is like; None where that cannot be said."""
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return (type(value), repr(value))
    if isinstance(value, tuple):
        return _all([type(value), *value], within)
    if isinstance(value, type | BuiltinFunctionType | jax.Array):
        return _Itself(value)
    if isinstance(value, ModuleType):
        return _Itself(value) if _known(value.__name__) else None
    if isinstance(value, partial):
        return _all([partial, value.func, value.args, *sorted(value.keywords.items())], within)
    if is_dataclass(value) and getattr(type(value), "__dataclass_params__").frozen:  # noqa: B009
        return _all([type(value), *(getattr(value, entry.name) for entry in fields(value))], within)
    if not isinstance(value, FunctionType):
        return _Itself(value) if _known(getattr(value, "__module__", "") or "") and callable(value) else None
    if any(value is one for one in within):
        return ("itself", within.index(value))
    if _known(value.__module__ or "") and value.__closure__ is None:
        return _Itself(value)
    return _of_function(value, (*within, value))


def _of_function(function: FunctionType, within: tuple[Any, ...]) -> Hashable | None:
    code = function.__code__
    try:
        closed = [cell.cell_contents for cell in function.__closure__ or ()]
    except ValueError:  # one is not filled yet
        return None
    around = []
    if _known(function.__module__ or ""):  # nobody else can reach a list that it closes over
        closed = [tuple(value) if isinstance(value, list) else value for value in closed]
    else:
        around = _global_values(function)
    keywords = sorted((function.__kwdefaults__ or {}).items())
    rest = _all([function.__defaults__, *keywords, *closed, *around], within)
    return None if rest is None else (code, rest)


def _global_values(function: FunctionType) -> list[Any]:
    """What a function's names mean in its module, those of inner functions included; modules' attributes are not."""
    own = function.__globals__
    return [pair for name in sorted(_names(function.__code__)) if name in own for pair in (name, own[name])]


def _names(code: CodeType) -> set[str]:
    inner = (_names(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*inner)


def _all(values: list[Any], within: tuple[Any, ...]) -> Hashable | None:
    keys = [_key(value, within) for value in values]
    return None if any(key is None for key in keys) else tuple(keys)


def _known(module: str) -> bool:
    return module.partition(".")[0] in LIBRARIES
