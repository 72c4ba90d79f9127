"""The methods as their sources have them, for one owner of all rows: how g is estimated, and what is done about it.

Rows are counted as on the leaderboard: every row on which a value or a gradient is computed, f and g together once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from benchmarks.spider_claim.finite_sums import FiniteSum
from softswitch_experiments.leaderboard.methods import Between, OneOf

Settings = Mapping[str, Any]
STEP: dict[str, Between | OneOf] = {"step": Between(0.1, 3.0), "batch": OneOf((32, 128, 512))}
PENALTY: dict[str, Between | OneOf] = {"price": Between(1.0, 10.0), "width": Between(1e-3, 0.1)}
STEADY = 100
"""Steps are η/√(1 + k/100): constant at first, then falling as analyses of switching methods have them."""
EVERY: dict[str, Between | OneOf] = {"every": OneOf((30, 100, 300))}


class Standing(NamedTuple):
    """Between two rounds.

    Attributes:
        w: the iterate,
        before: and that before it.
        estimate: ĝ.
        direction: the last one.
        rounds: how many are done.
        rows: on how many rows a value or a gradient was computed.
    """

    w: Array
    before: Array
    estimate: Array
    direction: Array
    rounds: Array
    rows: Array


@dataclass(frozen=True, eq=False)
class Loop:
    """One method.

    Attributes:
        name: for tables.
        sees: how it estimates g at w_k: ``"all"`` rows; a ``"batch"``; ``"spider"``: all rows in every q-th round, and
            ĝ + g(w_k) − g(w_{k−1}) on one batch between.
        switches: step on g where ĝ > 0, else on f; or on f + ρ min(1, max(0, ĝ/ν)) g in every round.
        recursive: the gradient itself is a SPIDER estimate.
        space: what is tuned.
    """

    name: str
    sees: str
    switches: bool
    space: Mapping[str, Between | OneOf]
    recursive: bool = False

    def begun(self, task: FiniteSum) -> Standing:
        """Before the first round."""
        zero = jnp.zeros((), task.start.dtype)
        return Standing(task.start, task.start, zero, jnp.zeros_like(task.start), jnp.int32(0), jnp.int32(0))

    def go_on(self, task: FiniteSum, settings: Settings) -> Callable[[Standing, Array, float], Standing]:
        """Rounds until so many rows have been looked at."""
        numbers = {name: jnp.asarray(value) for name, value in settings.items() if name not in ("batch", "checks")}
        compiled = _compiled(self, task, settings["batch"], settings.get("checks", 1) * settings["batch"])
        return lambda standing, key, rows: compiled(standing, key, rows, numbers, task.rows)


LOOPS = (
    Loop("SPIDER penalty", "spider", False, {**STEP, **PENALTY, **EVERY}),
    Loop("penalty, SPIDER gradients", "batch", False, {**STEP, **PENALTY, **EVERY}, recursive=True),
    Loop("penalty, g on a batch", "batch", False, {**STEP, **PENALTY, "checks": OneOf((1, 4, 16))}),
    Loop("switching, g by SPIDER", "spider", True, {**STEP, **EVERY}),
    Loop("switching, g on a batch", "batch", True, {**STEP, "checks": OneOf((1, 4, 16))}),
    Loop("switching, g on all rows", "all", True, STEP),
)


@cache
def _compiled(loop: Loop, task: FiniteSum, batch: int, checks: int) -> Callable[..., Standing]:
    """The rounds of a method, once for all of its numbers."""
    many = task.count

    def mean_g(w: Array, rows: Any) -> Array:
        return task.constraint(w, rows).mean()

    def seen(now: Standing, key: Array, numbers: Any, rows: Any) -> tuple[Array, Any]:
        """ĝ, and on how many rows a value was computed."""
        if loop.sees == "all":
            return mean_g(now.w, rows), many
        some = _drawn(key, many, checks, rows)
        if loop.sees == "batch":
            return mean_g(now.w, some), checks

        def since() -> tuple[Array, Array]:
            return now.estimate + mean_g(now.w, some) - mean_g(now.before, some), jnp.int32(2 * checks)

        return lax.cond(now.rounds % numbers["every"] == 0, lambda: (mean_g(now.w, rows), jnp.int32(many)), since)

    def gradient(w: Array, rows: Any, on_f: Any, on_g: Any) -> Array:
        return jax.grad(lambda v: (on_f * task.objective(v, rows) + on_g * task.constraint(v, rows)).mean())(w)

    def pointed(now: Standing, key: Array, estimate: Array, numbers: Any, rows: Any) -> tuple[Array, Any]:
        """The direction, and on how many rows a gradient was computed."""
        some = _drawn(key, many, batch, rows)
        if loop.switches:
            sides = (lambda: gradient(now.w, some, 0.0, 1.0)), (lambda: gradient(now.w, some, 1.0, 0.0))
            return lax.cond(estimate > 0, *sides), batch
        price = numbers["price"] * jnp.clip(estimate / numbers["width"], 0, 1)
        if not loop.recursive:
            return gradient(now.w, some, 1.0, price), batch

        def since() -> tuple[Array, Array]:
            change = gradient(now.w, some, 1.0, price) - gradient(now.before, some, 1.0, price)
            return now.direction + change, jnp.int32(2 * batch)

        def anchor() -> tuple[Array, Array]:
            return gradient(now.w, rows, 1.0, price), jnp.int32(many)

        return lax.cond(now.rounds % numbers["every"] == 0, anchor, since)

    def one_round(now: Standing, key: Array, numbers: Any, rows: Any) -> Standing:
        first, second = jax.random.split(jax.random.fold_in(key, now.rounds))
        estimate, values = seen(now, first, numbers, rows)
        direction, gradients = pointed(now, second, estimate, numbers, rows)
        w = now.w - numbers["step"] / jnp.sqrt(1 + now.rounds / STEADY) * direction
        return Standing(w, now.w, estimate, direction, now.rounds + 1, now.rows + values + gradients)

    @jax.jit
    def until(standing: Standing, key: Array, wanted: float, numbers: Any, rows: Any) -> Standing:
        return lax.while_loop(lambda now: now.rows < wanted, lambda now: one_round(now, key, numbers, rows), standing)

    return until


def _drawn(key: Array, many: int, few: int, rows: Any) -> Any:
    """So many rows, with replacement."""
    places = jax.random.randint(key, (few,), 0, many)
    return {name: column[places] for name, column in rows.items()}
