"""Whether what a JSON file says has the shape that it should have."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

MAX_NUMBER = 1e300
"""Numbers beyond this are nobody's results, and cannot be drawn or added up."""
NAMES: dict[Any, str] = {str: "text", bool: "true or false", int: "a whole number", float: "a number", None: "null"}

ANY = ...
Schema = Any
"""``str``, ``bool``, ``int``, ``float`` (any number) or None; a tuple of these, any of which will do; [shape], a list
of such; ANYTHING; ``Each(shape)``, an object all of whose values are such; or {name: shape}, an object with at least
these: a name that ends in ? may be missing."""


class MapOf(NamedTuple):
    """An object whose values all have one shape."""

    of: Schema


def check_schema(told: Any, shape: Schema, where: str = "it") -> None:
    """Raise where something has another shape.

    Args:
        told: what a file says.
        shape: what it should be.
        where: what it is called in errors.
    """
    if shape is ANY:
        return
    if isinstance(shape, dict):
        _expect(isinstance(told, Mapping), where, "an object", told)
        for key, part in shape.items():
            name = key.removesuffix("?")
            if name in told:
                check_schema(told[name], part, f"{where}.{name}")
            elif name == key:
                raise ValueError(f"{where}.{name} is missing")
    elif isinstance(shape, MapOf):
        _expect(isinstance(told, Mapping), where, "an object", told)
        for name, value in told.items():
            check_schema(value, shape.of, f"{where}.{name}")
    elif isinstance(shape, list):
        _expect(isinstance(told, list), where, "a list", told)
        for i, value in enumerate(told):
            check_schema(value, shape[0], f"{where}[{i}]")
    elif isinstance(shape, tuple):
        plain = [kind for kind in shape if kind is None or isinstance(kind, type)]
        nested = [kind for kind in shape if kind is not None and not isinstance(kind, type)]
        if any(_is(told, kind) for kind in plain):
            return
        _expect(bool(nested), where, " or ".join(NAMES[kind] for kind in plain), told)
        check_schema(told, nested[0], where)
    else:
        _expect(_is(told, shape), where, NAMES[shape], told)


def _is(told: Any, kind: Any) -> bool:
    if kind is None:
        return told is None
    if kind in (int, float):
        whole = type(told) is int
        return (whole or (kind is float and type(told) is float and math.isfinite(told))) and abs(told) <= MAX_NUMBER
    return type(told) is kind


def _expect(holds: bool, where: str, what: str, told: Any) -> None:
    if not holds:
        kind = type(told).__name__ if not isinstance(told, int | float) else "that number"
        raise ValueError(f"{where} must be {what}, but is {kind if told is not None else 'null'}")
