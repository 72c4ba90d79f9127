"""plan(): from a wish (ε, δ) or a budget to rounds, batches, steps and α, by the theorems."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from scipy import optimize

from softswitch.guarantees.plan import Plan, Remedy
from softswitch.guarantees.theorems import Constants, Setting, bound, constraint_bound
from softswitch.support import checks

if TYPE_CHECKING:  # it would import JAX, which a plan does not need
    from softswitch.method.memory import Memory

MOST_ROUNDS = MOST_ROWS = 10**15
"""A plan of more rounds, or of more rows a report, is as good as none."""


def plan(
    constants: Constants,
    *,
    clients: int,
    participation: float = 1.0,
    local_steps: int = 1,
    batch_size: int = 32,
    delta: float = 0.05,
    epsilon: float | None = None,
    samples: int | None = None,
    rounds: int | None = None,
    switch_share: float = 0.05,
    memory: Memory | None = None,
) -> Plan:
    """Plan a run that reaches ε with probability 1 − δ, or the best run within a budget.

    With some clients a round, what Theorem 3 promises of the constraint also depends on κ, the share of feasible
    rounds, which is only known afterwards: G(w̄) <= ε + 4σ ln(1/(2κ))/(|ln(1−r)|n). A wish is met where both F(w̄) − F*
    and, for every κ from ``switch_share`` on, G(w̄) are promised to be at most that.

    Args:
        constants: what is known of the problem; ``estimate_constants`` measures it.
        clients: n.
        participation: m/n.
        local_steps: E.
        batch_size: B_g.
        delta: δ.
        epsilon: the wish. The plan is the cheapest K and B_ζ, in rows evaluated, whose promise is at most ε.
        samples: instead of a wish a budget of rows, K·m·(B_ζ + E·B_g). The plan is the K and B_ζ of the smallest ε.
        rounds: at most so many rounds.
        switch_share: the smallest κ to reckon with. Every client in every round: it does not matter.
        memory: where the server remembers its clients: then few clients a round cost staleness, which falls with the
            number of rounds, instead of the sampling error, which does not. For exact reports or plain means of them
            (``smoothing=0``) and plain SGD; the derivation is ours.

    Returns:
        A ``Plan``. Where the wish cannot be met its ``met`` is False, ``advice`` says why, and what it plans is a tenth
        above the smallest ε that can be had.
    """
    if (epsilon is None) == (samples is None):
        raise ValueError(f"give either epsilon or samples, but epsilon is {epsilon!r} and samples is {samples!r}")
    clients = checks.whole_number("clients", clients, at_least=1)
    participation = checks.real_number("participation", participation, above=0, at_most=1)
    limit = MOST_ROUNDS if rounds is None else checks.whole_number("rounds", rounds, at_least=1)
    template = Setting(
        clients=clients,
        participants=max(1, round(participation * clients)),
        rounds=1,
        local_steps=local_steps,
        batch_size=batch_size,
        value_batch_size=1,
        delta=delta,
        longest_wait=_longest_wait(memory, clients, max(1, round(participation * clients))),
    )
    share = checks.real_number("switch_share", switch_share, above=0, at_most=1)
    beyond = _beyond(constants, template, share)
    # What is left when rows a report are no object, in as many rounds as there may be.
    smallest = bound(replace(constants, value_noise=0.0), replace(template, rounds=limit)).epsilon + beyond
    if samples is not None:
        budget = checks.whole_number("samples", samples, at_least=1)
        setting = _best_within(constants, template, budget, limit)
        return _finished(constants, setting, share, None, True, smallest, limit)
    wish = checks.real_number("epsilon", epsilon, above=0)
    found = _cheapest(constants, template, wish - beyond, limit)
    best = 1.1 * smallest - beyond
    setting = found or _cheapest(constants, template, best, limit) or replace(template, rounds=limit)
    return _finished(constants, setting, share, wish, found is not None, smallest, limit)


def _longest_wait(memory: Memory | None, clients: int, participants: int) -> int | None:
    if memory is None:
        return None
    from softswitch.method.memory import Memory

    checks.expect("memory", memory, Memory)
    if memory.smoothing:
        raise ValueError(f"memory must have smoothing=0 to be planned with, but is {memory}")
    if not memory.places(participants).by_objective:
        raise ValueError(
            f"memory must give a place to the worst by constraint and by objective, but gives {participants} clients "
            f"a round {memory.places(participants)}; ask at least 3, or raise worst_share"
        )
    return memory.longest_wait(clients, participants)


def _beyond(constants: Constants, setting: Setting, switch_share: float) -> float:
    """How far the promise on the constraint lies above ε at the smallest κ; the same for all rounds and batches."""
    return max(0.0, constraint_bound(constants, setting, switch_share) - bound(constants, setting).epsilon)


def _cheapest(constants: Constants, template: Setting, wish: float, limit: int) -> Setting | None:
    """The setting with the fewest rows whose ε is at most the wish; None where there is none."""

    def with_rounds(rounds: int) -> Setting | None:
        """The smallest B_ζ that meets the wish in so many rounds."""
        setting = replace(template, rounds=rounds)
        one = bound(constants, setting)
        left = wish - one.optimization - one.sampling
        if one.estimation <= left:
            return setting
        if left <= 0:
            return None
        size = _first(lambda b: bound(constants, replace(setting, value_batch_size=b)).epsilon <= wish, MOST_ROWS)
        return None if size is None else replace(setting, value_batch_size=size)

    def cost(rounds: int) -> float:
        setting = with_rounds(rounds)
        if setting is None:
            return math.inf
        return float(rounds) * (setting.value_batch_size + setting.local_steps * setting.batch_size)

    fewest = _first(lambda k: with_rounds(k) is not None, limit)
    if fewest is None:
        return None
    # More rounds than the fewest leave more room for the estimation error: look for the cheapest in between.
    span = (math.log(fewest), math.log(min(limit, 1000 * fewest)))
    found = optimize.minimize_scalar(lambda x: math.log(cost(max(fewest, round(math.exp(x))))), bounds=span)
    rounds = min((fewest, max(fewest, round(math.exp(found.x)))), key=cost)
    best = with_rounds(rounds)
    assert best is not None
    # With that batch, perhaps fewer rounds do.
    size = best.value_batch_size
    enough = _first(
        lambda k: bound(constants, replace(template, rounds=k, value_batch_size=size)).epsilon <= wish, rounds
    )
    return best if enough is None else with_rounds(enough) or best


def _best_within(constants: Constants, template: Setting, budget: int, limit: int) -> Setting:
    """The setting with the smallest ε that evaluates at most ``budget`` rows."""
    gradients = template.local_steps * template.batch_size
    most = min(limit, budget // (template.participants * (gradients + 1)))
    if most < 1:
        raise ValueError(
            f"samples must be at least {template.participants * (gradients + 1)}, one round of m = "
            f"{template.participants} clients with E·B_g = {gradients} rows and one row a report, but is {budget}"
        )

    def within(rounds: int) -> Setting:
        size = budget // (template.participants * rounds) - gradients
        return replace(template, rounds=rounds, value_batch_size=size)

    def error(rounds: int) -> float:
        return bound(constants, within(rounds)).epsilon

    found = optimize.minimize_scalar(lambda x: error(min(most, max(1, round(math.exp(x))))), bounds=(0, math.log(most)))
    near = round(math.exp(found.x))
    # The number of rows a report is rounded down, so neighbours differ; and few rounds differ much.
    tried = {*range(1, min(most, 100) + 1), *range(max(1, near - 20), min(most, near + 20) + 1), most}
    best = within(min(tried, key=error))
    if constants.value_noise == 0:
        return replace(best, value_batch_size=1)
    return best


def _first(holds: Any, limit: int) -> int | None:
    """The smallest number in [1, limit] at which ``holds``, which once true stays true; None if never."""
    high = 1
    while not holds(high):
        if high >= limit:
            return None
        high = min(2 * high, limit)
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _finished(
    constants: Constants,
    setting: Setting,
    switch_share: float,
    wish: float | None,
    met: bool,
    smallest: float,
    limit: int,
) -> Plan:
    promise = bound(constants, setting)
    remedies, best = _remedies(constants, setting)
    if not met and wish is not None:
        advice = _why_not(constants, setting, switch_share, wish, smallest, limit)
    else:
        share = getattr(promise, promise.dominant) / promise.epsilon
        advice = f"The error of {promise.dominant} dominates ({share:.0%} of ε = {promise.epsilon:.4g})."
        if best is not None:
            advice += f" It is lowered most cheaply by {best.change}: ε = {best.epsilon:.4g} for {best.samples:,} rows."
        if setting.participants < setting.clients:
            most = constraint_bound(constants, setting, switch_share)
            advice += f" The constraint is promised to be at most {most:.4g} where κ >= {switch_share:g}."
    return Plan(constants, setting, promise, switch_share, wish, met, smallest, advice, remedies)


def _remedies(constants: Constants, setting: Setting) -> tuple[tuple[Remedy, ...], Remedy | None]:
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


def _why_not(
    constants: Constants, setting: Setting, switch_share: float, wish: float, smallest: float, limit: int
) -> str:
    m, n = setting.participants, setting.clients

    def of_sampling(participants: int) -> float:
        some = replace(setting, participants=participants)
        return bound(constants, some).sampling + _beyond(constants, some, switch_share)

    sampling = of_sampling(m)
    in_rounds = f"in {limit:,} rounds" if limit < MOST_ROUNDS else "in any number of rounds and rows that could be run"
    if sampling < wish or setting.longest_wait is not None:
        allow = " Allow more rounds." if limit < MOST_ROUNDS else ""
        return f"ε = {wish:g} cannot be met {in_rounds}: ε = {smallest:.4g} is left with the largest batches.{allow}"
    enough = _first(lambda k: of_sampling(k) < wish, n)
    text = (
        f"ε = {wish:g} cannot be met with {m} of {n} clients a round: the error of sampling clients alone is "
        f"{sampling:.4g} (κ >= {switch_share:g}), and no number of rounds or rows lowers it. The smallest reachable ε "
        f"is just above {smallest:.4g}; for {wish:g} draw at least {enough} clients a round"
    )
    with_more = replace(setting, participants=enough or n, rounds=limit)
    left = bound(replace(constants, value_noise=0.0), with_more).epsilon + _beyond(constants, with_more, switch_share)
    if left > wish:
        text += f", and allow more than {limit:,} rounds"
    return f"{text}."
