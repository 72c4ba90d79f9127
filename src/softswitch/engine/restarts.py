"""A run that chooses for itself goes in cycles: each begins from the best answer so far, and its step falls to 0.

After a cycle its last iterate, the average of the feasible ones in its second half and the best by its reports are
judged on all training data. The best of them and of what there was before is where the next cycle begins. A cycle that
gained much, or the second in a row that gained, is followed by one with twice its step, one that gained nothing by one
with a third of it; each has √2 times the rounds of the one before. Where reports are noisy, the threshold moves by how
far they were off at its end. Where the constraint moves in jumps there are many places that small steps do not lead
away from, and large ones miss some: the first cycle has a far larger step, the second begins at the start as well, with
the usual one, and the better of both goes on.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from softswitch.engine import compiled
from softswitch.engine.auto_tuning import FARTHER, MOMENTUM, Choice
from softswitch.engine.request import Request
from softswitch.engine.restart_decisions import (
    MUCH_SMALLER,
    Found,
    candidates,
    diverges,
    momentum_of,
    next_factor,
    next_length,
    next_threshold,
    numbers_of,
    rounds_done,
    with_numbers,
)
from softswitch.methods.base import Method
from softswitch.methods.consistency import elsewhere
from softswitch.methods.memory import all_known
from softswitch.methods.round import State, first_to_average
from softswitch.methods.schedules import FallingStep
from softswitch.problem.parameters import Params
from softswitch.results.history import History
from softswitch.results.restart import Restart

NOTHING, NOTHING_OF_START, CYCLES_OF_NOTHING, FEWEST_CYCLES = 3e-4, 2e-5, 3, 5
"""A run may end where its last cycles together gained less than these shares of F and of F at the start."""
ROOM, ROOM_FOR_NOISE, TAIL = 1e-3, 0.2, 0.1
"""Where reports are noisy: how far below the tolerance to aim, as shares of it and of what reports are off by; and over
which last part of a cycle that is measured."""


NEAR_STEP = 1 / FARTHER
"""What the step of a second cycle that begins at the start is multiplied by."""


class Cycles:
    """The cycles of one run.

    Attributes:
        method: the method of the present cycle.
        end: the round after its last.
        averaging_from: the first round that may join its average.
        past: the cycles that are over.
        best: the best answer so far.
        start: where it began.
    """

    def __init__(self, request: Request, choice: Choice, asked: Method, seed: int) -> None:
        self._request, self._choice, self._asked = request, choice, asked
        self._key = jax.random.key(seed)
        self.past: list[Restart] = []
        self._first = request.first_state(choice.template(asked))
        # Later cycles begin from an answer to which the moments and the average of a run before do not belong.
        cold = replace(request, warm_start=None)
        self._later = self._first if request.warm_start is None else cold.first_state(choice.template(asked))
        self.best = self._judged(self._first.params, "the start")
        self.start = self.best
        self.method, self.end, self.averaging_from = self.template, 0, 0
        self._factor, self._shift, self._momentum = 1.0, 0.0, MOMENTUM

    @property
    def done(self) -> int:
        """How many rounds the cycles that are over took."""
        return rounds_done(self.past)

    def ended(self, state: State, done: int) -> bool:
        """Whether the present cycle has run its rounds, or diverged, and waits to be closed."""
        return self.done < done and (done >= self.end or int(state.diverged_at) >= 0)

    @property
    def hopeless(self) -> bool:
        """Whether there is nothing to begin from, or nothing stays finite and nothing was found."""
        return not self.start.finite or (diverges(self.past) and self.best.words == self.start.words)

    @property
    def over(self) -> bool:
        """Whether all rounds are run, or nothing more is gained."""
        choice, done = self._choice, self.done
        if done >= choice.rounds or self.hopeless or diverges(self.past):
            return done > 0
        if not (choice.may_end and choice.exact) or len(self.past) < FEWEST_CYCLES or not self._feasible(self.best):
            return False
        before = self.past[-1 - CYCLES_OF_NOTHING]
        if before.constraint > self._asked.tolerance:
            return False
        little = NOTHING * abs(self.best.aim) + NOTHING_OF_START * abs(self.start.aim)
        return before.aim - self.best.aim <= little

    @property
    def template(self) -> Method:
        """The method of the first cycle, before anything is known of the clients."""
        return self._choice.template(self._asked)

    def span(self, of_run: compiled.Span) -> compiled.Span:
        """The traced numbers of a chunk within the present cycle."""
        return of_run._replace(last=self.end, averaging_from=self.averaging_from)

    def begin(self, after: State | None = None) -> State:
        """Choose the next cycle; the state to begin it with.

        Args:
            after: the state that the cycle before left, if there was one.
        """
        choice, done = self._choice, self.done
        length = next_length(choice, self.past)
        first = self.past[-1].step_size * self._factor if self.past else choice.first_step
        step = FallingStep(first=first, rounds=length, begin=done)
        self._momentum = momentum_of(length, self.past)
        threshold = next_threshold(
            float(self._asked.tolerance),
            self.start.constraint,
            self.past,
            self._shift,
            self.best.params,
            above=not choice.exact,
            jumps=choice.jumps,
        )
        origin = self.start if self._begins_anew else self.best
        state, self.method = self._cold(origin, done), choice.method(self._asked, step, self._momentum, threshold)
        if self._request.oracle.local_steps > 1 and self._asked.local_step_size is None:
            size = float(
                self._request.engine.direction_size(self._request.parts(self.method), self._key, jnp.int32(done), state)
            )
            by_clients = self._request.oracle.local_steps * (size if size > 0 else 1.0)
            self.method = replace(self.method, local_step_size=replace(step, first=first / by_clients))
        self.end = done + length
        self.averaging_from = done + first_to_average(length, self._request.settings.average_last)
        if after is not None and after.consistency is not None:
            state = state._replace(consistency=elsewhere(after.consistency))
        return state if after is None or not self._asked.goes_on else state._replace(method=after.method)

    def close(self, state: State, done: int, history: History) -> State:
        """Judge what the cycle that ends here found, and keep it where it is better; the state it leaves.

        Args:
            state: at its end.
            done: how many rounds the run has done.
            history: of the cycle's rounds.
        """
        begin = self.done
        diverged, tolerance = int(state.diverged_at) >= 0, float(self._asked.tolerance)
        warm = "" if self.past or not int(self._first.average.rounds) else " and of the previous run"
        wanted = self._request.settings.answer
        every = candidates(state, begin, done, self.averaging_from, wanted, warm, frugal=self._choice.frugal)
        found = {name: self._judged(*one) for name, one in every.items() if not (diverged and name == "last")}
        better = [one for one in found.values() if one.finite and one.rank(tolerance) < self.best.rank(tolerance)]
        self._shift = 0.0
        if not (diverged or self._choice.exact):
            self._shift = self._off(found.get("last") or self._judged(state.params, ""), history)
        before = self.best
        self.best = min([self.best, *better], key=lambda one: one.rank(tolerance))
        again = bool(self.past) and self._factor >= 1
        second = self._begins_anew
        self._factor = MUCH_SMALLER if diverged else next_factor(before, self.best, tolerance, again=again)
        if second and self.best is before:
            self._factor = 1 / NEAR_STEP
        step: Any = self.method.step_size
        self.past.append(
            Restart(
                begin=begin,
                end=done,
                step_size=float(step.first),
                momentum=self._momentum,
                threshold=float(self.method.switch_at),
                objective=self.best.objective,
                constraint=self.best.constraint,
                answer=self.best.words,
                better=bool(better),
                diverged=diverged,
                aim=self.best.aim,
                judged=len(found),
            )
        )
        if self._begins_anew:
            self._factor = NEAR_STEP
        if diverged and self.hopeless:
            return state
        score = jnp.asarray(self.best.objective if self._feasible(self.best) else jnp.inf, state.best.score.dtype)
        return state._replace(
            params=self.best.params,
            best=state.best._replace(params=self.best.params, score=score),
            diverged_at=jnp.int32(-1),
        )

    def _off(self, last: Found, history: History) -> float:
        """How far the threshold is off where it should be: reports at a cycle's end lie off what is true there."""
        tolerance, tail = float(self._asked.tolerance), history.criterion[-max(3, round(TAIL * len(history))) :]
        bias = float(np.median(tail)) - last.constraint
        aim = tolerance + bias - ROOM * abs(tolerance) - ROOM_FOR_NOISE * abs(bias) - float(self.method.switch_at)
        return aim if math.isfinite(aim) else 0.0

    def journal(self) -> tuple[Params, str]:
        """What a checkpoint keeps of the cycles so far."""
        told = {
            "past": [cycle.to_dict() for cycle in self.past],
            "best": [self.best.objective, self.best.constraint, self.best.words, self.best.aim],
            "next": [self._factor, self._shift, self._momentum],
            "now": [self.end, self.averaging_from, numbers_of(self.method)],
        }
        return self.best.params, json.dumps(told)

    def go_on(self, params: Params, journal: str) -> None:
        """Take up the cycles that a checkpoint has kept: nothing is chosen again."""
        told = json.loads(journal)
        self.past = [Restart.from_dict(one) for one in told["past"]]
        self.best = Found(jax.tree.map(jnp.asarray, params), *told["best"])
        self._factor, self._shift, self._momentum = told["next"]
        self.end, self.averaging_from, numbers = told["now"]
        self.method = with_numbers(self.method, numbers)

    def _judged(self, params: Params, words: str) -> Found:
        return Found.of(params, words, self._request.oracle.evaluate_params(params), self._asked)

    def _feasible(self, found: Found) -> bool:
        return found.constraint <= self._asked.tolerance

    @property
    def _begins_anew(self) -> bool:
        """Whether the present cycle is the second of a run whose constraint moves in jumps: it begins at the start."""
        return self._choice.jumps and len(self.past) == 1 and self._request.warm_start is None

    def _cold(self, origin: Found, done: int) -> State:
        """A state that begins at an answer, the best so far, and remembers how good that is at every client."""
        state = (self._later if self.past else self._first)._replace(params=origin.params)
        if state.before is not None:
            state = state._replace(before=origin.params)
        if state.memory is None or state.memory.sums is not None:
            return state
        judged = origin.judged or self._request.oracle.evaluate_params(origin.params)
        known = all_known(state.memory, jnp.asarray(judged.objective), jnp.asarray(judged.constraint), done)
        return state._replace(memory=known)
