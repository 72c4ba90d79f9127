"""A server that remembers: every client's last report, so that the switch sees all clients though few are asked.

How it remembers is in ``remembering.py``, whom it asks in ``asking.py``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from jaxtyping import Array

from softswitch.method.rules import Rule
from softswitch.support import checks
from softswitch.support.compiling.traced import traced_settings


class Places(NamedTuple):
    """How the m places of a round are given out: to the worst by g, to the worst by f, and by turns."""

    by_constraint: int
    by_objective: int
    by_turns: int

    @property
    def all(self) -> int:
        """m."""
        return self.by_constraint + self.by_objective + self.by_turns


@traced_settings
@dataclass(frozen=True, kw_only=True)
class Memory:
    """How a server remembers its clients' reports; for ``solve(…, memory=Memory())``.

    Attributes:
        smoothing: β in [0, 1): what is remembered is a running mean of a client's reports, of weight 1 − β for the
            newest; 0: its last report. A larger β takes noise out of the switch, and follows more slowly.
        worst_share: the share of a round's places that goes to the clients remembered as worst, half by g and half by
            f; the others are asked by turns, in random order. At least one place always goes by turns.
        rest: how many rounds a client rests after it was asked, before it can be asked again for being the worst; its
            turns come as ever. So whoever claims to be the worst is asked by need in every (rest + 1)-th round at most.
            None: 1 where the rule is robust, else 0.
        corrected: remember estimates that go along with the server's steps: every client also reports what its batch
            gave at the iterate before, so that reports cost twice as much, and what is remembered of it is moved by the
            difference. How much is kept of what was there before is found on the way; ``smoothing`` stays 0. For
            reports of few rows, whose maximum is otherwise mostly that of their noise.
    """

    smoothing: float = 0.0
    worst_share: float = 2 / 3
    rest: int | None = None
    corrected: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "smoothing", checks.share_below_one("smoothing", self.smoothing))
        checks.expect("corrected", self.corrected, bool)
        if self.corrected and self.smoothing:
            raise ValueError(
                f"smoothing must be 0 where memory is corrected, which finds its own, but is {self.smoothing:g}"
            )
        share = checks.real_number("worst_share", self.worst_share, at_least=0, at_most=1)
        object.__setattr__(self, "worst_share", share)
        if self.rest is not None and not checks.is_array(self.rest):  # an array was checked when it was a number
            object.__setattr__(self, "rest", checks.whole_number("rest", self.rest, at_least=0))

    @property
    def values_a_report(self) -> int:
        """How often a report evaluates a batch: at one iterate, or at two."""
        return 2 if self.corrected else 1

    def rest_for(self, rule: Rule) -> int | Array:
        """How many rounds a client rests from being asked by need, under this rule.

        Args:
            rule: the method.
        """
        if self.rest is not None:
            return self.rest
        return 0 if rule.robust is None else 1

    def places(self, participants: int) -> Places:
        """Who gets the m places of a round.

        Args:
            participants: m, how many are asked in a round.
        """
        worst = min(participants - 1, round(float(self.worst_share) * participants))
        return Places(math.ceil(worst / 2), worst // 2, participants - worst)

    def longest_wait(self, clients: int, participants: int) -> int:
        """Nobody waits longer: rounds from one report of a client to its next, at most.

        Args:
            clients: n, how many there are.
            participants: m, how many are asked in a round.
        """
        if participants == clients:
            return 1
        return 2 * math.ceil(clients / self.places(participants).by_turns) - 1
