"""Client memory: the server keeps every client's last report, so that the switch is based on all clients."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from softswitch.methods.drift_correction import Forecasts
from softswitch.methods.messages import Decision, Reports
from softswitch.methods.parts import Decide, Part
from softswitch.problem.parameters import Params, float_dtype
from softswitch.support import checks
from softswitch.support.arrays import append_clients, take_clients
from softswitch.support.function_equality import TracedSettings

WORST_SHARE = 2 / 3  # fraction of a round's participants that are selected by their remembered values


class Places(NamedTuple):
    """Numbers of clients in a round that are selected by constraint ĝ, by objective f̂, and in turn."""

    by_constraint: int
    by_objective: int
    in_turn: int

    @property
    def total(self) -> int:
        """Number m of clients in a round."""
        return self.by_constraint + self.by_objective + self.in_turn


@dataclass(frozen=True, kw_only=True)
class Memory(TracedSettings):
    """Settings of the server's memory of its clients' reports; for ``Sampling(memory=Memory())``.

    Attributes:
        smoothing: β in [0, 1): the memory is a running mean of a client's reports with weight 1 − β for the newest.
            A larger β reduces the noise of the switch, and follows more slowly. Default: 0, the last report.
        corrected: Use drift-corrected estimates: every client also reports the values of its batch at the previous
            iterate, at twice the cost, and its estimate moves by the difference. The decay rate is chosen during the
            run, and ``smoothing`` must be 0. For reports on few rows, whose maximum is mostly noise. Default: False.
    """

    smoothing: float = 0.0
    corrected: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "smoothing", checks.check_fraction("smoothing", self.smoothing))
        checks.check_instance("corrected", self.corrected, bool)
        if self.corrected and self.smoothing:
            raise ValueError(f"smoothing must be 0 for a corrected memory, but is {self.smoothing:g}")

    @property
    def values_a_report(self) -> int:
        """Number of iterates at which a client evaluates the batch of a report: 2 if ``corrected``, else 1."""
        return 2 if self.corrected else 1

    def places(self, participants: int) -> Places:
        """Return how many participants are selected by constraint, by objective and in turn.

        Args:
            participants: Number of clients m in a round.
        """
        worst = min(participants - 1, round(WORST_SHARE * participants))
        return Places(math.ceil(worst / 2), worst // 2, participants - worst)

    def longest_wait(self, clients: int, participants: int) -> int:
        """Return the largest possible number of rounds between two reports of a client.

        Args:
            clients: Number of clients n.
            participants: Number of clients m in a round.
        """
        if participants == clients:
            return 1
        return 2 * math.ceil(clients / self.places(participants).in_turn) - 1


class Remembered(NamedTuple):
    """State of the client memory: what the server remembers of each of the n clients."""

    objective: Float[Array, " n"]  # f̂_i; −∞ for a client without an objective or without a report
    constraint: Float[Array, "n c"]  # ĝ_i; −∞ if unknown
    sums: Float[Array, "n s"] | None  # additive statistics of a pooled constraint; None for a plain one
    reported_at: Int[Array, " n"]  # round of its last report; −1 if it never reported
    selected_at: Int[Array, " n"]  # round in which it was last selected; −1 if never
    times: Int[Array, " n"]  # number of its reports
    order: Int[Array, " n"]  # order in which clients are selected in turn in the current pass
    pass_number: Int[Array, ""]  # number of the current pass; −1 before the first
    forecasts: Forecasts | None = None  # drift-corrected estimates, if the memory is corrected

    @classmethod
    def empty(cls, clients: int, constraints: int, statistics: Any, dtype: Any, corrected: bool = False) -> Remembered:
        """Return the memory before the first round; ``statistics`` is the number of a pooled constraint's, or None."""
        values, none = 1 + constraints + (statistics or 0), jnp.full(clients, -1, jnp.int32)
        return cls(
            objective=jnp.full(clients, -jnp.inf, dtype),
            constraint=jnp.full((clients, constraints), -jnp.inf, dtype),
            sums=None if statistics is None else jnp.zeros((clients, statistics), dtype),
            reported_at=none,
            selected_at=none,
            times=jnp.zeros(clients, jnp.int32),
            order=jnp.arange(clients, dtype=jnp.int32),
            pass_number=jnp.int32(-1),
            forecasts=Forecasts.empty(clients, values, dtype) if corrected else None,
        )

    @property
    def known(self) -> Bool[Array, " n"]:
        """Whether each client has reported at least once."""
        return self.reported_at >= 0

    def hear(self, smoothing: Any, k: Int[Array, ""], clients: Int[Array, " m"], reports: Reports) -> Remembered:
        """Return the memory after round k's reports; a selected client that did not report keeps its values."""
        before = take_clients(self._replace(forecasts=None), clients)
        mask, known = reports.mask, before.known

        def put(every: Array, some: Array) -> Array:
            return every.at[clients].set(some)

        after = self._replace(
            reported_at=put(self.reported_at, jnp.where(mask, k, before.reported_at)),
            selected_at=put(self.selected_at, jnp.full_like(before.selected_at, k)),
            times=put(self.times, before.times + mask),
        )
        if self.forecasts is not None:
            return after._correct(self.forecasts, clients, reports, k - before.reported_at)

        def blend(old: Array, reported: Array) -> Array:
            width = (slice(None),) + (None,) * (reported.ndim - 1)
            blends = known[width] & jnp.isfinite(old) & jnp.isfinite(reported)
            # A batch without rows of a class reports −∞; the value of an earlier batch is then kept.
            is_missing = known[width] & jnp.isfinite(old) & jnp.isneginf(reported)
            past, now = (jnp.where(blends, values, 0) for values in (old, reported))
            newest = jnp.where(blends, smoothing * past + (1 - smoothing) * now, reported)
            return jnp.where(mask[width] & ~is_missing, newest, old).astype(old.dtype)

        sums = None
        if self.sums is not None and before.sums is not None and reports.sums is not None:
            sums = put(self.sums, blend(before.sums, reports.sums))
        return after._replace(
            objective=put(self.objective, blend(before.objective, reports.objective)),
            constraint=put(self.constraint, blend(before.constraint, reports.constraint)),
            sums=sums,
        )

    def _correct(self, forecasts: Forecasts, clients: Array, reports: Reports, ages: Int[Array, " m"]) -> Remembered:
        """Return the memory with drift-corrected estimates; ``ages`` are the rounds since the last reports."""
        assert reports.earlier is not None
        now, earlier = (
            jnp.concatenate([f[:, None], g, *([] if s is None else [s])], axis=1)
            for f, g, s in ((reports.objective, reports.constraint, reports.sums), reports.earlier)
        )
        forecasts, estimates = forecasts.correct(clients, reports.mask, ages, now, earlier)
        constraints = self.constraint.shape[1]
        return self._replace(
            objective=estimates[:, 0],
            constraint=estimates[:, 1 : 1 + constraints],
            sums=None if self.sums is None else jnp.where(self.known[:, None], estimates[:, 1 + constraints :], 0),
            forecasts=forecasts,
        )

    def with_values(
        self, objective: Float[Array, " n"], constraint: Float[Array, "n c"], reported: Bool[Array, " n"], k: Any
    ) -> Remembered:
        """Return the memory with new values of clients where ``reported`` is True; pooled statistics are unchanged."""
        forecasts = self.forecasts
        if forecasts is not None:
            forecasts = forecasts.with_values(jnp.concatenate([objective[:, None], constraint], axis=1), reported)
        return self._replace(
            objective=jnp.where(reported, objective.astype(self.objective.dtype), self.objective),
            constraint=jnp.where(reported[:, None], constraint.astype(self.constraint.dtype), self.constraint),
            reported_at=jnp.where(reported, jnp.int32(k), self.reported_at),
            times=self.times + reported,
            forecasts=forecasts,
        )

    def widen(self, clients: int) -> Remembered:
        """Return the memory extended to ``clients`` clients; the additional ones have not reported."""
        known = self.objective.shape[0]
        statistics = None if self.sums is None else self.sums.shape[1]
        more = Remembered.empty(clients - known, self.constraint.shape[1], statistics, self.objective.dtype)
        wide = append_clients(self._replace(forecasts=None), more)
        return wide._replace(forecasts=None if self.forecasts is None else self.forecasts.widened(clients))

    def of(self, clients: Int[Array, " m"]) -> Remembered:
        """Return a memory of only the given clients, with a new order of turns."""
        forecasts = self.forecasts
        return take_clients(self._replace(forecasts=None), clients)._replace(
            order=jnp.arange(len(clients), dtype=jnp.int32),
            pass_number=jnp.int32(-1),
            forecasts=None if forecasts is None else forecasts._replace(estimates=forecasts.estimates[clients]),
        )

    def values_of(self, clients: Int[Array, " m"], reports: Reports) -> Reports:
        """Return the reports of the participants ``clients`` with the remembered instead of the reported values."""
        return reports._replace(objective=self.objective[clients], constraint=self.constraint[clients])


