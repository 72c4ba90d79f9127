"""Frozen settings whose numbers are traced and whose words, truth values and functions are compiled in.

A setting that is a number (α, a step size, a radius) becomes an argument of the compiled program, so that another
value compiles nothing; a setting that is a word, True or False, a function or None is part of the program itself.
Settings may hold such settings in turn: a step size that falls, say, with its own numbers.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

import jax
import numpy as np

from softswitch.support.function_equality import ComparableFunction

Settings = TypeVar("Settings")
_TRACED: set[type] = set()


def _is_static(value: Any) -> bool:
    if type(value) in _TRACED:
        return False
    return value is None or isinstance(value, str | bool | np.bool_) or callable(value)


def traced_settings(cls: type[Settings]) -> type[Settings]:
    """Class decorator: register a frozen dataclass as a pytree with its numbers as leaves.

    Rebuilding from leaves skips the constructor's checks: those were made when the user wrote the value, and a
    traced value has none to check.
    """

    def flatten(settings: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        named = [(field.name, getattr(settings, field.name)) for field in fields(settings)]
        numbers = [(name, value) for name, value in named if not _is_static(value)]
        static = tuple(
            (name, ComparableFunction(value) if callable(value) else value)
            for name, value in named
            if _is_static(value)
        )
        return tuple(value for _, value in numbers), (tuple(name for name, _ in numbers), static)

    def unflatten(aux: tuple[Any, ...], numbers: Any) -> Any:
        names, static = aux
        settings = object.__new__(cls)
        for name, value in (*zip(names, numbers, strict=True), *static):
            object.__setattr__(settings, name, value.function if isinstance(value, ComparableFunction) else value)
        return settings

    jax.tree_util.register_pytree_node(cls, flatten, unflatten)
    _TRACED.add(cls)
    return cls
