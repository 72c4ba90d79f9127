"""Callbacks during a run, and the progress bar."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from softswitch.methods.state import State
from softswitch.results.history import History
from softswitch.support.text import format_value


@dataclass(frozen=True)
class Chunk:
    """The argument of a callback, which is called once per chunk of rounds.

    Attributes:
        round: Number of rounds completed since the run began.
        rounds: Maximum number of rounds of the run.
        history: The rounds of this chunk only. Its cumulative counts begin with the chunk.
        switch_share: Share, in [0, 1], of feasible rounds among all rounds so far that are not void.
        state: State of the server after the chunk, with arrays on the device.
        seconds: Wall time of the run in seconds, including the time before it was resumed.
    """

    round: int
    rounds: int
    history: History
    switch_share: float
    state: State
    seconds: float


class SwitchShare:
    """Running share, in [0, 1], of feasible rounds among those that are not void."""

    _feasible = _counted = 0

    def update(self, history: History) -> float:
        """Add the rounds of a history and return the share of all rounds so far; 0 if all are void."""
        self._feasible += history.feasible_rounds
        self._counted += int((~history.void).sum())
        return self._feasible / max(1, self._counted)


Callback = Callable[[Chunk], object]
"""Function that is called after each chunk of rounds. If it returns a true value, the run stops."""


def check_callbacks(callbacks: object) -> tuple[Callback, ...]:
    """Return the callbacks as a tuple, or raise TypeError if they are not an iterable of functions."""
    checked = tuple(callbacks) if isinstance(callbacks, Iterable) and not callable(callbacks) else (None,)
    if not all(map(callable, checked)):
        raise TypeError(f"callbacks must be a list of functions of a Chunk, but is {callbacks!r}")
    return checked


def run_callbacks(callbacks: Iterable[Callback], chunk: Chunk) -> bool:
    """Call every callback with the chunk, and return whether any of them returned a true value."""
    return sum(bool(callback(chunk)) for callback in callbacks) > 0


class ProgressBar:
    """A progress bar on stderr with rounds per second, sampled F and G, and the share of feasible rounds.

    Args:
        rounds: Maximum number of rounds.
        show: Whether to show the bar. Default: only on a terminal.
    """

    def __init__(self, rounds: int, show: bool | None = None) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        console, is_shown = Console(file=sys.stderr, force_terminal=show), sys.stderr.isatty() if show is None else show
        numbers = TextColumn("{task.fields[numbers]}")
        self._bar = Progress(*columns, numbers, console=console, disable=not is_shown, transient=True)
        self._task = self._bar.add_task("rounds", total=rounds, numbers="")

    def __enter__(self) -> ProgressBar:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if not self._bar.disable:  # older versions of rich print an empty line otherwise
            self._bar.stop()

    def __call__(self, chunk: Chunk) -> None:
        """Move the bar to the chunk's last round and show its numbers."""
        if not self._bar.disable:
            f, g = (format_value(values[-1]) for values in (chunk.history.objective, chunk.history.constraint))
            speed = f"{chunk.round / chunk.seconds:,.0f}/s"
            numbers = f"{speed}  F {f}  G {g}  feasible {chunk.switch_share:.0%}"
            self._bar.update(self._task, completed=chunk.round, numbers=numbers)

    def advance(self, rounds: int) -> None:
        """Move the bar forward by ``rounds`` rounds without new numbers."""
        self._bar.update(self._task, advance=rounds)
