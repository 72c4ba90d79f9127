"""Complaints about input, all at once: who has three mistakes to mend is told of three, not of one a run."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from typing import Any


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
