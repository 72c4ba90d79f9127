"""What a plan says in words: which error dominates, what lowers it, why a wish cannot be met, what to beware of."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from softswitch.guarantees.theory.plan import Remedy
from softswitch.guarantees.theory.plan_reach import (
    MOST_ROUNDS,
    beyond_epsilon,
    first_number,
    grows_with_rounds,
    smallest_error,
)
from softswitch.guarantees.theory.theorems import (
    Constants,
    Setting,
    bound,
    constraint_bound,
    effective_variance,
    fewest_gradient_rows,
    most_local_steps,
)


def remedies_for(constants: Constants, setting: Setting) -> tuple[tuple[Remedy, ...], Remedy | None]:
    """More rounds, larger batches, more clients: each twofold, ordered by how much ε falls for each further row.

    Beside them, the one that lowers the dominant error most for each further row.
    """
    now, spent = bound(constants, setting), _rows(setting)
    more = min(setting.clients, 2 * setting.participants)
    changes = {
        "twice the rounds": replace(setting, rounds=2 * setting.rounds),
        "twice the rows a report": replace(setting, value_batch_size=2 * setting.value_batch_size),
        "twice the rows a gradient": replace(setting, batch_size=2 * setting.batch_size),
    }
    if setting.longest_wait is None:
        changes[f"drawing {more} clients a round"] = replace(setting, participants=more)
    found = []
    for change, new in changes.items():
        after, rows = bound(constants, new), _rows(new)
        if after.epsilon < now.epsilon:
            gain = (now.epsilon - after.epsilon) / (rows - spent)
            on_dominant = (getattr(now, now.dominant) - getattr(after, now.dominant)) / (rows - spent)
            found.append((gain, on_dominant, Remedy(change, after.epsilon, rows)))
    ordered = tuple(remedy for _, _, remedy in sorted(found, key=lambda entry: -entry[0]))
    best = max(found, key=lambda entry: entry[1], default=None)
    return ordered, best[2] if best is not None and best[1] > 0 else None


def _rows(setting: Setting) -> int:
    each = setting.value_batch_size + setting.local_steps * setting.batch_size
    return setting.rounds * setting.participants * each


def on_constraint(constants: Constants, setting: Setting, switch_share: float, slater: bool) -> str:
    """What is promised of the constraint, where only some clients take part, and on what it hangs."""
    most, sure = (constraint_bound(constants, setting, kappa) for kappa in (switch_share, 1 / setting.rounds))
    text = f" The constraint is promised to be at most {most:.4g}"
    if grows_with_rounds(constants, setting):
        return f"{text}, whatever κ is."
    by = ", which Slater's condition assures" if slater else ""
    text += f" where κ >= {switch_share:.4g}{by}."
    return f"{text} Whatever κ is, and it is 1/K at least, {sure:.4g}." if sure > most else text


def by_general_bound(constants: Constants, setting: Setting, error: Callable[[Constants], float], now: float) -> str:
    """Where the paper's general bound promises more of the same uniform gap than Theorem 3: with few clients."""
    if constants.gap != "uniform" or setting.longest_wait is not None:
        return ""
    least = error(replace(constants, gap="beta", gap_shape=(1.0, 1.0)))
    if least >= now:
        return ""
    return f" The paper's general bound (gap: beta, of 1 and 1) gets to ε = {least:.4g} here, whatever κ is."


def why_not(
    constants: Constants, setting: Setting, switch_share: float, wish: float, smallest: float, limit: int
) -> str:
    """Why a wish cannot be met, and what would meet it."""
    m, n = setting.participants, setting.clients

    def of_sampling(participants: int) -> float:
        some = replace(setting, participants=participants)
        return bound(constants, some).sampling + beyond_epsilon(constants, some, switch_share)

    sampling = of_sampling(m)
    in_rounds = f"in {limit:,} rounds" if limit < MOST_ROUNDS else "in any number of rounds and rows that could be run"
    general = grows_with_rounds(constants, setting)
    if sampling < wish or setting.longest_wait is not None:
        allow = " Allow more rounds." if limit < MOST_ROUNDS else ""
        return f"ε = {wish:g} cannot be met {in_rounds}: ε = {smallest:.4g} is left with the largest batches.{allow}"
    if general:
        enough = first_number(
            lambda k: smallest_error(constants, replace(setting, participants=k), MOST_ROUNDS) < wish, n
        )
    else:
        enough = first_number(lambda k: of_sampling(k) < wish, n)
    never = "more rounds and rows do not lower" if general else "no number of rounds or rows lowers"
    text = (
        f"ε = {wish:g} cannot be met with {m} of {n} clients a round: the error of sampling clients alone is "
        f"{sampling:.4g}{'' if general else f' (κ >= {switch_share:.4g})'}, and {never} it. The smallest reachable ε "
        f"is just above {smallest:.4g}; for {wish:g} draw at least {enough} clients a round"
    )
    with_more = replace(setting, participants=enough or n, rounds=limit)
    left = smallest_error(constants, with_more, limit) + beyond_epsilon(constants, with_more, switch_share)
    if left > wish:
        text += f", and allow more than {limit:,} rounds"
    return (
        f"{text}.{by_general_bound(constants, setting, lambda other: smallest_error(other, setting, limit), smallest)}"
    )


def warnings_for(constants: Constants, setting: Setting) -> tuple[str, ...]:
    """Where ε' loses the rate DL/√K: E beyond √K, or gradients noisier than they are steep."""
    found = []
    rows, variance = setting.batch_size * setting.local_steps, effective_variance(constants, setting)
    if setting.local_steps > most_local_steps(setting.rounds):
        drift = 1 + setting.local_steps / math.sqrt(6 * setting.rounds)
        found.append(
            f"E = {setting.local_steps} local steps are more than √K = {math.sqrt(setting.rounds):.4g}: the theorems "
            f"keep their rate DL/√K for E up to about √K only. Drift multiplies the gradient noise by {drift:.3g}."
        )
    if variance > 1:
        found.append(
            f"B_g·E = {rows:,} rows of a client's gradients in a round are fewer than (σ_g/L)² = "
            f"{variance * rows:.4g}: gradients are noisier than steep (σ̄² = {variance:.3g}), and the theorems keep "
            f"their rate DL/√K for σ̄² up to about 1 only. Take a B_g·E of {fewest_gradient_rows(constants):,} or more."
        )
    return tuple(found)
