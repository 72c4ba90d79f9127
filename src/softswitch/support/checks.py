"""Checks of arguments and of JSON content. Each error names the argument, its value and what is accepted."""

from __future__ import annotations

import difflib
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from numbers import Integral
from typing import Any, NamedTuple

Limit = float | None
_COMPARE: dict[str, Any] = {">=": operator.ge, ">": operator.gt, "<=": operator.le, "<": operator.lt}


def check_integer(name: str, value: Any, *, minimum: int) -> int:
    """Return ``value`` as an int; raise ValueError unless it is an integer >= ``minimum``."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or number < minimum:
        raise ValueError(f"{name} must be an integer >= {minimum}, but is {value!r}")
    return number


def is_array(value: Any) -> bool:
    """Return whether ``value`` is an array, a JAX tracer or a NumPy scalar other than an integer."""
    return hasattr(value, "dtype") and not isinstance(value, Integral)


def check_real(
    name: str, value: Any, *, minimum: Limit = None, above: Limit = None, maximum: Limit = None, below: Limit = None
) -> float:
    """Return ``value`` as a float, or raise ValueError unless it is finite and within the limits (None: no limit)."""
    try:
        number = math.nan if isinstance(value, bool | str) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    limits = {">=": minimum, ">": above, "<=": maximum, "<": below}
    given = {sign: limit for sign, limit in limits.items() if limit is not None}
    if not math.isfinite(number) or not all(_COMPARE[sign](number, limit) for sign, limit in given.items()):
        accepted = " and ".join(["a finite number", *(f"{sign} {limit:g}" for sign, limit in given.items())])
        raise ValueError(f"{name} must be {accepted}, but is {value!r}")
    return number


def limits(*, optional: bool = False, schedule: bool = False, **bounds: float) -> dict[str, Any]:
    """Return metadata of a dataclass field for ``check_limits``: a number within bounds as for ``check_real``.

    ``optional`` accepts None also if it is not the default, and ``schedule`` accepts functions.
    """
    return {"limits": bounds, "optional": optional, "schedule": schedule}


NUMBER, NONNEGATIVE, POSITIVE = limits(), limits(minimum=0), limits(above=0)


def check_limits(settings: Any) -> None:
    """Convert the fields of a frozen dataclass that have ``limits`` to floats; raise ValueError if one is outside.

    None is accepted if it is the default or the field is ``optional``.
    """
    for field in fields(settings):
        if "limits" not in field.metadata:
            continue
        value = getattr(settings, field.name)
        is_unset = value is None and (field.default is None or field.metadata["optional"])
        if not is_unset and not (callable(value) and field.metadata["schedule"]):
            object.__setattr__(settings, field.name, check_real(field.name, value, **field.metadata["limits"]))


def check_probability(name: str, value: Any) -> float:
    """Return ``value`` as a float strictly between 0 and 1, or raise ValueError."""
    return check_real(name, value, above=0, below=1)


def check_fraction(name: str, value: Any) -> float:
    """Return ``value`` as a float in [0, 1), or raise ValueError."""
    return check_real(name, value, minimum=0, below=1)


def check_seed(name: str, value: Any) -> int:
    """Return ``value`` as an int in [0, 2**32), the range of random seeds, or raise ValueError."""
    number = check_integer(name, value, minimum=0)
    if number >= 2**32:
        raise ValueError(f"{name} must be an integer below 2**32, but is {value!r}")
    return number


def check_choice(name: str, value: Any, choices: Sequence[str]) -> str:
    """Return ``value`` as a str if it is one of ``choices``, or raise ValueError."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, but is {value!r}")
    return str(value)


def check_instance(name: str, value: Any, cls: type) -> None:
    """Raise TypeError unless ``value`` is an instance of ``cls``."""
    if not isinstance(value, cls):
        raise TypeError(f"{name} must be a {cls.__name__}, but is {value!r}")


def check_callable(name: str, value: Any, signature: str) -> None:
    """Raise TypeError unless ``value`` is callable; the message shows the expected ``signature``."""
    if not callable(value):
        raise TypeError(f"{name} must be a function {signature}, but is {value!r}")


def check_given(settings: Any, check: Callable[..., Any], *names: str, **accepted: Any) -> None:
    """Check the attributes of ``settings`` with these names, except those that are None, as ``check`` does."""
    for name in names:
        if (value := getattr(settings, name)) is not None:
            check(name, value, **accepted)


def call_all(*functions: Callable[[], Any]) -> tuple[Any, ...]:
    """Call all functions without arguments and return the results; raise one ValueError with all their messages."""
    results, messages = [], []
    for function in functions:
        try:
            results.append(function())
        except ValueError as error:
            messages += [line for line in str(error).splitlines() if line not in messages]
    if messages:
        raise ValueError("\n".join(messages))
    return tuple(results)


def closest_match(name: str, known: Sequence[str]) -> str | None:
    """Return the entry of ``known`` that is most similar to ``name``, or None if none is similar."""
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=0.5)), None)


JSON_TYPES: Any = {str: "text", bool: "true or false", int: "a whole number", float: "a number", None: "null"}
MAX_NUMBER = 1e300  # largest accepted magnitude; larger numbers cannot be plotted or added up
ANY = ...  # schema that every value matches
Schema = Any
"""A key of ``JSON_TYPES`` (``float`` is any finite number); a tuple of alternatives; [schema] for a list; MapOf(schema)
for an object with values of one schema; {name: schema} for an object with at least these names, of which those that end
in "?" are optional; or ANY."""


class MapOf(NamedTuple):
    """Schema of a JSON object with any names, whose values all match the schema ``of``."""

    of: Schema


def check_schema(value: Any, schema: Schema, name: str = "it") -> None:
    """Raise ValueError unless parsed JSON matches a schema; ``name`` is the name of the value in the error."""

    def require(holds: bool, accepted: str) -> None:
        if not holds:
            kind = "that number" if isinstance(value, int | float) else type(value).__name__
            raise ValueError(f"{name} must be {accepted}, but is {'null' if value is None else kind}")

    if isinstance(schema, dict):
        require(isinstance(value, Mapping), "an object")
        for key, part in schema.items():
            entry = key.removesuffix("?")
            if entry in value:
                check_schema(value[entry], part, f"{name}.{entry}")
            elif entry == key:
                raise ValueError(f"{name}.{entry} is missing")
    elif isinstance(schema, MapOf):
        require(isinstance(value, Mapping), "an object")
        for entry, part in value.items():
            check_schema(part, schema.of, f"{name}.{entry}")
    elif isinstance(schema, list):
        require(isinstance(value, list), "a list")
        for i, part in enumerate(value):
            check_schema(part, schema[0], f"{name}[{i}]")
    elif isinstance(schema, tuple):
        plain = [kind for kind in schema if kind is None or isinstance(kind, type)]
        nested = [kind for kind in schema if kind not in plain]
        if not any(_has_type(value, kind) for kind in plain):
            require(bool(nested), " or ".join(JSON_TYPES[kind] for kind in plain))
            check_schema(value, nested[0], name)
    elif schema is not ANY:
        require(_has_type(value, schema), JSON_TYPES[schema])


def _has_type(value: Any, kind: Any) -> bool:
    if kind is None:
        return value is None
    if kind in (int, float):
        is_number = type(value) is int or (kind is float and type(value) is float and math.isfinite(value))
        return is_number and abs(value) <= MAX_NUMBER
    return type(value) is kind
