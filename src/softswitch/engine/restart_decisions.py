"""What is decided between two cycles of a run that chooses for itself, by whatever engine it goes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from softswitch.engine.auto_tuning import LONG_CYCLE, LONG_MOMENTUM, MOMENTUM, Choice
from softswitch.methods.base import Method
from softswitch.methods.round import State
from softswitch.methods.trimming import mean_within, worst_but
from softswitch.oracles.base import Evaluation
from softswitch.problem.parameters import Params, float_dtype
from softswitch.results.restart import Restart

LARGER, SMALLER, MUCH_SMALLER = 2.0, 0.3, 0.1
"""What the next step is multiplied by: after a large gain or two in a row, without one, and after a value that was not
finite."""
GAIN, LARGE_GAIN = 1e-3, 0.2
"""A gain is a fall of F by this share of itself, a large one by that; likewise of G while it is above the tolerance."""
MOST_DIVERGED = 6
"""So many cycles in a row that are not finite end the run."""


class Found(NamedTuple):
    """An answer that was judged on all training data.

    Attributes:
        params: the iterate.
        objective: F.
        constraint: G.
        words: which iterate it is.
        aim: what the rule makes small: F, or the clients' mean.
        judged: how good it is at every client, where that is still known.
    """

    params: Params
    objective: float
    constraint: float
    words: str
    aim: float
    judged: Evaluation | None = None

    @classmethod
    def of(cls, params: Params, words: str, judged: Evaluation, method: Method) -> Found:
        """F and G of what every client told; G by the rule's criterion."""
        level = worst_but(judged.constraint, method.robust)
        if method.switches_on == "mean":
            level = mean_within(judged.constraint, method.robust)
        elif method.switches_on == "pooled" and judged.pooled is not None:
            level = judged.pooled.max()
        worst = aim = worst_but(judged.objective, method.robust)
        if method.aims_at == "mean":
            aim = mean_within(judged.objective, method.robust)
        return cls(params, worst, float(level), words, aim, judged)

    @property
    def finite(self) -> bool:
        """Whether F and G are numbers."""
        return math.isfinite(self.objective) and math.isfinite(self.constraint)

    def rank(self, tolerance: float) -> tuple[float, float]:
        """The smaller the better: how far above the tolerance, then what the rule makes small."""
        above = max(0.0, self.constraint - tolerance)
        return (above, self.aim if above == 0 else 0.0)


def rounds_done(past: Sequence[Restart]) -> int:
    """How many rounds the cycles that are over took."""
    return past[-1].end if past else 0


def diverges(past: Sequence[Restart]) -> bool:
    """Whether the last cycles all ended in a value that was not finite."""
    last = past[-MOST_DIVERGED:]
    return len(last) == MOST_DIVERGED and all(cycle.diverged for cycle in last)


def next_length(choice: Choice, past: Sequence[Restart]) -> int:
    """How many rounds the next cycle takes: √2 times as many as the one before; the last one all that are left."""
    return choice.next_length(rounds_done(past), len(past))


def momentum_of(length: int, past: Sequence[Restart]) -> float:
    """The next cycle's momentum: long cycles take turns."""
    return LONG_MOMENTUM if length >= LONG_CYCLE and len(past) % 2 else MOMENTUM


def next_factor(before: Found, after: Found, tolerance: float, *, again: bool = False) -> float:
    """What the next step is multiplied by; ``again``: the cycle before this one gained as well."""
    if not (before.finite and after.finite):
        return 1.0
    above, still_above = (max(0.0, found.constraint - tolerance) for found in (before, after))
    gain = (above - still_above) / above if above > 0 else (before.aim - after.aim) / max(abs(after.aim), 1e-300)
    if gain > LARGE_GAIN and (above == 0 or still_above > 0):
        return LARGER
    if gain <= GAIN:
        return SMALLER
    return LARGER if again and above == 0 else 1.0


def next_threshold(
    tolerance: float,
    start: float,
    past: Sequence[Restart],
    shift: float,
    params: Params,
    *,
    above: bool,
    jumps: bool = False,
) -> float:
    """λ of the next cycle: the tolerance at first, then the last one's, moved.

    Args:
        tolerance: ε.
        start: G at the start.
        past: the cycles that are over.
        shift: how far λ is to move.
        params: an iterate, for its precision: what is reported and what is judged later may differ by rounding.
        above: whether λ may be above the tolerance.
        jumps: whether the constraint moves in jumps, as rates do: one that is the tolerance itself then meets it.
    """
    scale = max(abs(tolerance), 0.01 * min(abs(start), 1e6))
    rounding = 0.0 if jumps else 64 * float(jnp.finfo(float_dtype(params)).eps) * scale
    if not past:
        return tolerance - rounding
    room = max(abs(tolerance), 0.1 * min(abs(start - tolerance), 1e6))
    return min(max(past[-1].threshold + shift, tolerance - room), tolerance + (room if above else 0.0) - rounding)


def candidates(
    state: State, begin: int, done: int, averaging_from: int, wanted: str, more: str = "", *, frugal: bool = False
) -> dict[str, tuple[Params, str]]:
    """The iterates of a cycle that may be the answer, by their kind, each with words for what it is.

    Args:
        state: at the end of the cycle.
        begin: its first round.
        done: the round after its last.
        averaging_from: the first round that could join its average.
        wanted: the kind that is wanted; "auto": any.
        more: what to say of the average beside that.
        frugal: whether looks are saved: the best by noisy reports is not among them unless it is wanted.
    """
    within = f"of rounds {begin} to {done - 1}"
    every = {"last": (state.params, f"last iterate {within}")}
    if many := int(state.average.rounds):
        mean = jax.tree.map(lambda m, w: m.astype(w.dtype), state.average.mean(), state.params)
        first = max(begin, averaging_from)
        every["average"] = (mean, f"mean of the {many} feasible iterates from round {first} on{more}")
    if frugal and wanted == "auto":
        return every
    if np.isfinite(state.best.score):
        every["best"] = (state.best.params, f"best feasible iterate by its reports {within}")
    elif np.isfinite(state.best.criterion):
        every["best"] = (state.best.params, f"iterate with the smallest criterion {within}")
    return {name: one for name, one in every.items() if wanted in ("auto", name)}


def numbers_of(method: Method) -> list[Any]:
    """The rule's numbers, for a journal; an array is a list of its own."""
    return [np.asarray(leaf).tolist() for leaf in jax.tree.leaves(method)]


def with_numbers(method: Method, numbers: Sequence[Any]) -> Method:
    """A rule with the numbers that a journal has kept."""
    leaves, structure = jax.tree.flatten(method)
    typed = [
        np.asarray(number, leaf.dtype) if hasattr(leaf, "dtype") else type(leaf)(number)
        for leaf, number in zip(leaves, numbers, strict=True)
    ]
    made: Method = jax.tree.unflatten(structure, typed)
    return made
