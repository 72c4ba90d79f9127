"""Bad input is the caller's mistake: it is told as the command line tells any, without a stack of calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import typer

Found = TypeVar("Found")


def or_refuse(work: Callable[[], Found]) -> Found:
    """What ``work`` gives; its complaints about input as the command line's."""
    try:
        return work()
    except (ValueError, OSError, EOFError) as error:
        raise typer.BadParameter(str(error)) from error
