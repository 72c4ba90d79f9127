"""A run over Flower that chooses for itself: cycles as in the compiled engine, with an evaluation by all between them.

An evaluation costs an exchange, and a round two. So there is one of the start, and one each of the last iterate, the
average and the best by its reports after a cycle; nothing else is asked for. What too few clients tell is compared over
those that tell of all.
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

from softswitch.engine.auto_tuning import MOMENTUM, SHORTEST_CYCLE, first_choice
from softswitch.engine.restart_decisions import (
    MUCH_SMALLER,
    Found,
    candidates,
    diverges,
    momentum_of,
    next_factor,
    next_length,
    next_threshold,
    rounds_done,
    with_numbers,
)
from softswitch.flower.remote import RemoteClients
from softswitch.flower.server_state import RunState
from softswitch.flower.settings import StrategySettings
from softswitch.methods.base import Method
from softswitch.methods.round import State, first_to_average
from softswitch.methods.schedules import FallingStep
from softswitch.oracles.base import Evaluation
from softswitch.problem.parameters import Params
from softswitch.results.restart import Restart

logger = logging.getLogger("softswitch.flower")
FIRST_LOCAL = 1e-3
"""The clients' step before it is known how long a direction is, a share of the server's; and what it is multiplied by
after a round that is void because directions were not finite, or absurd."""
CORRECTED, STUCK, FREE = 0.7, 0.02, 0.98
"""A threshold moves by this share of what a cycle ended off the tolerance, if the share of feasible rounds was between
these."""


class _Told(NamedTuple):
    """An iterate, and what the clients told of it; NaN for one that did not."""

    params: Params
    words: str
    objective: np.ndarray
    constraint: np.ndarray
    pooled: np.ndarray | None

    @property
    def known(self) -> np.ndarray:
        """Which clients told of it."""
        return ~np.isnan(self.objective)

    def widened(self, many: int) -> _Told:
        """The same for so many clients; those met since then did not tell of it."""
        more = many - len(self.objective)
        objective = np.pad(self.objective, (0, more), constant_values=np.nan)
        constraint = np.pad(self.constraint, ((0, more), (0, 0)), constant_values=np.nan)
        return self._replace(objective=objective, constraint=constraint)

    def over(self, clients: np.ndarray, method: Method) -> Found:
        """F and G over some clients; NaN over none."""
        if not clients.any():
            return Found(self.params, math.nan, math.nan, self.words, math.nan)
        some = Evaluation(self.objective[clients], self.constraint[clients], self.pooled)
        return Found.of(self.params, self.words, some, method)


class RemoteCycles:
    """The cycles of one run.

    Attributes:
        past: those that are over.
        end: the round after the present one's last.
    """

    def __init__(
        self, asked: Method, rounds: int, run: RunState, clients: RemoteClients, settings: StrategySettings, exact: bool
    ) -> None:
        self._asked, self._run, self._clients, self._settings = asked, run, clients, settings
        self._choice = first_choice(run.state.params, rounds, may_end=False, exact=exact, jumps=clients.has_surrogate)
        self.past: list[Restart] = []
        self.end = 0
        self._factor, self._shift, self._momentum = 1.0, 0.0, MOMENTUM
        self._exact = exact
        self._size, self._measures = math.nan, False  # the length of a direction, and whether it is yet to be seen
        self._start_constraint = math.nan
        self._best = _Told(run.state.params, "the start", np.zeros(0), np.zeros((0, run.constraints)), None)

    @property
    def done(self) -> int:
        """How many rounds the cycles that are over took."""
        return rounds_done(self.past)

    @property
    def over(self) -> bool:
        """Whether all rounds are run, or nothing stays finite."""
        return self.done >= self._choice.rounds or self.hopeless

    @property
    def hopeless(self) -> bool:
        """Whether nothing stays finite."""
        return diverges(self.past)

    def look_at_start(self) -> None:
        """Ask all clients how good the start is."""
        self._best = self._told(self._run.state.params, "the start")
        start = self._best.over(self._best.known, self._asked)
        self._start_constraint = start.constraint
        logger.info("at the start F is %.4g and G is %.4g", start.objective, start.constraint)

    def begin(self) -> None:
        """Choose the next cycle, and have the run begin it at the best answer so far."""
        choice, run, done = self._choice, self._run, self.done
        length = next_length(choice, self.past)
        self._momentum = momentum_of(length, self.past)
        first = choice.first_step * math.sqrt(max(1.0, SHORTEST_CYCLE / length))
        if self.past:
            first = self.past[-1].step_size * self._factor
        step = FallingStep(first=first, rounds=length, begin=done)
        several = self._settings.local_steps > 1
        local = replace(step, first=first / self._settings.local_steps * self._local_share()) if several else step
        method = choice.method(self._asked, step, self._momentum, self._next_threshold(), local)
        self.end, self._measures = done + length, several
        averaging_from = done + first_to_average(length, self._settings.average_share(chosen=True))
        run.begin(self._best.params, method, averaging_from, (self._best.objective, self._best.constraint))
        logger.info("rounds %d to %d are run by %s", done, self.end - 1, method)

    def after_round(self, *, begins: bool) -> None:
        """Learn how long directions are; where the present cycle has ended, close it, and begin the next if it may."""
        run = self._run
        if self._measures and self._asked.local_step_size is None:
            self._learn_size(run.direction_size)
        if run.done >= min(self.end, self._choice.rounds) or run.diverged:
            self.close()
            if begins and not self.over:
                self.begin()

    def close(self) -> None:
        """Judge what the present cycle found, and leave the best answer so far as the run's."""
        run, begin, tolerance = self._run, self.done, float(self._asked.tolerance)
        diverged = run.diverged
        found = [] if diverged else [self._told(*one) for one in self._candidates(run.state, begin)]
        before, self._best = self._best, self._best_of(found)
        both = self._best.known & before.widened(len(self._best.objective)).known
        old, new = (told.widened(len(both)).over(both, self._asked) for told in (before, self._best))
        self._factor = MUCH_SMALLER if diverged else next_factor(old, new, tolerance) if found else 1.0
        self._shift = 0.0
        if found and not self._exact and STUCK < run.share_since(begin) < FREE:
            shift = CORRECTED * (tolerance - found[0].over(found[0].known, self._asked).constraint)
            self._shift = shift if math.isfinite(shift) else 0.0
        best, step = self._best.over(self._best.known, self._asked), run.method.step_size
        assert isinstance(step, FallingStep)
        cycle = Restart(
            begin=begin,
            end=run.done,
            step_size=float(step.first),
            momentum=self._momentum,
            threshold=float(run.method.switch_at),
            objective=best.objective,
            constraint=best.constraint,
            answer=best.words,
            better=self._best is not before,
            diverged=diverged,
            aim=best.aim,
        )
        self.past.append(cycle)
        logger.info("%s", cycle)
        if not (diverged and self.hopeless):
            run.settle(self._best.params, best.objective if best.constraint <= tolerance else math.inf)

    def journal(self) -> tuple[Params, str]:
        """What a checkpoint keeps of the cycles so far."""
        best = self._best
        told = {
            "past": [cycle.to_dict() for cycle in self.past],
            "best": [
                best.words,
                best.objective.tolist(),
                best.constraint.tolist(),
                None if best.pooled is None else best.pooled.tolist(),
            ],
            "next": [self._factor, self._shift, self._momentum, self._size, self._measures],
            "start": self._start_constraint,
            "exact": self._exact,
            "now": [self.end, self._run.numbers],
        }
        return best.params, json.dumps(told)

    def go_on(self, params: Params, journal: str, gone: list[int]) -> None:
        """Take up the cycles that a checkpoint has kept: nothing is chosen again. Those ``gone`` do not count now."""
        told = json.loads(journal)
        self.past = [Restart.from_dict(one) for one in told["past"]]
        words, objective, constraint, pooled = told["best"]
        self._best = _Told(
            jax.tree.map(jnp.asarray, params),
            words,
            np.asarray(objective, float),
            np.asarray(constraint, float).reshape(-1, self._run.constraints),
            None if pooled is None else np.asarray(pooled, float),
        )
        self._forget(gone)
        self._factor, self._shift, self._momentum, self._size, self._measures = told["next"]
        self._start_constraint, self._exact = told["start"], told["exact"]
        self.end, numbers = told["now"]
        self._run.method = with_numbers(self._run.method, numbers)
        if self._run.done == self.done and not self.over:
            self.begin()

    def _forget(self, clients: list[int]) -> None:
        """What some clients told of the best answer so far does not count any longer."""
        best = self._best.widened(max([len(self._best.objective), *(index + 1 for index in clients)]))
        objective, constraint = best.objective.copy(), best.constraint.copy()
        objective[clients], constraint[clients] = np.nan, np.nan
        self._best = best._replace(objective=objective, constraint=constraint)

    def _told(self, params: Params, words: str) -> _Told:
        judged: Evaluation = self._clients.judge_now(params)
        return _Told(params, words, judged.objective, judged.constraint, judged.pooled)

    def _candidates(self, state: State, begin: int) -> list[tuple[Params, str]]:
        """The iterates that may be the answer; the first is where the cycle ended. None where no round counted."""
        if not np.isfinite(state.best.criterion):
            return []
        every = candidates(state, begin, self._run.done, self._run.averaging_from, self._settings.answer)
        return list(every.values())

    def _best_of(self, found: Sequence[_Told]) -> _Told:
        """The best of these and of what there was, over the clients that told of all of them.

        Where nobody told of any of these, the last of them is taken: the best by its reports.
        """
        told = [one for one in found if one.known.any()]
        if not told:
            return found[-1] if found else self._best
        many = max(len(one.objective) for one in told)
        before = self._best.widened(many)
        everyone = [one.widened(many) for one in told]
        common = np.logical_and.reduce([one.known for one in everyone])
        if (common & before.known).any():
            everyone, told, common = [before, *everyone], [self._best, *told], common & before.known
        elif not common.any():
            return told[-1]
        tolerance = float(self._asked.tolerance)
        ranks = [one.over(common, self._asked).rank(tolerance) for one in everyone]
        return told[min(range(len(told)), key=lambda i: (not np.isfinite(ranks[i]).all(), ranks[i]))]

    def _next_threshold(self) -> float:
        tolerance = float(self._asked.tolerance)
        start = self._start_constraint if math.isfinite(self._start_constraint) else tolerance
        # Never above the tolerance: there are too few cycles to come back from answers that violate it.
        jumps = self._choice.jumps
        return next_threshold(tolerance, start, self.past, self._shift, self._best.params, above=False, jumps=jumps)

    def _local_share(self) -> float:
        """What the clients' step is multiplied by, so that a local path is as long as the server's step."""
        return FIRST_LOCAL if math.isnan(self._size) else 1 / self._size

    def _learn_size(self, size: float | None) -> None:
        """Set the clients' step by how long the direction of the cycle's first round is; where it is void, lower it."""
        run = self._run
        step, local = run.method.step_size, run.method.local_step_size
        assert isinstance(step, FallingStep)
        assert isinstance(local, FallingStep)
        if size is None:
            if math.isnan(self._size) and run.rejected:
                run.method = replace(run.method, local_step_size=replace(local, first=local.first * FIRST_LOCAL))
            return
        self._size, self._measures = size if size > 0 else 1.0, False
        first = step.first / (self._settings.local_steps * self._size)
        run.method = replace(run.method, local_step_size=replace(local, first=first))
        logger.info("a direction has length %.3g, so clients step by %.3g", self._size, first)
