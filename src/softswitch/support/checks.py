"""Argument checks. Each error names the argument, its value and what is accepted."""

from __future__ import annotations

import difflib
import math
import operator
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any


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
    """Return whether a setting is an array or a tracer; NumPy integers do not count."""
    return hasattr(value, "dtype") and not isinstance(value, Integral)


def check_real(
    name: str,
    value: Any,
    *,
    minimum: float | None = None,
    above: float | None = None,
    maximum: float | None = None,
) -> float:
    """Return ``value`` as a finite float within the given limits; raise ValueError otherwise."""
    try:
        number = math.nan if isinstance(value, bool | str) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    limits = ((">=", minimum, operator.ge), (">", above, operator.gt), ("<=", maximum, operator.le))
    given = [(sign, limit, holds) for sign, limit, holds in limits if limit is not None]
    if not math.isfinite(number) or not all(holds(number, limit) for _, limit, holds in given):
        accepted = " and ".join(["a finite number", *(f"{sign} {limit:g}" for sign, limit, _ in given)])
        raise ValueError(f"{name} must be {accepted}, but is {value!r}")
    return number


def check_seed(name: str, value: Any) -> int:
    """Return ``value`` as an integer in [0, 2**32), or raise ValueError."""
    number = check_integer(name, value, minimum=0)
    if number >= 2**32:
        raise ValueError(f"{name} must be an integer below 2**32, but is {value!r}")
    return number


def check_probability(name: str, value: Any) -> float:
    """Return ``value`` as a float strictly between 0 and 1, or raise ValueError."""
    number = check_real(name, value, above=0)
    if number >= 1:
        raise ValueError(f"{name} must be a number between 0 and 1, both excluded, but is {value!r}")
    return number


def check_fraction(name: str, value: Any) -> float:
    """Return ``value`` as a float in [0, 1), or raise ValueError."""
    number = check_real(name, value, minimum=0)
    if number >= 1:
        raise ValueError(f"{name} must be a number >= 0 and < 1, but is {value!r}")
    return number


def check_choice(name: str, value: Any, choices: Sequence[str]) -> str:
    """Return ``value`` if it is one of ``choices``, or raise ValueError."""
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


def call_all(*functions: Callable[[], Any]) -> tuple[Any, ...]:
    """Return the results of all functions, or raise one ValueError with the messages of all that failed."""
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
    """Return the known name that is most similar to ``name``, or None if none is similar."""
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=0.5)), None)
