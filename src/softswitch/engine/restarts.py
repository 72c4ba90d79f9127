"""Restarts of an auto-tuned run: each begins at the best answer so far, and its step size decays to 0.

After a restart its last iterate, its average and its best iterate by the reports are evaluated on all training data.
The next restart begins at the best of them and of the answer before. The step size is doubled after a large gain, or
after the second gain in a row, and multiplied by 0.3 without a gain. Each restart has √2 times the rounds of the one
before. With noisy reports the threshold moves by the error of the reports.

Small steps do not leave the plateaus of a constraint that moves in jumps, and large steps miss narrow regions. The
first restart then has a far larger step size, the second begins at the start too, with the usual one, and the better
of both continues.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from softswitch.engine.auto_tuning import JUMP_FACTOR, LONG_MOMENTUM, LONG_RESTART, MOMENTUM, Choice
from softswitch.engine.compiled import Span
from softswitch.engine.request import Request
from softswitch.methods.base import Method
from softswitch.methods.schedules import FallingStep
from softswitch.methods.state import State, first_averaged_round
from softswitch.methods.weighting import trimmed_max, winsorised_mean
from softswitch.oracles.base import Evaluation
from softswitch.problem.parameters import Params, float_dtype
from softswitch.results.history import Record, join
from softswitch.results.status import Restart

LARGER = 2.0  # factor on the step size after a large gain, or after two gains in a row
SMALLER = 0.3  # factor on the step size after a restart without a gain
MUCH_SMALLER = 0.1  # factor on the step size after a restart that diverged
GAIN, LARGE_GAIN = 1e-3, 0.2  # smallest relative decrease of F, or of the excess of G, that is a gain, and a large gain
MAX_DIVERGED = 6  # number of diverged restarts in a row that end the run
MIN_RESTARTS = 5  # smallest number of restarts after which a run may end early
NO_GAIN, NO_GAIN_OF_START = (3e-4, 2e-5)  # progress stalls if F decreases by less than these shares of F and initial F
NO_GAIN_RESTARTS = 3  # number of restarts over which this decrease is measured
MARGIN, NOISE_MARGIN = 1e-3, 0.2  # margin of λ with noisy reports, as shares of the tolerance and of the reports' error
TAIL = 0.1  # last share of a restart's rounds over which the error of the reports is measured
NEAR_STEP = 1 / JUMP_FACTOR  # factor on the step size of the second restart if the constraint moves in jumps


class Answer(NamedTuple):
    """An iterate and its values on all training data, trimmed if the method is robust."""

    params: Params
    objective: float  # F, the worst client's objective
    constraint: float  # G: the largest, mean or pooled constraint, as the method's switch requires
    description: str
    score: float  # the value that the method minimises: F, or the clients' mean objective
    values: Evaluation | None = None  # the values at every client; None if unknown

    @classmethod
    def of(cls, params: Params, description: str, values: Evaluation, method: Method) -> Answer:
        """Return the answer with parameters, description and values at every client, summarised for a method."""
        level = values.constraint_level(method)
        if method.switches_on == "mean":
            level = winsorised_mean(values.constraint, method.robust)
        worst = score = trimmed_max(values.objective, method.robust)
        if method.aims_at == "mean":
            score = winsorised_mean(values.objective, method.robust)
        return cls(params, worst, level, description, score, values)

    @property
    def is_finite(self) -> bool:
        """Whether F and G are finite."""
        return math.isfinite(self.objective) and math.isfinite(self.constraint)

    def rank(self, tolerance: float) -> tuple[float, float]:
        """Return a sort key, the best first: the excess of G over the tolerance, then the score if there is none."""
        excess = max(0.0, self.constraint - tolerance)
        return (excess, self.score if excess == 0 else 0.0)


class Restarts:
    """Base of the restarts of an auto-tuned run, in one process and over Flower."""

    def __init__(self, choice: Choice, requested: Method) -> None:
        self._choice, self._requested = choice, requested
        self.past: list[Restart] = []  # the finished restarts, in order
        # Of the current restart: its method, the index after its last round, and of the first that may join the average
        self.method, self.end, self.averaging_from = self.template, 0, 0
        self._factor, self._shift, self._momentum = 1.0, 0.0, MOMENTUM

    @property
    def template(self) -> Method:
        """The method of the first restart; it does not depend on the clients' reports."""
        return self._choice.template(self._requested)

    @property
    def tolerance(self) -> float:
        """The tolerance ε of the requested method."""
        return float(self._requested.tolerance)

    @property
    def done(self) -> int:
        """Number of rounds of all finished restarts."""
        return self.past[-1].end if self.past else 0

    @property
    def has_diverged(self) -> bool:
        """Whether the last ``MAX_DIVERGED`` restarts all diverged."""
        last = self.past[-MAX_DIVERGED:]
        return len(last) == MAX_DIVERGED and all(restart.diverged for restart in last)

    def _next_step(self, first: float, average_last: float) -> FallingStep:
        """Set the momentum and the rounds of the next restart, and return its step-size schedule from ``first`` on."""
        done, length = self.done, self._choice.next_length(self.done, len(self.past))
        self._momentum = LONG_MOMENTUM if length >= LONG_RESTART and len(self.past) % 2 else MOMENTUM
        self.end, self.averaging_from = done + length, done + first_averaged_round(length, average_last)
        return FallingStep(first=first, rounds=length, begin=done)

    def _next_threshold(self, start: float, params: Params, *, above: bool) -> float:
        """Return λ of the next restart: the tolerance at first, later the last λ corrected by the error of reports.

        ``start`` is G at the start. ``above`` is True if λ may be above the tolerance. A margin covers rounding
        differences between reports and evaluations. A constraint that moves in jumps needs none.
        """
        tolerance = self.tolerance
        scale = max(abs(tolerance), 0.01 * min(abs(start), 1e6))
        rounding = 0.0 if self._choice.jumps else 64 * float(jnp.finfo(float_dtype(params)).eps) * scale
        if not self.past:
            return tolerance - rounding
        room = max(abs(tolerance), 0.1 * min(abs(start - tolerance), 1e6))
        moved = max(self.past[-1].threshold + self._shift, tolerance - room)
        return min(moved, tolerance + (room if above else 0.0) - rounding)

    def _finish(self, end: int, best: Answer, *, better: bool, diverged: bool, evaluated: int = 0) -> Restart:
        """Add the current restart, with ``best`` as the best answer so far, to the finished ones and return it."""
        step: Any = self.method.step_size
        restart = Restart(
            begin=self.done,
            end=end,
            step_size=float(step.first),
            momentum=self._momentum,
            threshold=float(self.method.switch_at),
            objective=best.objective,
            constraint=best.constraint,
            answer=best.description,
            better=better,
            diverged=diverged,
            aim=best.score,
            judged=evaluated,
        )
        self.past.append(restart)
        return restart


