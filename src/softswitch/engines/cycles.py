"""A run that chooses for itself goes in cycles: each begins from the best answer so far, and its step falls to 0.

After a cycle its last iterate, the average of the feasible ones in its second half and the best by its reports are
judged on all training data. The best of them and of what there was before is where the next cycle begins. A cycle that
gained much, or the second in a row that gained, is followed by one with twice its step, one that gained nothing by one
with a third of it; each has √2 times the rounds of the one before. Where reports are noisy, the threshold moves by how
far they were off at its end.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from softswitch.engines import compiled
from softswitch.engines.choice import LONG_CYCLE, LONG_MOMENTUM, MOMENTUM, Choice
from softswitch.engines.request import Request
from softswitch.method.round import BestSeen, State, first_to_average
from softswitch.method.rules import Rule
from softswitch.method.steps import FallingStep
from softswitch.problem.parameters import Params, float_dtype
from softswitch.results.history import History
from softswitch.results.one_cycle import Cycle

LONGER = math.sqrt(2)
LARGER, SMALLER, MUCH_SMALLER = 2.0, 0.3, 0.1
"""What the next step is multiplied by: after a large gain or two in a row, without one, and after a value that was not
finite."""
GAIN, LARGE_GAIN = 1e-3, 0.2
"""A gain is a fall of F by this share of itself, a large one by that; likewise of G while it is above the tolerance."""
NOTHING, NOTHING_OF_START, CYCLES_OF_NOTHING, FEWEST_CYCLES = 3e-4, 2e-5, 3, 5
"""A run may end where its last cycles together gained less than these shares of F and of F at the start."""
ROOM, ROOM_FOR_NOISE, TAIL = 1e-3, 0.2, 0.1
"""Where reports are noisy: how far below the tolerance to aim, as shares of it and of what reports are off by; and over
which last part of a cycle that is measured."""
MOST_DIVERGED = 6
"""So many cycles in a row that are not finite end the run."""


class Found(NamedTuple):
    """An answer that was judged on all training data.

    Attributes:
        params: the iterate.
        objective: F.
        constraint: G.
        words: which iterate it is.
    """

    params: Params
    objective: float
    constraint: float
    words: str

    def rank(self, tolerance: float) -> tuple[float, float]:
        """The smaller the better: how far above the tolerance, then the objective."""
        above = max(0.0, self.constraint - tolerance)
        return (above, self.objective if above == 0 else 0.0)


class Cycles:
    """The cycles of one run.

    Attributes:
        rule: the method of the present cycle.
        end: the round after its last.
        averaging_from: the first round that may join its average.
        past: the cycles that are over.
        best: the best answer so far.
    """

    def __init__(self, request: Request, choice: Choice, asked: Rule, seed: int) -> None:
        self._request, self._choice, self._asked = request, choice, asked
        self._key = jax.random.key(seed)
        self.past: list[Cycle] = []
        self._first = request.first_state(choice.template(asked))
        # Later cycles begin from an answer to which the moments and the average of a run before do not belong.
        cold = replace(request, warm_start=None)
        self._later = self._first if request.warm_start is None else cold.first_state(choice.template(asked))
        self.best = self._judged(self._first.params, "the start")
        self._start = self.best
        self.rule, self.end, self.averaging_from = self.template, 0, 0
        self._factor, self._shift, self._momentum = 1.0, 0.0, MOMENTUM

    @property
    def done(self) -> int:
        """How many rounds the cycles that are over took."""
        return self.past[-1].end if self.past else 0

    def ended(self, state: State, done: int) -> bool:
        """Whether the present cycle has run its rounds, or diverged, and waits to be closed."""
        return self.done < done and (done >= self.end or int(state.diverged_at) >= 0)

    @property
    def hopeless(self) -> bool:
        """Whether there is nothing to begin from, or nothing stays finite and nothing was found."""
        return not _finite(self._start) or (self._diverges and self.best.words == self._start.words)

    @property
    def _diverges(self) -> bool:
        last = self.past[-MOST_DIVERGED:]
        return len(last) == MOST_DIVERGED and all(cycle.diverged for cycle in last)

    @property
    def over(self) -> bool:
        """Whether all rounds are run, or nothing more is gained."""
        choice, done = self._choice, self.done
        if done >= choice.rounds or self.hopeless or self._diverges:
            return done > 0
        if not (choice.may_end and choice.exact) or len(self.past) < FEWEST_CYCLES or not self._feasible(self.best):
            return False
        before = self.past[-1 - CYCLES_OF_NOTHING]
        if before.constraint > self._asked.tolerance:
            return False
        little = NOTHING * abs(self.best.objective) + NOTHING_OF_START * abs(self._start.objective)
        return before.objective - self.best.objective <= little

    @property
    def template(self) -> Rule:
        """The method of the first cycle, before anything is known of the clients."""
        return self._choice.template(self._asked)

    def span(self, of_run: compiled.Span) -> compiled.Span:
        """The traced numbers of a chunk within the present cycle."""
        return of_run._replace(last=self.end, averaging_from=self.averaging_from)

    def begin(self) -> State:
        """Choose the next cycle; the state to begin it with."""
        choice, past = self._choice, self.past
        done = self.done
        length = round(choice.first_cycle * LONGER ** len(past))
        if choice.rounds - done - length < length * LONGER / 2:
            length = choice.rounds - done
        momentum = LONG_MOMENTUM if length >= LONG_CYCLE and len(past) % 2 else MOMENTUM
        self._momentum = momentum
        step = FallingStep(first=self._next_step(), rounds=length, begin=done)
        local = step
        threshold = self._next_threshold()
        state = self._cold(done)
        if self._request.oracle.local_steps > 1 and self._asked.local_step_size is None:
            parts = self._request.parts(choice.rule(self._asked, step, momentum, threshold, local))
            size = float(compiled.direction_size(parts, self._key, jnp.int32(done), state))
            by_clients = self._request.oracle.local_steps * (size if size > 0 else 1.0)
            local = FallingStep(first=step.first / by_clients, rounds=length, begin=done)
        self.rule = choice.rule(self._asked, step, momentum, threshold, local)
        self.end = done + length
        share = self._request.settings.average_last
        self.averaging_from = done + first_to_average(length, share)
        return state

    def close(self, state: State, done: int, history: History) -> State:
        """Judge what the cycle that ends here found, and keep it where it is better; the state it leaves.

        Args:
            state: at its end.
            done: how many rounds the run has done.
            history: of the cycle's rounds.
        """
        begin = self.done
        diverged, tolerance = int(state.diverged_at) >= 0, float(self._asked.tolerance)
        candidates = self._candidates(state, begin, done)
        found = [self._judged(*one) for name, one in candidates.items() if not (diverged and name == "last")]
        better = [one for one in found if _finite(one) and one.rank(tolerance) < self.best.rank(tolerance)]
        self._shift = 0.0 if diverged or self._choice.exact else self._off(state.params, history)
        before = self.best
        self.best = min([self.best, *better], key=lambda one: one.rank(tolerance))
        again = bool(self.past) and self._factor >= 1
        self._factor = MUCH_SMALLER if diverged else _factor(before, self.best, tolerance, again=again)
        step: Any = self.rule.step_size
        self.past.append(
            Cycle(
                begin=begin,
                end=done,
                step_size=float(step.first),
                momentum=self._momentum,
                threshold=float(self.rule.switch_at),
                objective=self.best.objective,
                constraint=self.best.constraint,
                answer=self.best.words,
                better=bool(better),
                diverged=diverged,
            )
        )
        if diverged and self.hopeless:
            return state
        score = jnp.asarray(self.best.objective if self._feasible(self.best) else jnp.inf, state.best.score.dtype)
        return state._replace(
            params=self.best.params, best=BestSeen(self.best.params, score), diverged_at=jnp.int32(-1)
        )

    def _off(self, last: Params, history: History) -> float:
        """How far the threshold is off where it should be: reports at a cycle's end lie off what is true there."""
        tolerance, tail = float(self._asked.tolerance), history.criterion[-max(3, round(TAIL * len(history))) :]
        bias = float(np.median(tail)) - self._judged(last, "").constraint
        aim = tolerance + bias - ROOM * abs(tolerance) - ROOM_FOR_NOISE * abs(bias) - float(self.rule.switch_at)
        return aim if math.isfinite(aim) else 0.0

    def journal(self) -> tuple[Params, str]:
        """What a checkpoint keeps of the cycles so far."""
        told = {
            "past": [asdict(cycle) for cycle in self.past],
            "best": [self.best.objective, self.best.constraint, self.best.words],
            "next": [self._factor, self._shift, self._momentum],
            "now": [self.end, self.averaging_from, _numbers(self.rule)],
        }
        return self.best.params, json.dumps(told)

    def go_on(self, params: Params, journal: str) -> None:
        """Take up the cycles that a checkpoint has kept: nothing is chosen again."""
        told = json.loads(journal)
        self.past = [Cycle(**one) for one in told["past"]]
        self.best = Found(jax.tree.map(jnp.asarray, params), *told["best"])
        self._factor, self._shift, self._momentum = told["next"]
        self.end, self.averaging_from, numbers = told["now"]
        if numbers is not None:
            self.rule = _with_numbers(self.rule, numbers)

    def _candidates(self, state: State, begin: int, done: int) -> dict[str, tuple[Params, str]]:
        """The iterates that may be the answer."""
        wanted = self._request.settings.answer
        within = f"of rounds {begin} to {done - 1}"
        every = {"last": (state.params, f"last iterate {within}")}
        if int(state.average.rounds):
            mean = jax.tree.map(lambda m, w: m.astype(w.dtype), state.average.mean(), state.params)
            many, first = int(state.average.rounds), max(begin, self.averaging_from)
            warm = "" if self.past or not int(self._first.average.rounds) else " and of the run before"
            every["average"] = (mean, f"mean of the {many} feasible iterates from round {first} on{warm}")
        if np.isfinite(state.best.score):
            every["best"] = (state.best.params, f"best feasible iterate by its reports {within}")
        elif np.isfinite(state.least_violating.score):
            every["best"] = (state.least_violating.params, f"iterate with the smallest criterion {within}")
        return {name: one for name, one in every.items() if wanted in ("auto", name)}

    def _judged(self, params: Params, words: str) -> Found:
        judged = self._request.oracle.judge(params)
        criterion = self._asked.switches_on
        constraint = judged.constraint.max()
        if criterion == "mean":
            constraint = np.mean(judged.constraint, where=~np.isneginf(judged.constraint))
        elif criterion == "pooled" and judged.pooled is not None:
            constraint = judged.pooled.max()
        return Found(params, float(judged.objective.max()), float(constraint), words)

    def _feasible(self, found: Found) -> bool:
        return found.constraint <= self._asked.tolerance

    def _next_step(self) -> float:
        if not self.past:
            return self._choice.first_step
        return self.past[-1].step_size * self._factor

    def _next_threshold(self) -> float:
        tolerance = float(self._asked.tolerance)
        # What is reported and what is judged later may differ by rounding.
        scale = max(abs(tolerance), 0.01 * min(abs(self._start.constraint), 1e6))
        rounding = 64 * float(jnp.finfo(float_dtype(self.best.params)).eps) * scale
        if not self.past:
            return tolerance - rounding
        room = max(abs(tolerance), 0.1 * min(abs(self._start.constraint - tolerance), 1e6))
        moved = self.past[-1].threshold + self._shift
        return min(max(moved, tolerance - room), tolerance + (0.0 if self._choice.exact else room) - rounding)

    def _cold(self, done: int) -> State:
        """A state that begins at the best answer so far, and remembers how good that is at every client."""
        state = (self._later if self.past else self._first)._replace(params=self.best.params)
        if state.memory is None or state.memory.sums is not None:
            return state
        judged = self._request.oracle.judge(self.best.params)
        memory = state.memory
        return state._replace(
            memory=memory._replace(
                objective=jnp.asarray(judged.objective, memory.objective.dtype),
                constraint=jnp.asarray(judged.constraint, memory.constraint.dtype),
                heard_at=jnp.full_like(memory.heard_at, done),
                times=memory.times + 1,
            )
        )


def _finite(found: Found) -> bool:
    return math.isfinite(found.objective) and math.isfinite(found.constraint)


def _factor(before: Found, after: Found, tolerance: float, *, again: bool) -> float:
    """What the next step is multiplied by; ``again``: the cycle before this one gained as well."""
    above, still_above = (max(0.0, found.constraint - tolerance) for found in (before, after))
    if above > 0:
        gain = (above - still_above) / above
    else:
        gain = (before.objective - after.objective) / max(abs(after.objective), 1e-300)
    if gain > LARGE_GAIN and (above == 0 or still_above > 0):
        return LARGER
    if gain <= GAIN:
        return SMALLER
    return LARGER if again and above == 0 else 1.0


def _numbers(rule: Rule) -> list[float] | None:
    return [float(leaf) for leaf in jax.tree.leaves(rule)]


def _with_numbers(rule: Rule, numbers: list[float]) -> Rule:
    leaves, structure = jax.tree.flatten(rule)
    typed = [type(leaf)(number) for leaf, number in zip(leaves, numbers, strict=True)]
    made: Rule = jax.tree.unflatten(structure, typed)
    return made
