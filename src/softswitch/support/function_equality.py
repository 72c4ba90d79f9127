"""Equality of functions by code and closed-over values, so that equal settings share one compiled program."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterator
from dataclasses import fields, is_dataclass
from functools import partial
from types import CodeType, FunctionType, ModuleType
from typing import Any

import jax
import numpy as np

from softswitch.support import checks

LIBRARIES = {"builtins", "equinox", "flax", "functools", "itertools", "jax", "math", "numpy", "operator", "optax"}
"""Top-level modules whose attributes are assumed constant while the process runs."""
MAX_VALUES = 2000  # functions that refer to more values are equal to themselves only


class ComparableFunction:
    """A hashable wrapper of a function or None; equal if code, defaults, closed-over values and globals are equal."""

    def __init__(self, function: Callable[..., Any] | None) -> None:
        self.function = function
        try:
            self._key = _key(function, iter(range(MAX_VALUES)), frozenset())
        except _NotComparableError:
            self._key = _Identity(function)
        self._hash = hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ComparableFunction) and self._hash == other._hash and self._key == other._key

    def __hash__(self) -> int:
        return self._hash


class _NotComparableError(Exception):
    """Raised if a function refers to a mutable value, to itself, or to more than ``MAX_VALUES`` values."""


class _Identity:
    """A hashable wrapper that equals wrappers of the same object only."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self._value is other._value

    def __hash__(self) -> int:
        return id(self._value)


def _key(value: Any, budget: Iterator[int], active: frozenset[int]) -> Hashable:
    """Return a hashable key, the same for equal values; ``active`` holds the ids of the functions that enclose it."""
    if next(budget, None) is None or id(value) in active:
        raise _NotComparableError
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return (type(value), repr(value))
    kind: Any = type(value)
    if isinstance(value, tuple):
        parts = list(value)
    elif isinstance(value, partial):
        kind, parts = partial, [value.func, value.args, *sorted(value.keywords.items())]
    elif isinstance(value, FunctionType):
        is_library = _is_library(value.__globals__.get("__name__", ""))  # functools.wraps changes __module__
        if is_library and value.__closure__ is None:
            return _Identity(value)
        kind, parts, active = value.__code__, _function_parts(value, is_library), active | {id(value)}
    elif is_dataclass(value) and not isinstance(value, type) and kind.__dataclass_params__.frozen:
        parts = [getattr(value, field.name) for field in fields(value)]
    elif _is_constant(value):
        return _Identity(value)
    else:
        raise _NotComparableError
    return (kind, *(_key(part, budget, active) for part in parts))


def _function_parts(function: FunctionType, is_library: bool) -> list[Any]:
    """Return the values that a function depends on: defaults, closed-over values, and globals outside of libraries."""
    if function.__dict__ and not is_library:
        raise _NotComparableError
    try:
        closed = [cell.cell_contents for cell in function.__closure__ or ()]
    except ValueError as error:  # a cell is empty
        raise _NotComparableError from error
    parts = [function.__defaults__, *sorted((function.__kwdefaults__ or {}).items())]
    if is_library:  # lists that a library's function closes over do not change
        return [*parts, *(tuple(value) if isinstance(value, list) else value for value in closed)]
    names, values = referenced_names(function.__code__), function.__globals__
    return [*parts, *closed, *(part for name in sorted(names & set(values)) for part in (name, values[name]))]


def referenced_names(code: CodeType) -> set[str]:
    """Return the global and attribute names that a code object looks up, including those of inner functions."""
    inner = (referenced_names(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*inner)


def _is_constant(value: Any) -> bool:
    """Return whether a value is a concrete JAX array, or a module, class or function of ``LIBRARIES``."""
    if isinstance(value, jax.Array):
        return not isinstance(value, jax.core.Tracer)
    if isinstance(value, ModuleType):
        return _is_library(value.__name__)
    name = getattr(value, "__module__", None) or ""
    return _is_library(name) and getattr(sys.modules.get(name), getattr(value, "__name__", ""), None) is value


def _is_library(module: str) -> bool:
    return module.partition(".")[0] in LIBRARIES


class TracedSettings:
    """Base class of frozen dataclasses that are pytrees, with their numbers as leaves.

    Numbers (α, a step size) and nested ``TracedSettings`` are arguments of a compiled program, so a change of their
    values compiles nothing. Strings, booleans, functions and None are static. The constructor checks the ``limits`` of
    fields; unflattening skips it.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        jax.tree_util.register_pytree_node(cls, _flatten, partial(_unflatten, cls))

    def __post_init__(self) -> None:
        checks.check_limits(self)


def _flatten(settings: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    values = {field.name: getattr(settings, field.name) for field in fields(settings)}
    static = {name: value for name, value in values.items() if _is_static(value)}
    numbers = {name: value for name, value in values.items() if name not in static}
    wrapped = ((name, ComparableFunction(value) if callable(value) else value) for name, value in static.items())
    return tuple(numbers.values()), (tuple(numbers), tuple(wrapped))


def _unflatten(cls: type, static_parts: tuple[Any, ...], numbers: Any) -> Any:
    names, static = static_parts
    settings: Any = object.__new__(cls)
    for name, value in (*zip(names, numbers, strict=True), *static):
        object.__setattr__(settings, name, value.function if isinstance(value, ComparableFunction) else value)
    return settings


def _is_static(value: Any) -> bool:
    is_plain = value is None or isinstance(value, str | bool | np.bool_) or callable(value)
    return is_plain and not isinstance(value, TracedSettings)