class LocalRestarts(Restarts):
    """The restarts of a run in this process."""

    def __init__(self, request: Request, requested: Method) -> None:
        assert request.choice is not None
        super().__init__(request.choice, requested)
        self._request = request
        self._key = jax.random.key(request.options.seed)
        self._first = request.first_state(self.template)
        # Later restarts begin at an answer to which the moments and the average of a previous run do not belong.
        self._later = self._first if request.options.warm_start is None else request.fresh_state(self.template)
        self.start = self.best = self._evaluate(self._first.params, "the start")

    @property
    def is_hopeless(self) -> bool:
        """Whether the start is not finite, or the last restarts all diverged and none found a better answer."""
        return not self.start.is_finite or (self.has_diverged and self.best.description == self.start.description)

    @property
    def is_over(self) -> bool:
        """Whether the run ends: all rounds are run, progress has stalled, or restarts diverge."""
        choice, done = self._choice, self.done
        if done >= choice.rounds or self.is_hopeless or self.has_diverged:
            return done > 0
        if not (choice.may_end and choice.exact) or len(self.past) < MIN_RESTARTS or not self._is_feasible(self.best):
            return False
        before = self.past[-1 - NO_GAIN_RESTARTS]
        if before.constraint > self.tolerance:
            return False
        little = NO_GAIN * abs(self.best.score) + NO_GAIN_OF_START * abs(self.start.score)
        return before.aim - self.best.score <= little

    def span(self, span: Span) -> Span:
        """Return the rounds of a chunk, limited to those of the current restart."""
        return span._replace(last=self.end, averaging_from=self.averaging_from)

    def begin(self, after: State | None = None) -> State:
        """Choose the settings of the next restart and return its first state; ``after`` is the last one's state."""
        request, choice, done = self._request, self._choice, self.done
        first = self.past[-1].step_size * self._factor if self.past else choice.first_step
        step = self._next_step(first, cast(float, request.options.output.average_last))
        threshold = self._next_threshold(self.start.constraint, self.best.params, above=not choice.exact)
        origin = self.start if self._begins_at_start(len(self.past)) else self.best
        state = self._state_at(origin, done)
        self.method = choice.method(self._requested, step, self._momentum, threshold)
        if request.oracle.local_steps > 1 and self._requested.local_step_size is None:
            norm = request.engine.direction_norm(request.setup(self.method), self._key, jnp.int32(done), state)
            scale = request.oracle.local_steps * (float(norm) if float(norm) > 0 else 1.0)
            self.method = replace(self.method, local_step_size=replace(step, first=first / scale))
        if after is not None and "consistency" in after.parts:
            state = state.with_part("consistency", after.parts["consistency"].without_predictions())
        return state if after is None or not self._requested.goes_on else state._replace(method=after.method)

    def advance(self, state: State, records: Sequence[Record], done: int, *, begins: bool) -> State:
        """Close the current restart if it has ended, begin the next one if ``begins``, and return the next state."""
        if self.done < done and (done >= self.end or int(state.diverged_at) >= 0):
            state = self.close(state, records, done)
        if not begins or done != self.done or self.is_over:
            return state
        return self._request.engine.copy_state(self.begin(state))

    def close(self, state: State, records: Sequence[Record], done: int) -> State:
        """Evaluate the answers of the current restart, which ends after ``done`` rounds; return the next state."""
        diverged, tolerance = int(state.diverged_at) >= 0, self.tolerance
        warm = "" if self.past or not int(self._first.average.rounds) else " and of the previous run"
        iterate, frugal = self._request.options.output.iterate, self._choice.frugal
        iterates = candidates(state, self.done, done, self.averaging_from, iterate, warm, frugal=frugal)
        if diverged:
            iterates.pop("last", None)
        answers = {name: self._evaluate(*candidate) for name, candidate in iterates.items()}
        finite = [answer for answer in answers.values() if answer.is_finite]
        self._shift = 0.0
        if not (diverged or self._choice.exact):
            criterion = join(records, done).criterion[self.done :]
            self._shift = self._threshold_error(answers.get("last") or self._evaluate(state.params, ""), criterion)
        before = self.best
        self.best = min([before, *finite], key=lambda answer: answer.rank(tolerance))
        self._factor = self._factor_after(before, diverged=diverged)
        self._finish(done, self.best, better=self.best is not before, diverged=diverged, evaluated=len(answers))
        if diverged and self.is_hopeless:
            return state
        score = jnp.asarray(self.best.objective if self._is_feasible(self.best) else jnp.inf, state.best.score.dtype)
        best = state.best._replace(params=self.best.params, score=score)
        return state._replace(params=self.best.params, best=best, diverged_at=jnp.int32(-1))

    def _factor_after(self, before: Answer, *, diverged: bool) -> float:
        """Return the factor on the step size after the current restart, with ``before`` as its best answer so far."""
        current = len(self.past)
        if self._begins_at_start(current + 1):
            return NEAR_STEP
        if self._begins_at_start(current) and self.best is before:
            return 1 / NEAR_STEP
        if diverged:
            return MUCH_SMALLER
        return next_factor(before, self.best, self.tolerance, again=current > 0 and self._factor >= 1)

    def _threshold_error(self, last: Answer, criterion: Any) -> float:
        """Return the change of λ that corrects the error of the reported criterion at the end of a restart."""
        tail = criterion[-max(3, round(TAIL * len(criterion))) :]
        bias = float(np.median(tail)) - last.constraint
        margin = MARGIN * abs(self.tolerance) + NOISE_MARGIN * abs(bias)
        error = self.tolerance + bias - margin - float(self.method.switch_at)
        return error if math.isfinite(error) else 0.0

    def to_checkpoint(self) -> tuple[Params, str]:
        """Return the parameters of the best answer, and the remaining state of the restarts as JSON."""
        best = self.best
        values: dict[str, Any] = {"past": [restart.to_dict() for restart in self.past], "best": list(best[1:5])}
        values |= {"next": [self._factor, self._shift, self._momentum]}
        values |= {"now": [self.end, self.averaging_from, numbers_of(self.method)]}
        return best.params, json.dumps(values)

    def resume(self, params: Params, checkpoint: str) -> None:
        """Restore the state that ``to_checkpoint`` returned."""
        values = json.loads(checkpoint)
        self.past = [Restart.from_dict(one) for one in values["past"]]
        self.best = Answer(jax.tree.map(jnp.asarray, params), *values["best"])
        self._factor, self._shift, self._momentum = values["next"]
        self.end, self.averaging_from, numbers = values["now"]
        self.method = with_numbers(self.method, numbers)

    def _evaluate(self, params: Params, description: str) -> Answer:
        return Answer.of(params, description, self._request.oracle.evaluate_params(params), self._requested)

    def _is_feasible(self, answer: Answer) -> bool:
        return answer.constraint <= self._requested.tolerance

    def _begins_at_start(self, index: int) -> bool:
        """Return whether a restart begins at the start: the second one, index 1, if the constraint moves in jumps."""
        return self._choice.jumps and index == 1 and self._request.options.warm_start is None

    def _state_at(self, origin: Answer, done: int) -> State:
        """Return the first state of a restart at an answer, with the answer's values in the server's memory."""
        state = (self._later if self.past else self._first)._replace(params=origin.params)
        if "previous" in state.parts:
            state = state.with_part("previous", origin.params)
        memory = state.parts.get("memory")
        if memory is None or memory.sums is not None:
            return state
        values = origin.values or self._request.oracle.evaluate_params(origin.params)
        objective, constraint = jnp.asarray(values.objective), jnp.asarray(values.constraint)
        everyone = jnp.ones(objective.shape, bool)
        return state.with_part("memory", memory.with_values(objective, constraint, everyone, done))


