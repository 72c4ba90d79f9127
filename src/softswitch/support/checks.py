"""Checks of what a user hands in: each error names the argument, its value and what is accepted."""

from __future__ import annotations

import difflib
import math
import operator
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any


def whole_number(name: str, value: Any, *, at_least: int) -> int:
    """Return ``value`` as an int, or raise if it is not a whole number >= ``at_least``."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or number < at_least:
        raise ValueError(f"{name} must be a whole number >= {at_least}, but is {value!r}")
    return number


def is_array(value: Any) -> bool:
    """Whether a setting is an array by now, as within a compiled program; NumPy's own whole numbers are none."""
    return hasattr(value, "dtype") and not isinstance(value, Integral)


def real_number(
    name: str,
    value: Any,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
) -> float:
    """Return ``value`` as a finite float within the given limits, or raise."""
    limits = []
    if at_least is not None:
        limits.append(f">= {at_least:g}")
    if above is not None:
        limits.append(f"> {above:g}")
    if at_most is not None:
        limits.append(f"<= {at_most:g}")
    accepted = " and ".join(["a finite number", *limits])
    try:
        number = math.nan if isinstance(value, bool | str) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if (
        not math.isfinite(number)
        or (at_least is not None and number < at_least)
        or (above is not None and number <= above)
        or (at_most is not None and number > at_most)
    ):
        raise ValueError(f"{name} must be {accepted}, but is {value!r}")
    return number


def seed(name: str, value: Any) -> int:
    """Return ``value`` as a whole number in [0, 2**32), or raise."""
    number = whole_number(name, value, at_least=0)
    if number >= 2**32:
        raise ValueError(f"{name} must be a whole number below 2**32, but is {value!r}")
    return number


def probability(name: str, value: Any) -> float:
    """Return ``value`` as a float strictly between 0 and 1, or raise."""
    number = real_number(name, value, above=0)
    if number >= 1:
        raise ValueError(f"{name} must be a number between 0 and 1, both excluded, but is {value!r}")
    return number


def share_below_one(name: str, value: Any) -> float:
    """A number in [0, 1)."""
    share = real_number(name, value, at_least=0, at_most=1)
    if not is_array(share) and share >= 1:
        raise ValueError(f"{name} must be a number >= 0 and < 1, but is {value!r}")
    return share


def one_of(name: str, value: Any, accepted: Sequence[str]) -> str:
    """Return ``value`` if it is one of the ``accepted`` words, or raise."""
    if value not in accepted:
        words = ", ".join(repr(word) for word in accepted)
        raise ValueError(f"{name} must be one of {words}, but is {value!r}")
    return str(value)


def expect(name: str, value: Any, kind: type) -> None:
    """Raise unless ``value`` is of the given kind."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be a {kind.__name__}, but is {value!r}")


def function(name: str, value: Any, signature: str) -> None:
    """Raise unless ``value`` can be called; ``signature`` tells how it will be."""
    if not callable(value):
        raise TypeError(f"{name} must be a function {signature}, but is {value!r}")


def all_at_once(*works: Callable[[], Any]) -> tuple[Any, ...]:
    """What each of these gives; or, where some refuse, all that they say in one error, one line each."""
    found, said = [], []
    for work in works:
        try:
            found.append(work())
        except ValueError as error:
            said += [line for line in str(error).splitlines() if line not in said]
    if said:
        raise ValueError("\n".join(said))
    return tuple(found)


def did_you_mean(name: str, known: Sequence[str]) -> str | None:
    """Which of the known names is most likely meant by one that is none of them; None where none is near."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return near[0] if near else None
