"""Watching a run: what a callback is told after each chunk, and the progress bar."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from softswitch.methods.round import State
from softswitch.results.history import History
from softswitch.support.text import in_words


@dataclass(frozen=True)
class Chunk:
    """What a callback is told: once a chunk of rounds, never once a round.

    Attributes:
        round: how many rounds are done.
        rounds: how many there will be.
        history: the rounds of this chunk; its counts of evaluations begin with it.
        switch_share: the share of all rounds so far that were feasible, void ones left out.
        state: what the server keeps, on the device.
        seconds: since the run began.
    """

    round: int
    rounds: int
    history: History
    switch_share: float
    state: State
    seconds: float


class SwitchShare:
    """The share of rounds so far that were feasible, void ones left out."""

    def __init__(self) -> None:
        self._feasible, self._counted = 0, 0

    def with_rounds(self, history: History) -> float:
        """The share, with these rounds as well."""
        self._feasible += history.feasible_rounds
        self._counted += int((~history.void).sum())
        return self._feasible / max(1, self._counted)


Callback = Callable[[Chunk], object]
"""Called after each chunk; a callback that returns anything true ends the run."""


def check_callbacks(callbacks: object) -> tuple[Callback, ...]:
    """The callbacks, or raise."""
    if callable(callbacks) or not isinstance(callbacks, Iterable):
        raise TypeError(f"callbacks must be a list of functions of a Chunk, but is {callbacks!r}")
    every = tuple(callbacks)
    if not all(callable(callback) for callback in every):
        raise TypeError(f"callbacks must be a list of functions of a Chunk, but is {callbacks!r}")
    return every


def run_callbacks(callbacks: Iterable[Callback], news: Chunk) -> bool:
    """Call all of them; whether any wants the run to end."""
    answers = [bool(callback(news)) for callback in callbacks]
    return any(answers)


class ProgressBar:
    """A bar on the terminal's error stream: rounds/s, the current sampled F and G, the switch share.

    Args:
        rounds: how many there will be.
        show: None shows it on a terminal only.
    """

    def __init__(self, rounds: int, show: bool | None = None) -> None:
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[numbers]}"),
            console=Console(file=sys.stderr, force_terminal=show),
            disable=not (sys.stderr.isatty() if show is None else show),
            transient=True,
        )
        self._task = self._bar.add_task("rounds", total=rounds, numbers="")

    def __enter__(self) -> ProgressBar:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._bar.disable:  # older versions of rich end a bar that never was with an empty line
            self._bar.stop()

    def __call__(self, chunk: Chunk) -> None:
        """Show where the run stands."""
        if self._bar.disable:
            return
        self.update(
            chunk.round,
            f"{chunk.round / chunk.seconds:,.0f}/s  F {in_words(chunk.history.objective[-1])}  "
            f"G {in_words(chunk.history.constraint[-1])}  feasible {chunk.switch_share:.0%}",
        )

    def update(self, completed: int, numbers: str) -> None:
        """Show that so many rounds are done, and these numbers beside it."""
        self._bar.update(self._task, completed=completed, numbers=numbers)