class ClientMemory(Part):
    """Hooks of the server step for ``Memory``; the state is ``Remembered``.

    The criterion and the switch use the remembered reports of all clients. The weights use those of the participants
    only: if the client that violates the constraint most does not take part, the worst participant replaces it.
    """

    name = "memory"

    def __init__(self, memory: Memory, byzantine: Any = None, pool: Callable[[Array], Any] | None = None) -> None:
        self.memory, self.byzantine, self.pool = memory, byzantine, pool

    def init(self, params: Params, clients: int, constraints: int, statistics: int | None) -> Remembered:
        """Return the memory before the first round."""
        return Remembered.empty(clients, constraints, statistics, float_dtype(params), self.memory.corrected)

    def hear(self, state: Remembered, k: Array, clients: Array, reports: Reports) -> Remembered:
        """Return the memory after the reports of round k."""
        return state.hear(self.memory.smoothing, k, clients, reports)

    def wrap(self, decide: Decide, state: Remembered, clients: Array) -> Decide:
        """Return ``decide`` with the criterion of all remembered reports and weights for the participants."""
        memory = state

        def decide_by_memory(state: Any, reports: Reports) -> tuple[Decision, Any]:
            pooled = None
            if memory.sums is not None:
                assert self.pool is not None
                pooled = self.pool(memory.sums.sum(axis=0))
            everyone = Reports(memory.objective, memory.constraint, pooled, memory.known)
            if reports.clients is not None:
                everyone = everyone._replace(clients=jnp.arange(memory.objective.shape[0], dtype=jnp.int32))
            by_all, after = decide(state, everyone)
            participants = memory.values_of(clients, reports)._replace(pooled=pooled, bit=by_all.feasible)
            decision, _ = decide(state, participants)
            return decision._replace(criterion=by_all.criterion), after

        return decide_by_memory

    def may_average(self, state: Remembered) -> Bool[Array, ""]:
        """Return whether all clients have reported, except at most b if b clients may be Byzantine."""
        return (~state.known).sum() <= (0 if self.byzantine is None else self.byzantine)

    def record(self, state: Remembered, k: Array) -> dict[str, Any]:
        """Return the number of clients that never reported, and the age of the oldest report in rounds."""
        oldest = k - jnp.where(state.known, state.reported_at, k).min(initial=k)
        return {"unheard": (~state.known).sum(), "oldest": oldest}
