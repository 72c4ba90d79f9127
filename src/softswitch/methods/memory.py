"""A server that remembers: every client's last report, so that the switch sees all clients though few are asked.

How it remembers is in ``remembering.py``, whom it asks in ``asking.py``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from softswitch.methods import robust
from softswitch.methods.base import Method
from softswitch.methods.drift_correction import Forecasts, corrected, known, nothing_foreseen
from softswitch.methods.messages import Decision, Reports
from softswitch.support import checks
from softswitch.support.arrays import append_clients, take_clients
from softswitch.support.function_equality import traced_settings


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
        object.__setattr__(self, "smoothing", checks.check_fraction("smoothing", self.smoothing))
        checks.check_instance("corrected", self.corrected, bool)
        if self.corrected and self.smoothing:
            raise ValueError(
                f"smoothing must be 0 where memory is corrected, which finds its own, but is {self.smoothing:g}"
            )
        share = checks.check_real("worst_share", self.worst_share, minimum=0, maximum=1)
        object.__setattr__(self, "worst_share", share)
        if self.rest is not None and not checks.is_array(self.rest):  # an array was checked when it was a number
            object.__setattr__(self, "rest", checks.check_integer("rest", self.rest, minimum=0))

    @property
    def values_a_report(self) -> int:
        """How often a report evaluates a batch: at one iterate, or at two."""
        return 2 if self.corrected else 1

    def rest_for(self, method: Method) -> int | Array:
        """How many rounds a client rests from being asked by need, under this rule.

        Args:
            method: the method.
        """
        if self.rest is not None:
            return self.rest
        return 0 if method.robust is None else 1

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


LEFT_OUT = -2
"""When a client was last heard that is left out."""


class Remembered(NamedTuple):
    """What the server remembers of every client.

    Attributes:
        objective: f̂_i; −∞ where it has none, or was never heard.
        constraint: ĝ_i.
        sums: the additive statistics of a pooled constraint; None for a plain one.
        heard_at: the round of its last report that counted; −1: never; −2: it is left out, and nobody waits for it.
        asked_at: the round in which it was last asked, whether it answered or not; −1: never.
        times: how often it was heard.
        travelled_at: how far the server had gone by then,
        travelled: and how far it has gone by now: Σ ‖w_{k+1} − w_k‖.
        order: in which order clients have their turns in the present pass,
        pass_number: and which pass that is; −1 before the first.
        forecasts: estimates of all that is reported, where memory is corrected; else None. What is believed of them
            is what is remembered.
    """

    objective: Float[Array, " n"]
    constraint: Float[Array, "n c"]
    sums: Float[Array, "n s"] | None
    heard_at: Int[Array, " n"]
    asked_at: Int[Array, " n"]
    times: Int[Array, " n"]
    travelled_at: Float[Array, " n"]
    travelled: Float[Array, ""]
    order: Int[Array, " n"]
    pass_number: Int[Array, ""]
    forecasts: Forecasts | None = None

    @property
    def heard(self) -> Bool[Array, " n"]:
        """Who was ever heard."""
        return self.heard_at >= 0

    @property
    def unheard(self) -> Bool[Array, " n"]:
        """Who was never heard, and is waited for."""
        return self.heard_at == -1


def nothing_remembered(
    clients: int, constraints: int, statistics: int | None, dtype: Any, *, corrected: bool = False
) -> Remembered:
    """Before the first round."""
    values = 1 + constraints + (statistics or 0)
    return Remembered(
        objective=jnp.full(clients, -jnp.inf, dtype),
        constraint=jnp.full((clients, constraints), -jnp.inf, dtype),
        sums=None if statistics is None else jnp.zeros((clients, statistics), dtype),
        heard_at=jnp.full(clients, -1, jnp.int32),
        asked_at=jnp.full(clients, -1, jnp.int32),
        times=jnp.zeros(clients, jnp.int32),
        travelled_at=jnp.zeros(clients, dtype),
        travelled=jnp.zeros((), dtype),
        order=jnp.arange(clients, dtype=jnp.int32),
        pass_number=jnp.int32(-1),
        forecasts=nothing_foreseen(clients, values, dtype) if corrected else None,
    )


def hear(
    memory: Memory, remembered: Remembered, k: Int[Array, ""], clients: Int[Array, " m"], reports: Reports
) -> Remembered:
    """Remember a round's reports. A client that was asked and lost stays as it was, and grows older."""
    before = take_clients(remembered._replace(forecasts=None), clients)
    mask, known = reports.mask, before.heard
    after = remembered._replace(
        heard_at=remembered.heard_at.at[clients].set(jnp.where(mask, k, before.heard_at)),
        asked_at=remembered.asked_at.at[clients].set(jnp.full_like(before.asked_at, k)),
        times=remembered.times.at[clients].set(before.times + mask),
        travelled_at=remembered.travelled_at.at[clients].set(
            jnp.where(mask, remembered.travelled, before.travelled_at)
        ),
    )
    if remembered.forecasts is not None:
        return _foreseen(after, remembered.forecasts, clients, reports, k - before.heard_at)

    def newest(old: Array, told: Array) -> Array:
        width = (slice(None),) + (None,) * (told.ndim - 1)
        blends = known[width] & jnp.isfinite(old) & jnp.isfinite(told)
        # A batch without rows of a class reports −∞; the value of an earlier batch is then kept.
        lacking = known[width] & jnp.isfinite(old) & jnp.isneginf(told)
        before, now = (jnp.where(blends, values, 0) for values in (old, told))
        mixed = memory.smoothing * before + (1 - memory.smoothing) * now
        newest = jnp.where(blends, mixed, told)
        return jnp.where(reports.mask[width] & ~lacking, newest, old).astype(old.dtype)

    def put(every: Array, some: Array) -> Array:
        return every.at[clients].set(some)

    sums = None
    if remembered.sums is not None and before.sums is not None and reports.sums is not None:
        sums = put(remembered.sums, newest(before.sums, reports.sums))
    return after._replace(
        objective=put(remembered.objective, newest(before.objective, reports.objective)),
        constraint=put(remembered.constraint, newest(before.constraint, reports.constraint)),
        sums=sums,
    )


