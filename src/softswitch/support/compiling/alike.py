"""Functions that are made anew and yet the same: what was compiled for one of them serves the others.

``optax.cosine_decay_schedule(0.1, 500)`` and ``partial(loss, weight=2.0)`` are new objects with every call. Two such
functions are alike where their code is the same and all that it takes from around it is: numbers and words by their
value, functions and frozen settings by being alike, JAX arrays and what known libraries have by being the same object.
A function that refers to anything else, a list, or a class or an object that may change, is like itself only.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterable
from dataclasses import fields, is_dataclass
from functools import partial
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import jax

from softswitch.support.compiling.functions import names_in

LIBRARIES = {"builtins", "equinox", "flax", "functools", "itertools", "jax", "math", "numpy", "operator", "optax"}
"""Whose names mean the same as long as the process lives."""

MOST_VALUES = 2000
"""So many are looked at; a function that refers to more is like itself only."""


class Alike:
    """A function, equal to every function that is like it.

    Attributes:
        function: the function itself, or None for none.
    """

    def __init__(self, function: Callable[..., Any] | None) -> None:
        self.function = function
        key = _Keys().of(function)
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


class _Keys:
    """What values are like; None where that cannot be said."""

    def __init__(self) -> None:
        self._left, self._within = MOST_VALUES, set[int]()

    def of(self, value: Any) -> Hashable | None:
        """Of one value."""
        self._left -= 1
        if self._left < 0:
            return None
        if value is None or isinstance(value, bool | int | float | complex | str | bytes):
            return (type(value), repr(value))
        if isinstance(value, tuple):
            return self._all(type(value), value)
        if isinstance(value, partial):
            return self._all(partial, [value.func, value.args, *sorted(value.keywords.items())])
        if isinstance(value, FunctionType):
            if id(value) in self._within:  # it calls itself
                return None
            self._within.add(id(value))
            key = self._of_function(value)
            self._within.discard(id(value))
            return key
        if isinstance(value, type):
            return _Itself(value) if _known(value.__module__) else None
        if is_dataclass(value) and getattr(type(value), "__dataclass_params__").frozen:  # noqa: B009
            return self._all(type(value), [getattr(value, entry.name) for entry in fields(value)])
        return _Itself(value) if _never_changes(value) else None

    def _of_function(self, function: FunctionType) -> Hashable | None:
        own = _known(function.__globals__.get("__name__", ""))  # ``__module__`` may be another's, by functools.wraps
        if own and function.__closure__ is None:
            return _Itself(function)
        if function.__dict__ and not own:
            return None
        try:
            closed = [cell.cell_contents for cell in function.__closure__ or ()]
        except ValueError:  # one is not filled yet
            return None
        if own:  # nobody else can reach a list that it closes over
            closed = [tuple(value) if isinstance(value, list) else value for value in closed]
        around = [] if own else _global_values(function)
        keywords = sorted((function.__kwdefaults__ or {}).items())
        return self._all(function.__code__, [function.__defaults__, *keywords, *closed, *around])

    def _all(self, kind: Any, values: Iterable[Any]) -> Hashable | None:
        keys = []
        for value in values:
            key = self.of(value)
            if key is None:
                return None
            keys.append(key)
        return (kind, *keys)


def _never_changes(value: Any) -> bool:
    """Whether an object is a JAX array, a known library, or one of its own functions by name."""
    if isinstance(value, jax.Array):
        return not isinstance(value, jax.core.Tracer)
    if isinstance(value, ModuleType):
        return _known(value.__name__)
    if isinstance(value, BuiltinFunctionType) and value.__self__ is not None:
        return isinstance(value.__self__, ModuleType) and _known(value.__self__.__name__)
    module = getattr(value, "__module__", None) or ""
    home = sys.modules.get(module)
    return _known(module) and home is not None and getattr(home, getattr(value, "__name__", ""), None) is value


def _global_values(function: FunctionType) -> list[Any]:
    """What a function's names mean in its module, those of inner functions included; modules' attributes are not."""
    own = function.__globals__
    return [pair for name in sorted(names_in(function.__code__)) if name in own for pair in (name, own[name])]


def _known(module: str) -> bool:
    return module.partition(".")[0] in LIBRARIES
