"""Restarts over Flower for a method without a step size, with an evaluation by all clients between them.

A round costs two exchanges, and an evaluation one. The start is evaluated once. After a restart, its last iterate, its
average and its best iterate are evaluated. Iterates are compared over the clients that reported on all of them.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from softswitch.engine.auto_tuning import MIN_RESTART_ROUNDS, choose_first_restart
from softswitch.engine.request import AUTOMATIC_AVERAGE
from softswitch.engine.restarts import MUCH_SMALLER, Answer, Restarts, candidates, next_factor, numbers_of, with_numbers
from softswitch.flower.remote import RemoteClients
from softswitch.flower.server_state import ServerState
from softswitch.flower.settings import StrategySettings
from softswitch.methods.base import Method
from softswitch.methods.schedules import FallingStep
from softswitch.oracles.base import Evaluation
from softswitch.problem.parameters import Params
from softswitch.results.status import Restart

logger = logging.getLogger("softswitch.flower")
FIRST_LOCAL = 1e-3  # the clients' step, relative to the server's, before the norm of a direction is known
THRESHOLD_GAIN, STUCK, FREE = 0.7, 0.02, 0.98
"""The threshold moves by this share of the constraint's distance to the tolerance, if the share of feasible rounds was
between the last two."""


class _Evaluated(NamedTuple):
    """An iterate and its values f_i and g_i at the clients that reported them, by index."""

    params: Params
    description: str
    values: dict[int, tuple[float, list[float]]]
    pooled: np.ndarray | None

    def over(self, clients: Collection[int], method: Method) -> Answer:
        """Return F and G over some clients; NaN over none."""
        if not clients:
            return Answer(self.params, math.nan, math.nan, self.description, math.nan)
        objective, constraint = zip(*(self.values[i] for i in sorted(clients)), strict=True)
        values = Evaluation(np.array(objective), np.array(constraint), self.pooled)
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
        self._best = _Evaluated(server.state.params, "the start", {}, None)

    def start(self) -> None:
        """Evaluate the start at all clients, and begin the first restart."""
        self._best = self._evaluate(self._server.state.params, "the start")
        values = self._best.over(self._best.values, self._requested)
        self._start_constraint = values.constraint
        logger.info("at the start F is %.4g and G is %.4g", values.objective, values.constraint)
        self._begin()

    def _begin(self) -> None:
        """Begin the next restart at the best answer so far."""
        choice, settings, done = self._choice, self._settings, self.done
        first = choice.first_step * math.sqrt(max(1.0, MIN_RESTART_ROUNDS / choice.next_length(done, len(self.past))))
        if self.past:
            first = self.past[-1].step_size * self._factor
        step = local = self._next_step(first, settings.average_last or AUTOMATIC_AVERAGE)
        has_local_steps = settings.local_steps > 1
        if has_local_steps:  # a local path is as long as the server's step
            scale = FIRST_LOCAL if math.isnan(self._direction_size) else 1 / self._direction_size
            local = replace(step, first=first / settings.local_steps * scale)
        start = self._start_constraint if math.isfinite(self._start_constraint) else self.tolerance
        # Never above the tolerance: there are too few restarts to recover from answers that violate it.
        threshold = self._next_threshold(start, self._best.params, above=False)
        method = self.method = choice.method(self._requested, step, self._momentum, threshold, local)
        self._measures_size = has_local_steps
        self._server.begin_restart(self._best.params, method, self.averaging_from, self._best.values)
        logger.info("rounds %d to %d use %s", done, self.end - 1, method)

    def after_round(self, *, may_begin: bool) -> None:
        """Adapt the clients' step; if the restart has ended, close it and begin the next if there is one."""
        server, size = self._server, self._server.direction_size
        if self._measures_size and self._requested.local_step_size is None and size is not None:
            self._set_local_step(size)
        if server.done >= min(self.end, self._choice.rounds) or server.has_diverged:
            self.close()
            if may_begin and not self._is_over:
                self._begin()

    @property
    def _is_over(self) -> bool:
        return self.done >= self._choice.rounds or self.has_diverged

    def close(self) -> None:
        """Evaluate the candidates of the present restart, and leave the best answer so far in the server's state."""
        server, begin, tolerance = self._server, self.done, self.tolerance
        diverged = server.has_diverged
        evaluated = [] if diverged else [self._evaluate(*candidate) for candidate in self._candidates(begin)]
        before, self._best = self._best, self._select_best(evaluated)
        common = self._best.values.keys() & before.values.keys()
        old, new = (one.over(common, self._requested) for one in (before, self._best))
        self._factor = MUCH_SMALLER if diverged else next_factor(old, new, tolerance) if evaluated else 1.0
        self._shift = 0.0
        if evaluated and not self._exact and STUCK < server.feasible_share(begin) < FREE:
            last = evaluated[0].over(evaluated[0].values, self._requested)
            shift = THRESHOLD_GAIN * (tolerance - last.constraint)
            self._shift = shift if math.isfinite(shift) else 0.0
        best, self.method = self._best.over(self._best.values, self._requested), server.method
        restart = self._finish(server.done, best, better=self._best is not before, diverged=diverged)
        logger.info("%s", restart)
        if not (diverged and self.has_diverged):
            server.end_restart(self._best.params, best.objective if best.constraint <= tolerance else math.inf)

    def to_checkpoint(self) -> tuple[Params, str]:
        """Return the best answer and the rest of the state as JSON."""
        best = self._best
        pooled = None if best.pooled is None else best.pooled.tolist()
        state = {
            "past": [restart.to_dict() for restart in self.past],
            "best": [best.description, list(best.values.items()), pooled],
            "next": [self._factor, self._shift, self._momentum, self._direction_size, self._measures_size],
            "start": self._start_constraint,
            "exact": self._exact,
            "now": [self.end, numbers_of(self._server.method)],
        }
        return best.params, json.dumps(state)

    def resume(self, params: Params, checkpoint: str, kept: Sequence[int]) -> None:
        """Continue from a checkpoint with some of its clients, which get new indices in this order."""
        state = json.loads(checkpoint)
        self.past = [Restart.from_dict(restart) for restart in state["past"]]
        description, values, pooled = state["best"]
        values = {kept.index(i): (objective, constraint) for i, (objective, constraint) in values if i in kept}
        pooled = None if pooled is None else np.asarray(pooled, float)
        self._best = _Evaluated(jax.tree.map(jnp.asarray, params), description, values, pooled)
        self._factor, self._shift, self._momentum, self._direction_size, self._measures_size = state["next"]
        self._start_constraint, self._exact = state["start"], state["exact"]
        self.end, numbers = state["now"]
        self._server.method = with_numbers(self._server.method, numbers)
        if self._server.done == self.done and not self._is_over:
            self._begin()

    def _evaluate(self, params: Params, description: str) -> _Evaluated:
        found = self._clients.evaluate_params(params, patient=False)
        reported = np.flatnonzero(~np.isnan(found.objective)).tolist()
        values = {i: (float(found.objective[i]), found.constraint[i].tolist()) for i in reported}
        return _Evaluated(params, description, values, found.pooled)

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
        reported = [one for one in evaluated if one.values]
        if not reported:
            return evaluated[-1] if evaluated else self._best
        common = set.intersection(*(set(one.values) for one in reported))
        if common & self._best.values.keys():
            reported, common = [self._best, *reported], common & self._best.values.keys()
        elif not common:
            return reported[-1]
        ranks = [one.over(common, self._requested).rank(self.tolerance) for one in reported]
        return reported[min(range(len(reported)), key=lambda i: (not np.isfinite(ranks[i]).all(), ranks[i]))]

    def _set_local_step(self, size: float) -> None:
        """Set the clients' step by the norm of the restart's first direction."""
        server = self._server
        step, local = server.method.step_size, server.method.local_step_size
        assert isinstance(step, FallingStep)
        assert isinstance(local, FallingStep)
        self._direction_size, self._measures_size = size if size > 0 else 1.0, False
        first = step.first / (self._settings.local_steps * self._direction_size)
        server.method = replace(server.method, local_step_size=replace(local, first=first))
        logger.info("a direction has norm %.3g, so the clients' step size is %.3g", self._direction_size, first)