def next_factor(before: Answer, after: Answer, tolerance: float, *, again: bool = False) -> float:
    """Return the factor on the step size after a restart that led from one best answer to another.

    ``again`` is True if the restart before had a gain too.
    """
    if not (before.is_finite and after.is_finite):
        return 1.0
    above, still_above = (max(0.0, answer.constraint - tolerance) for answer in (before, after))
    gain = (above - still_above) / above if above > 0 else (before.score - after.score) / max(abs(after.score), 1e-300)
    if gain > LARGE_GAIN and (above == 0 or still_above > 0):
        return LARGER
    if gain <= GAIN:
        return SMALLER
    return LARGER if again and above == 0 else 1.0


def candidates(
    state: State, begin: int, done: int, averaging_from: int, wanted: str, more: str = "", *, frugal: bool = False
) -> dict[str, tuple[Params, str]]:
    """Return the iterates of a restart that may be the answer, by kind ("last", "average", "best"), with descriptions.

    ``wanted`` is the requested kind, or "auto" for all. ``more`` is added to the description of the average. With
    ``frugal``, the best by noisy reports is omitted unless it is requested, which saves an evaluation.
    """
    rounds = f"of rounds {begin} to {done - 1}"
    every = {"last": (state.params, f"last iterate {rounds}")}
    if count := int(state.average.rounds):
        first = max(begin, averaging_from)
        every["average"] = (state.averaged_params, f"mean of the {count} feasible iterates from round {first} on{more}")
    if frugal and wanted == "auto":
        return every
    if np.isfinite(state.best.score):
        every["best"] = (state.best.params, f"best feasible iterate by its reports {rounds}")
    elif np.isfinite(state.best.criterion):
        every["best"] = (state.best.params, f"iterate with the smallest criterion {rounds}")
    return {name: one for name, one in every.items() if wanted in ("auto", name)}


def numbers_of(method: Method) -> list[Any]:
    """Return the numeric settings of a method as a list for JSON."""
    return [np.asarray(leaf).tolist() for leaf in jax.tree.leaves(method)]


def with_numbers(method: Method, numbers: Sequence[Any]) -> Method:
    """Return the method with the numeric settings that ``numbers_of`` returned."""
    leaves, structure = jax.tree.flatten(method)
    pairs = zip(leaves, numbers, strict=True)
    typed = [np.asarray(new, old.dtype) if hasattr(old, "dtype") else type(old)(new) for old, new in pairs]
    restored: Method = jax.tree.unflatten(structure, typed)
    return restored
