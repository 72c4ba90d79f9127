"""How commands end: bad input is told as the command line tells any, without a stack of calls; no answer has a code."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import typer

Found = TypeVar("Found")

NO_ANSWER_CODE = 3
"""The exit code where nothing is certified that was to be."""


def or_refuse(work: Callable[[], Found]) -> Found:
    """What ``work`` gives; its complaints about input as the command line's."""
    try:
        return work()
    except (ValueError, OSError, EOFError) as error:
        raise typer.BadParameter(str(error)) from error
