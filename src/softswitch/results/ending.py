"""Where a run ended, as any engine hands it over to be judged."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from softswitch.clients.oracle import Judged
from softswitch.method.round import State
from softswitch.method.rules import Rule
from softswitch.results.history import History
from softswitch.results.one_cycle import Cycle


@dataclass(frozen=True, eq=False)
class Ending:
    """A run after its last round.

    Attributes:
        state: what the server kept.
        history: what happened.
        rule: the method.
        names: the clients' labels.
        averaging_from: the first round that could join the average.
        answer: which iterate is wanted.
        stopped: whether the run ended early.
        seed: of the run.
        seconds: how long it took.
        vanished: whether no client has an objective, or none a constraint, on all its data.
        culprit: the label of the client that made the run diverge, where it is known.
        cycles: what a run that chooses for itself went through; the answer is then where it would go on from.
        start: how good the start is at every client, where it is known.
        chosen: what a run that chooses for itself began with, in words, by what it is.
    """

    state: State
    history: History
    rule: Rule
    names: tuple[Any, ...]
    averaging_from: int
    answer: str
    stopped: bool
    seed: int
    seconds: float
    vanished: bool = False
    culprit: Any = None
    cycles: tuple[Cycle, ...] = ()
    start: Judged | None = None
    chosen: dict[str, str] = field(default_factory=dict)

    @property
    def diverged_at(self) -> int:
        """The round in which something was not finite; −1 where all was well."""
        return int(self.state.diverged_at)
