"""plan(): from a wish (ε, δ) or a budget to rounds, batches, steps and α, by the theorems."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from scipy import optimize

from softswitch.support import checks
from softswitch.theory.plan import Plan, Remedy
from softswitch.theory.theorems import (
    Constants,
    Setting,
    bound,
    constraint_bound,
    effective_variance,
    max_local_steps,
    min_gradient_rows,
    min_switch_share,
)

if TYPE_CHECKING:
    from softswitch.methods.memory import Memory


MOST_ROUNDS = MOST_ROWS = 10**15
"""A plan of more rounds, or of more rows a report, is as good as none."""


@dataclass(frozen=True)
class MinSwitchShare:
    """What κ is reckoned to be at least: what was ``given``, and what Slater's ν assures (0 where it is not known)."""

    given: float
    slater: float

    def at(self, constants: Constants, epsilon: float) -> float:
        """For a promise of ε."""
        assured = self.slater / (self.slater + constants.diameter * constants.lipschitz + epsilon)
        return max(self.given, assured)

    def of(self, constants: Constants, setting: Setting) -> float:
        """For a setting, of whose K rounds one at least is feasible."""
        return max(self.given, min_switch_share(constants, setting, self.slater) if self.slater else 0.0)


def smallest_error(constants: Constants, template: Setting, limit: int) -> float:
    """The smallest ε that is left when rows a report are no object, in as many rounds as there may be."""
    quiet = replace(constants, value_noise=0.0)
    if not grows_with_rounds(constants, template):
        return bound(quiet, replace(template, rounds=limit)).epsilon
    numbers, k = [], 1
    while k < limit:
        numbers.append(k)
        k = max(k + 1, int(1.1 * k))
    return min(bound(quiet, replace(template, rounds=k)).epsilon for k in (*numbers, limit))


def grows_with_rounds(constants: Constants, setting: Setting) -> bool:
    """Whether the sampling error does: by the general bound, of which every round takes its share of δ."""
    return setting.participants < setting.clients and setting.longest_wait is None and constants.gap != "uniform"


def beyond_epsilon(constants: Constants, setting: Setting, switch_share: float) -> float:
    """How far the promise on the constraint lies above ε at the smallest κ; the same for all rounds and batches."""
    return max(0.0, constraint_bound(constants, setting, switch_share) - bound(constants, setting).epsilon)


def left_for_epsilon(constants: Constants, template: Setting, wish: float, share: MinSwitchShare) -> float:
    """The largest ε with which the promise on the constraint is within the wish."""
    if not share.slater:
        return wish - beyond_epsilon(constants, template, share.given)

    def excess(epsilon: float) -> float:
        return epsilon + beyond_epsilon(constants, template, share.at(constants, epsilon)) - wish

    if excess(0.0) >= 0 or excess(wish) <= 0:
        return wish if excess(wish) <= 0 else 0.0
    return float(optimize.brentq(excess, 0.0, wish, xtol=1e-12 * wish)) * (1 - 1e-9)


def first_number(holds: Callable[[int], bool], limit: int, growth: float = 2.0) -> int | None:
    """The smallest number in [1, limit] at which ``holds``, which once true stays true; None if never."""
    low, high = 0, 1
    while not holds(high):
        if high >= limit:
            return None
        low, high = high, min(max(high + 1, int(growth * high)), limit)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


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
    if setting.local_steps > max_local_steps(setting.rounds):
        drift = 1 + setting.local_steps / math.sqrt(6 * setting.rounds)
        found.append(
            f"E = {setting.local_steps} local steps are more than √K = {math.sqrt(setting.rounds):.4g}: the theorems "
            f"keep their rate DL/√K for E up to about √K only. Drift multiplies the gradient noise by {drift:.3g}."
        )
    if variance > 1:
        found.append(
            f"B_g·E = {rows:,} rows of a client's gradients in a round are fewer than (σ_g/L)² = "
            f"{variance * rows:.4g}: gradients are noisier than steep (σ̄² = {variance:.3g}), and the theorems keep "
            f"their rate DL/√K for σ̄² up to about 1 only. Take a B_g·E of {min_gradient_rows(constants):,} or more."
        )
    return tuple(found)


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
        slater: ν > 0 where some w in Θ has G(w) <= −ν: then κ >= ν/(ν + DL + ε) (``min_switch_share``), and nothing
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
        found.append(_planned(constants, template, wish, budget, limit, MinSwitchShare(given, nu)))
    best = min(found, key=lambda p: (not p.met, bool(p.warnings), p.samples if budget is None else p.bound.epsilon))
    return best if slater is None else replace(best, slater=nu)


def _gradient_rows(constants: Constants, local_steps: int | None, batch_size: int | None) -> list[tuple[int, int]]:
    """The pairs of E and B_g to choose from."""
    if local_steps is not None and batch_size is not None:
        return [(local_steps, batch_size)]
    needed = min_gradient_rows(constants)
    factors = [2**i for i in range(DOUBLINGS + 1)]
    if batch_size is None:
        steps = 1 if local_steps is None else checks.whole_number("local_steps", local_steps, at_least=1)
        return [(steps, -(-needed // steps) * factor) for factor in factors]
    size = checks.whole_number("batch_size", batch_size, at_least=1)
    return [(steps, size) for steps in sorted({1, *(-(-needed // size) * factor for factor in factors)})]


def _planned(
    constants: Constants, template: Setting, wish: float | None, budget: int | None, limit: int, share: MinSwitchShare
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
    from softswitch.methods.memory import Memory

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
    share: MinSwitchShare,
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
