"""Restart cycles over Flower for a method without a step size, with an evaluation by all clients between them.

A round costs two exchanges, and an evaluation one. The start is evaluated once; after a cycle so are its last iterate,
its average and its best iterate. Iterates are compared over the clients that reported on all of them.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from softswitch.engine.auto_tuning import MIN_RESTART_ROUNDS, choose_first_restart
from softswitch.engine.restarts import (
    MUCH_SMALLER,
    Answer,
    Restarts,
    candidates,
    next_factor,
    numbers_of,
    with_numbers,
)
from softswitch.flower.remote import RemoteClients
from softswitch.flower.server_state import ServerState
from softswitch.flower.settings import StrategySettings
from softswitch.methods.base import Method
from softswitch.methods.schedules import FallingStep
from softswitch.oracles.base import Evaluation
from softswitch.problem.parameters import Params
from softswitch.results.status import Restart

logger = logging.getLogger("softswitch.flower")
FIRST_LOCAL = 1e-3
"""The clients' step, relative to the server's, before the norm of a direction is known; and the factor on it after a
round that is void because directions were rejected."""
THRESHOLD_GAIN, STUCK, FREE = 0.7, 0.02, 0.98
"""The threshold moves by this share of the constraint's distance to the tolerance, if the share of feasible rounds was
between the last two."""


class _Evaluated(NamedTuple):
    """An iterate and its values at every client; NaN for a client that did not report."""

    params: Params
    description: str
    objective: np.ndarray
    constraint: np.ndarray
    pooled: np.ndarray | None

    @property
    def reported(self) -> np.ndarray:
        return ~np.isnan(self.objective)

    def widen(self, clients: int) -> _Evaluated:
        """Return the same for more clients, which did not report."""
        more = clients - len(self.objective)
        objective = np.pad(self.objective, (0, more), constant_values=np.nan)
        constraint = np.pad(self.constraint, ((0, more), (0, 0)), constant_values=np.nan)
        return self._replace(objective=objective, constraint=constraint)

    def over(self, clients: np.ndarray, method: Method) -> Answer:
        """Return F and G over some clients; NaN over none."""
        if not clients.any():
            return Answer(self.params, math.nan, math.nan, self.description, math.nan)
        values = Evaluation(self.objective[clients], self.constraint[clients], self.pooled)
        return Answer.of(self.params, self.description, values, method)


class RemoteRestarts(Restarts):
    """The restarts of a run over Flower."""

    def __init__(
        self,
        requested: Method,
        rounds: int,
        server: ServerState,
        clients: RemoteClients,
        settings: StrategySettings,
        exact: bool,
    ) -> None:
        choice = choose_first_restart(
            server.state.params, rounds, may_end=False, exact=exact, jumps=clients.has_surrogate
        )
        super().__init__(choice, requested)
        self._server, self._clients, self._settings = server, clients, settings
        self._exact = exact
        self._direction_size, self._measures_size = math.nan, False
        self._start_constraint = math.nan
        no_values = np.zeros(0), np.zeros((0, server.constraints))
        self._best = _Evaluated(server.state.params, "the start", *no_values, None)

    def start(self) -> None:
        """Evaluate the start at all clients, and begin the first cycle."""
        self._best = self._evaluate(self._server.state.params, "the start")
        values = self._best.over(self._best.reported, self._requested)
        self._start_constraint = values.constraint
        logger.info("at the start F is %.4g and G is %.4g", values.objective, values.constraint)
        self._begin()

    def _begin(self) -> None:
        """Begin the next cycle at the best answer so far."""
        choice, settings, done = self._choice, self._settings, self.done
        first = choice.first_step * math.sqrt(max(1.0, MIN_RESTART_ROUNDS / choice.next_length(done, len(self.past))))
        if self.past:
            first = self.past[-1].step_size * self._factor
        step = local = self._next_step(first, settings.average_share(automatic=True))
        has_local_steps = settings.local_steps > 1
        if has_local_steps:  # a local path is as long as the server's step
            scale = FIRST_LOCAL if math.isnan(self._direction_size) else 1 / self._direction_size
            local = replace(step, first=first / settings.local_steps * scale)
        start = self._start_constraint if math.isfinite(self._start_constraint) else self.tolerance
        # Never above the tolerance: there are too few restarts to recover from answers that violate it.
        threshold = self._next_threshold(start, self._best.params, above=False)
        method = self.method = choice.method(self._requested, step, self._momentum, threshold, local)
        self._measures_size = has_local_steps
        best = self._best
        self._server.begin_cycle(best.params, method, self.averaging_from, (best.objective, best.constraint))
        logger.info("rounds %d to %d use %s", done, self.end - 1, method)

    def after_round(self, *, may_begin: bool) -> None:
        """Adapt the clients' step; if the cycle has ended, close it and begin the next if there is one."""
        server = self._server
        if self._measures_size and self._requested.local_step_size is None:
            self._adapt_local_step(server.direction_size)
        if server.done >= min(self.end, self._choice.rounds) or server.has_diverged:
            self.close()
            if may_begin and not self._is_over:
                self._begin()

    @property
    def _is_over(self) -> bool:
        return self.done >= self._choice.rounds or self.has_diverged

    def close(self) -> None:
        """Evaluate the candidates of the present cycle, and leave the best answer so far in the server's state."""
        server, begin, tolerance = self._server, self.done, self.tolerance
        diverged = server.has_diverged
        evaluated = [] if diverged else [self._evaluate(*candidate) for candidate in self._candidates(begin)]
        before, self._best = self._best, self._select_best(evaluated)
        common = self._best.reported & before.widen(len(self._best.objective)).reported
        old, new = (one.widen(len(common)).over(common, self._requested) for one in (before, self._best))
        self._factor = MUCH_SMALLER if diverged else next_factor(old, new, tolerance) if evaluated else 1.0
        self._shift = 0.0
        if evaluated and not self._exact and STUCK < server.feasible_share(begin) < FREE:
            last = evaluated[0].over(evaluated[0].reported, self._requested)
            shift = THRESHOLD_GAIN * (tolerance - last.constraint)
            self._shift = shift if math.isfinite(shift) else 0.0
        best, self.method = self._best.over(self._best.reported, self._requested), server.method
        restart = self._finish(server.done, best, better=self._best is not before, diverged=diverged)
        logger.info("%s", restart)
        if not (diverged and self.has_diverged):
            server.end_cycle(self._best.params, best.objective if best.constraint <= tolerance else math.inf)

    def to_checkpoint(self) -> tuple[Params, str]:
        """Return the best answer and the rest of the state as JSON."""
        best = self._best
        pooled = None if best.pooled is None else best.pooled.tolist()
        state = {
            "past": [cycle.to_dict() for cycle in self.past],
            "best": [best.description, best.objective.tolist(), best.constraint.tolist(), pooled],
            "next": [self._factor, self._shift, self._momentum, self._direction_size, self._measures_size],
            "start": self._start_constraint,
            "exact": self._exact,
            "now": [self.end, numbers_of(self._server.method)],
        }
        return best.params, json.dumps(state)

    def resume(self, params: Params, checkpoint: str, excluded: list[int]) -> None:
        """Continue from a checkpoint, without the values of excluded clients."""
        state = json.loads(checkpoint)
        self.past = [Restart.from_dict(cycle) for cycle in state["past"]]
        description, objective, constraint, pooled = state["best"]
        best = _Evaluated(
            jax.tree.map(jnp.asarray, params),
            description,
            np.asarray(objective, float),
            np.asarray(constraint, float).reshape(-1, self._server.constraints),
            None if pooled is None else np.asarray(pooled, float),
        ).widen(max([len(objective), *(index + 1 for index in excluded)]))
        best.objective[excluded], best.constraint[excluded] = np.nan, np.nan
        self._best = best
        self._factor, self._shift, self._momentum, self._direction_size, self._measures_size = state["next"]
        self._start_constraint, self._exact = state["start"], state["exact"]
        self.end, numbers = state["now"]
        self._server.method = with_numbers(self._server.method, numbers)
        if self._server.done == self.done and not self._is_over:
            self._begin()

    def _evaluate(self, params: Params, description: str) -> _Evaluated:
        values: Evaluation = self._clients.judge_now(params)
        return _Evaluated(params, description, values.objective, values.constraint, values.pooled)

    def _candidates(self, begin: int) -> list[tuple[Params, str]]:
        """Return the iterates that may be the answer, the last iterate first; none if no round counted."""
        server = self._server
        if not np.isfinite(server.state.best.criterion):
            return []
        every = candidates(server.state, begin, server.done, server.averaging_from, self._settings.answer)
        return list(every.values())

    def _select_best(self, evaluated: Sequence[_Evaluated]) -> _Evaluated:
        """Return the best of these and of the best so far, over the clients that reported on all of them.

        If no client reported on any of these, return the last one: the best by its reports.
        """
        reported = [one for one in evaluated if one.reported.any()]
        if not reported:
            return evaluated[-1] if evaluated else self._best
        clients = max(len(one.objective) for one in reported)
        before = self._best.widen(clients)
        wide = [one.widen(clients) for one in reported]
        common = np.logical_and.reduce([one.reported for one in wide])
        if (common & before.reported).any():
            wide, reported, common = [before, *wide], [self._best, *reported], common & before.reported
        elif not common.any():
            return reported[-1]
        tolerance = self.tolerance
        ranks = [one.over(common, self._requested).rank(tolerance) for one in wide]
        return reported[min(range(len(reported)), key=lambda i: (not np.isfinite(ranks[i]).all(), ranks[i]))]

    def _adapt_local_step(self, size: float | None) -> None:
        """Set the clients' step by the norm of the cycle's first direction; lower it after rejected directions."""
        server = self._server
        step, local = server.method.step_size, server.method.local_step_size
        assert isinstance(step, FallingStep)
        assert isinstance(local, FallingStep)
        if size is None:
            if math.isnan(self._direction_size) and server.has_bad_updates:
                smaller = replace(local, first=local.first * FIRST_LOCAL)
                server.method = replace(server.method, local_step_size=smaller)
            return
        self._direction_size, self._measures_size = size if size > 0 else 1.0, False
        first = step.first / (self._settings.local_steps * self._direction_size)
        server.method = replace(server.method, local_step_size=replace(local, first=first))
        logger.info("a direction has norm %.3g, so the clients' step size is %.3g", self._direction_size, first)
