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
        round: Number of completed rounds.
        rounds: Maximum number of rounds.
        history: The rounds of this chunk. Its cumulative counts begin with the chunk.
        switch_share: The share of feasible rounds so far, among those that are not void.
        state: The state of the server, on the device.
        seconds: Time since the run began.
    """

    round: int
    rounds: int
    history: History
    switch_share: float
    state: State
    seconds: float


class SwitchShare:
    """Running share of feasible rounds among those that are not void."""

    _feasible = _counted = 0

    def update(self, history: History) -> float:
        """Add rounds and return the share."""
        self._feasible += history.feasible_rounds
        self._counted += int((~history.void).sum())
        return self._feasible / max(1, self._counted)


Callback = Callable[[Chunk], object]
"""Called after each chunk. If it returns a true value, the run stops."""


def check_callbacks(callbacks: object) -> tuple[Callback, ...]:
    """Return the callbacks, or raise an error if they are not functions."""
    checked = tuple(callbacks) if isinstance(callbacks, Iterable) and not callable(callbacks) else (None,)
    if not all(map(callable, checked)):
        raise TypeError(f"callbacks must be a list of functions of a Chunk, but is {callbacks!r}")
    return checked


def run_callbacks(callbacks: Iterable[Callback], chunk: Chunk) -> bool:
    """Call all callbacks and return whether any of them stops the run."""
    return sum(bool(callback(chunk)) for callback in callbacks) > 0


class ProgressBar:
    """A progress bar on stderr: rounds per second, the sampled F and G, the switch share.

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
        """Show the progress."""
        if not self._bar.disable:
            f, g = (format_value(values[-1]) for values in (chunk.history.objective, chunk.history.constraint))
            speed = f"{chunk.round / chunk.seconds:,.0f}/s"
            numbers = f"{speed}  F {f}  G {g}  feasible {chunk.switch_share:.0%}"
            self._bar.update(self._task, completed=chunk.round, numbers=numbers)

    def advance(self, rounds: int) -> None:
        """Show that further rounds are completed."""
        self._bar.update(self._task, advance=rounds)
