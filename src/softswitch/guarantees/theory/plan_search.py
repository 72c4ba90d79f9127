"""plan(): from a wish (ε, δ) or a budget to rounds, batches, steps and α, by the theorems."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from scipy import optimize

from softswitch.guarantees.theory.plan import Plan
from softswitch.guarantees.theory.plan_advice import (
    by_general_bound,
    on_constraint,
    remedies_for,
    warnings_for,
    why_not,
)
from softswitch.guarantees.theory.plan_reach import (
    MOST_ROUNDS,
    MOST_ROWS,
    LeastSwitchShare,
    beyond_epsilon,
    first_number,
    grows_with_rounds,
    left_for_epsilon,
    smallest_error,
)
from softswitch.guarantees.theory.theorems import Constants, Setting, bound, fewest_gradient_rows
from softswitch.support import checks

if TYPE_CHECKING:  # it would import JAX, which a plan does not need
    from softswitch.method.memory import Memory

USUAL_SWITCH_SHARE = 0.05
"""κ to reckon with where nothing is said of it."""
DOUBLINGS = 10
"""Rows of a gradient that are chosen: the fewest that the theory allows, and up to so many times twice that."""


def plan(
    constants: Constants,
    *,
    clients: int,
    participation: float = 1.0,
    local_steps: int | None = 1,
    batch_size: int | None = 32,
    delta: float = 0.05,
    epsilon: float | None = None,
    samples: int | None = None,
    rounds: int | None = None,
    switch_share: float | None = None,
    slater: float | None = None,
    memory: Memory | None = None,
) -> Plan:
    """Plan a run that reaches ε with probability 1 − δ, or the best run within a budget.

    With some clients a round, what Theorem 3 promises of the constraint also depends on κ, the share of feasible
    rounds, which is only known afterwards: G(w̄) <= ε + 4σ ln(1/(2κ))/(|ln(1−r)|n). A wish is met where both F(w̄) − F*
    and, for every κ from ``switch_share`` on, G(w̄) are promised to be at most that. Where the constants have another
    ``gap`` than the uniform one the general sampling error is used, which grows with ln K and has no κ in it.

    Args:
        constants: what is known of the problem; ``estimate_constants`` measures it.
        clients: n.
        participation: m/n.
        local_steps: E; None: chosen, from 1 up to √K.
        batch_size: B_g; None: chosen, such that B_g·E >= (σ_g/L)². With both left open E is 1: the theorems promise
            less for the same rows B_g·E in more steps.
        delta: δ.
        epsilon: the wish. The plan is the cheapest K and B_ζ, in rows evaluated, whose promise is at most ε.
        samples: instead of a wish a budget of rows, K·m·(B_ζ + E·B_g). The plan is the K and B_ζ of the smallest ε.
        rounds: at most so many rounds.
        switch_share: the smallest κ to reckon with; None: 0.05, or what ``slater`` assures. Every client in every
            round: it does not matter.
        slater: ν > 0 where some w in Θ has G(w) <= −ν: then κ >= ν/(ν + DL + ε) (``least_switch_share``), and nothing
            need be assumed of κ.
        memory: where the server remembers its clients: then few clients a round cost staleness, which falls with the
            number of rounds, instead of the sampling error, which does not. For exact reports or plain means of them
            (``smoothing=0``) and plain SGD; the derivation is ours.

    Returns:
        A ``Plan``. Where the wish cannot be met its ``met`` is False, ``advice`` says why, and what it plans is a tenth
        above the smallest ε that can be had. Its ``warnings`` say where E > √K or B_g·E < (σ_g/L)².
    """
    if (epsilon is None) == (samples is None):
        raise ValueError(f"give either epsilon or samples, but epsilon is {epsilon!r} and samples is {samples!r}")
    clients = checks.whole_number("clients", clients, at_least=1)
    participation = checks.real_number("participation", participation, above=0, at_most=1)
    limit = MOST_ROUNDS if rounds is None else checks.whole_number("rounds", rounds, at_least=1)
    nu = 0.0 if slater is None else checks.real_number("slater", slater, above=0)
    usual = USUAL_SWITCH_SHARE if slater is None else 0.0
    given = usual if switch_share is None else checks.real_number("switch_share", switch_share, above=0, at_most=1)
    wish = None if epsilon is None else checks.real_number("epsilon", epsilon, above=0)
    budget = None if samples is None else checks.whole_number("samples", samples, at_least=1)
    participants = max(1, round(participation * clients))
    wait = _longest_wait(memory, clients, participants)
    found: list[Plan] = []
    for steps, size in _gradient_rows(constants, local_steps, batch_size):
        template = Setting(clients, participants, 1, steps, size, 1, delta, wait)
        if budget is not None and len(found) and budget < participants * (steps * size + 1):
            continue  # a choice beyond the budget; the first is refused with the reason
        found.append(_planned(constants, template, wish, budget, limit, LeastSwitchShare(given, nu)))
    best = min(found, key=lambda p: (not p.met, bool(p.warnings), p.samples if budget is None else p.bound.epsilon))
    return best if slater is None else replace(best, slater=nu)


def _gradient_rows(constants: Constants, local_steps: int | None, batch_size: int | None) -> list[tuple[int, int]]:
    """The pairs of E and B_g to choose from."""
    if local_steps is not None and batch_size is not None:
        return [(local_steps, batch_size)]
    needed = fewest_gradient_rows(constants)
    factors = [2**i for i in range(DOUBLINGS + 1)]
    if batch_size is None:
        steps = 1 if local_steps is None else checks.whole_number("local_steps", local_steps, at_least=1)
        return [(steps, -(-needed // steps) * factor) for factor in factors]
    size = checks.whole_number("batch_size", batch_size, at_least=1)
    return [(steps, size) for steps in sorted({1, *(-(-needed // size) * factor for factor in factors)})]


def _planned(
    constants: Constants, template: Setting, wish: float | None, budget: int | None, limit: int, share: LeastSwitchShare
) -> Plan:
    """The plan for one E and B_g."""
    floor = smallest_error(constants, template, limit)
    smallest = floor + beyond_epsilon(constants, template, share.at(constants, floor))
    if wish is None:
        assert budget is not None
        setting = _best_within(constants, template, budget, limit)
        return _finished(constants, setting, share, None, True, smallest, limit)
    found = _cheapest(constants, template, left_for_epsilon(constants, template, wish, share), limit)
    best = left_for_epsilon(constants, template, 1.1 * smallest, share)
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
        size = first_number(lambda b: bound(constants, replace(setting, value_batch_size=b)).epsilon <= wish, MOST_ROWS)
        return None if size is None else replace(setting, value_batch_size=size)

    def cost(rounds: int) -> float:
        setting = with_rounds(rounds)
        if setting is None:
            return math.inf
        return float(rounds) * (setting.value_batch_size + setting.local_steps * setting.batch_size)

    # Where sampling grows with K, ε falls and rises again: a finer ladder, so that no stretch of it is stepped over.
    growth = 1.1 if grows_with_rounds(constants, template) else 2.0
    fewest = first_number(lambda k: with_rounds(k) is not None, limit, growth)
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
    enough = first_number(
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


def _finished(
    constants: Constants,
    setting: Setting,
    share: LeastSwitchShare,
    wish: float | None,
    met: bool,
    smallest: float,
    limit: int,
) -> Plan:
    promise, switch_share = bound(constants, setting), share.of(constants, setting)
    remedies, best = remedies_for(constants, setting)
    if not met and wish is not None:
        advice = why_not(constants, setting, switch_share, wish, smallest, limit)
    else:
        part = getattr(promise, promise.dominant) / promise.epsilon
        advice = f"The error of {promise.dominant} dominates ({part:.0%} of ε = {promise.epsilon:.4g})."
        if best is not None:
            advice += f" It is lowered most cheaply by {best.change}: ε = {best.epsilon:.4g} for {best.samples:,} rows."
        if setting.participants < setting.clients:
            advice += on_constraint(constants, setting, switch_share, share.slater > 0)
            advice += by_general_bound(constants, setting, lambda other: bound(other, setting).epsilon, promise.epsilon)
    return Plan(
        constants,
        setting,
        promise,
        switch_share,
        wish,
        met,
        smallest,
        advice,
        remedies,
        warnings_for(constants, setting),
    )