def _foreseen(
    after: Remembered, forecasts: Forecasts, clients: Int[Array, " m"], reports: Reports, ages: Int[Array, " m"]
) -> Remembered:
    """What is remembered where it is estimates that go along with the server's steps."""
    assert reports.earlier is not None
    told, earlier = (
        jnp.concatenate([f[:, None], g, *([] if s is None else [s])], axis=1)
        for f, g, s in ((reports.objective, reports.constraint, reports.sums), reports.earlier)
    )
    foreseen, believed = corrected(forecasts, clients, reports.mask, ages, told, earlier)
    constraints = after.constraint.shape[1]
    return after._replace(
        objective=believed[:, 0],
        constraint=believed[:, 1 : 1 + constraints],
        sums=None if after.sums is None else jnp.where(after.heard[:, None], believed[:, 1 + constraints :], 0),
        forecasts=foreseen,
    )


def all_known(
    remembered: Remembered, objective: Float[Array, " n"], constraint: Float[Array, "n c"], k: int
) -> Remembered:
    """What is remembered where all clients were just judged on all their rows; not for pooled constraints.

    Args:
        remembered: what was remembered before.
        objective: f_i.
        constraint: g_i.
        k: the round.
    """
    f, g = objective.astype(remembered.objective.dtype), constraint.astype(remembered.constraint.dtype)
    foreseen = remembered.forecasts
    return remembered._replace(
        objective=f,
        constraint=g,
        heard_at=jnp.full_like(remembered.heard_at, k),
        times=remembered.times + 1,
        forecasts=None if foreseen is None else known(jnp.concatenate([f[:, None], g], axis=1)),
    )


class Everyone(Reports):
    """The reports of all clients, of whom there may be many.

    A single constraint's numbers are a vector: XLA goes through a matrix of one column several times as slowly.
    """

    __slots__ = ()

    @property
    def pairs(self) -> tuple[Array, Array]:
        """Of all pairs (client, constraint)."""
        if self.constraint.shape[1] > 1:
            return super().pairs
        values = self.constraint[:, 0]
        return values, self.mask & (values != -jnp.inf)


def decide(
    method: Method,
    rule_state: Any,
    remembered: Remembered,
    clients: Int[Array, " m"],
    reports: Reports,
    pooled: Float[Array, " c"] | None,
) -> tuple[Decision, Any]:
    """The rule's decision by all that is remembered; and its weights, and what is to be minimised, for those asked.

    The criterion and the switch bit are those of all clients ever heard. Directions come from those asked only, who are
    weighed among themselves, by what is remembered of them: where the client that blocks is not among them, the worst
    of those who are takes its place. A rule that wants a mean weighs them by how many clients each stands for.

    Args:
        method: the method.
        rule_state: its memory.
        remembered: what is remembered, this round's reports included.
        clients: who was asked.
        reports: what they reported.
        pooled: the constraint on all clients' data put together, by what is remembered, where it is pooled.
    """
    everyone = Everyone(remembered.objective, remembered.constraint, pooled, remembered.heard)
    if reports.clients is not None:
        everyone = everyone._replace(clients=jnp.arange(remembered.objective.shape[0], dtype=jnp.int32))
    by_all, after = robust.decide(method, rule_state, everyone)
    asked = as_remembered(remembered, clients, reports)._replace(pooled=pooled, bit=by_all.feasible)
    decision, _ = robust.decide(method, rule_state, asked)
    return decision._replace(criterion=by_all.criterion), after


def as_remembered(remembered: Remembered, clients: Int[Array, " m"], reports: Reports) -> Reports:
    """The reports of those asked, with what is remembered of them for what they said."""
    return reports._replace(objective=remembered.objective[clients], constraint=remembered.constraint[clients])


def widened(remembered: Remembered, clients: int) -> Remembered:
    """The same for more clients; of the new ones nothing is remembered."""
    known = remembered.objective.shape[0]
    statistics = None if remembered.sums is None else remembered.sums.shape[1]
    more = nothing_remembered(clients - known, remembered.constraint.shape[1], statistics, remembered.objective.dtype)
    foreseen = remembered.forecasts
    wide = append_clients(remembered._replace(forecasts=None), more)
    return wide._replace(forecasts=None if foreseen is None else foreseen.widened(clients))


def moved(remembered: Remembered, before: Any, after: Any) -> Remembered:
    """What is remembered after a step of the server."""
    squares = [jnp.square((a - b).astype(remembered.travelled.dtype)).sum() for a, b in _pairs(after, before)]
    return remembered._replace(travelled=remembered.travelled + jnp.sqrt(sum(squares)))


def _pairs(one: Any, other: Any) -> list[tuple[Array, Array]]:
    return list(zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))
