"""plan(): rounds, batches, step sizes and α for a target accuracy or a budget, by the theorems."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from scipy import optimize

from softswitch.support import checks
from softswitch.support.bisection import smallest_integer
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

MAX_ROUNDS = MAX_ROWS = 10**15
"""Largest number of rounds, and of rows per report, that is considered."""
DEFAULT_SWITCH_SHARE = 0.05
DOUBLINGS = 10
"""Number of doublings of the smallest admissible gradient batch that are tried."""


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

    With partial participation, Theorem 3's bound on the constraint depends on κ, the share of feasible rounds, which is
    known only after the run: G(w̄) <= ε + 4σ ln(1/(2κ))/(|ln(1−r)|n). A target is met if it bounds both F(w̄) − F* and,
    for every κ >= ``switch_share``, G(w̄). If the constants have a ``gap`` other than uniform, the general sampling
    error is used, which grows with ln K and does not depend on κ.

    Args:
        constants: Constants of the problem; ``estimate_constants`` measures them.
        clients: n.
        participation: m/n.
        local_steps: E. None: chosen between 1 and √K.
        batch_size: B_g. None: chosen such that B_g·E >= (σ_g/L)². If ``local_steps`` is None too, E is 1, because the
            theorems' bounds are larger for the same rows B_g·E in more steps.
        delta: δ.
        epsilon: Target accuracy. The plan is the K and B_ζ with the fewest rows whose bound is at most ε.
        samples: Budget of rows K·m·(B_ζ + E·B_g), instead of a target. The plan is the K and B_ζ with the smallest ε.
        rounds: Maximum number of rounds.
        switch_share: Smallest κ to allow for. Default: 0.05, or the value implied by ``slater``. It does not matter
            with full participation.
        slater: ν > 0 such that some w in Θ has G(w) <= −ν. Then κ >= ν/(ν + DL + ε) (``min_switch_share``), without
            any assumption on κ.
        memory: The server's client memory. Partial participation then causes staleness, which falls with the number of
            rounds, instead of a sampling error, which does not. It requires exact reports or plain means of them
            (``smoothing=0``) and plain SGD. This bound is not from the paper.

    Returns:
        The plan. If the target cannot be met, ``met`` is False, ``advice`` gives the reason, and the settings are those
        for 1.1 times the smallest reachable ε. ``warnings`` report E > √K or B_g·E < (σ_g/L)².
    """
    if (epsilon is None) == (samples is None):
        raise ValueError(f"give either epsilon or samples, but epsilon is {epsilon!r} and samples is {samples!r}")
    clients = checks.check_integer("clients", clients, minimum=1)
    participation = checks.check_real("participation", participation, above=0, maximum=1)
    limit = MAX_ROUNDS if rounds is None else checks.check_integer("rounds", rounds, minimum=1)
    nu = 0.0 if slater is None else checks.check_real("slater", slater, above=0)
    default = DEFAULT_SWITCH_SHARE if slater is None else 0.0
    given = default if switch_share is None else checks.check_real("switch_share", switch_share, above=0, maximum=1)
    target = None if epsilon is None else checks.check_real("epsilon", epsilon, above=0)
    budget = None if samples is None else checks.check_integer("samples", samples, minimum=1)
    participants = max(1, round(participation * clients))
    wait = _longest_wait(memory, clients, participants)
    plans: list[Plan] = []
    for steps, size in _gradient_choices(constants, local_steps, batch_size):
        template = Setting(clients, participants, 1, steps, size, 1, delta, wait)
        if budget is not None and plans and budget < participants * (steps * size + 1):
            continue  # beyond the budget; the first choice raises an error in that case
        plans.append(_plan_setting(constants, template, target, budget, limit, MinSwitchShare(given, nu)))
    best = min(plans, key=lambda p: (not p.met, bool(p.warnings), p.samples if budget is None else p.bound.epsilon))
    return best if slater is None else replace(best, slater=nu)


def _gradient_choices(constants: Constants, local_steps: int | None, batch_size: int | None) -> list[tuple[int, int]]:
    """Return the pairs of E and B_g to choose from."""
    if local_steps is not None and batch_size is not None:
        return [(local_steps, batch_size)]
    needed = min_gradient_rows(constants)
    factors = [2**i for i in range(DOUBLINGS + 1)]
    if batch_size is None:
        steps = 1 if local_steps is None else checks.check_integer("local_steps", local_steps, minimum=1)
        return [(steps, -(-needed // steps) * factor) for factor in factors]
    size = checks.check_integer("batch_size", batch_size, minimum=1)
    return [(steps, size) for steps in sorted({1, *(-(-needed // size) * factor for factor in factors)})]


def _longest_wait(memory: Memory | None, clients: int, participants: int) -> int | None:
    if memory is None:
        return None
    from softswitch.methods.memory import Memory

    checks.check_instance("memory", memory, Memory)
    if memory.smoothing:
        raise ValueError(f"memory must have smoothing=0 in a plan, but is {memory}")
    if not memory.places(participants).by_objective:
        raise ValueError(
            f"memory must select clients by constraint and by objective, but with {participants} clients per round "
            f"selects {memory.places(participants)}; select at least 3 per round, or raise worst_share"
        )
    return memory.longest_wait(clients, participants)


@dataclass(frozen=True)
class MinSwitchShare:
    """A lower limit on κ: the ``given`` one, and the one implied by Slater's ν (0 if unknown)."""

    given: float
    slater: float

    def at(self, constants: Constants, epsilon: float) -> float:
        """Return the limit for an accuracy of ε."""
        implied = self.slater / (self.slater + constants.diameter * constants.lipschitz + epsilon)
        return max(self.given, implied)

    def of(self, constants: Constants, setting: Setting) -> float:
        """Return the limit for a setting, in which at least one of K rounds is feasible."""
        return max(self.given, min_switch_share(constants, setting, self.slater) if self.slater else 0.0)


def _plan_setting(
    constants: Constants, template: Setting, target: float | None, budget: int | None, limit: int, share: MinSwitchShare
) -> Plan:
    """Plan for one choice of E and B_g."""
    floor = _smallest_error(constants, template, limit)
    smallest = floor + _constraint_excess(constants, template, share.at(constants, floor))
    met = True
    if target is None:
        assert budget is not None
        setting = _best_within(constants, template, budget, limit)
    else:
        cheapest = _cheapest(constants, template, _available_epsilon(constants, template, target, share), limit)
        fallback = _available_epsilon(constants, template, 1.1 * smallest, share)
        setting = cheapest or _cheapest(constants, template, fallback, limit) or replace(template, rounds=limit)
        met = cheapest is not None
    promised, switch_share = bound(constants, setting), share.of(constants, setting)
    remedies, best = _find_remedies(constants, setting)
    if not met and target is not None:
        advice = _explain_failure(constants, setting, switch_share, target, smallest, limit)
    else:
        part = getattr(promised, promised.dominant) / promised.epsilon
        advice = f"The {promised.dominant} error dominates ({part:.0%} of ε = {promised.epsilon:.4g})."
        if best is not None:
            advice += f" The cheapest way to lower it: {best.change} (ε = {best.epsilon:.4g}, {best.samples:,} rows)."
        if setting.participants < setting.clients:
            advice += _describe_constraint(constants, setting, switch_share, share.slater > 0)
            advice += _describe_general_bound(
                constants, setting, lambda other: bound(other, setting).epsilon, promised.epsilon
            )
    warnings = _find_warnings(constants, setting)
    return Plan(constants, setting, promised, switch_share, target, met, smallest, advice, remedies, warnings)


def _smallest_error(constants: Constants, template: Setting, limit: int) -> float:
    """Return the smallest ε with unlimited rows per report, in at most ``limit`` rounds."""
    noiseless = replace(constants, value_noise=0.0)
    if not _grows_with_rounds(constants, template):
        return bound(noiseless, replace(template, rounds=limit)).epsilon
    rounds, k = [], 1
    while k < limit:
        rounds.append(k)
        k = max(k + 1, int(1.1 * k))
    return min(bound(noiseless, replace(template, rounds=k)).epsilon for k in (*rounds, limit))


def _grows_with_rounds(constants: Constants, setting: Setting) -> bool:
    """Return whether the sampling error grows with the number of rounds, as in the general bound."""
    return setting.participants < setting.clients and setting.longest_wait is None and constants.gap != "uniform"


def _constraint_excess(constants: Constants, setting: Setting, switch_share: float) -> float:
    """Return how far the constraint's bound lies above ε at the smallest κ, for any rounds and batches."""
    return max(0.0, constraint_bound(constants, setting, switch_share) - bound(constants, setting).epsilon)


def _available_epsilon(constants: Constants, template: Setting, target: float, share: MinSwitchShare) -> float:
    """Return the largest ε for which the constraint's bound is within the target."""
    if not share.slater:
        return target - _constraint_excess(constants, template, share.given)

    def excess(epsilon: float) -> float:
        return epsilon + _constraint_excess(constants, template, share.at(constants, epsilon)) - target

    if excess(target) <= 0:
        return target
    if excess(0.0) >= 0:
        return 0.0
    return float(optimize.brentq(excess, 0.0, target, xtol=1e-12 * target)) * (1 - 1e-9)


def _cheapest(constants: Constants, template: Setting, target: float, limit: int) -> Setting | None:
    """Return the setting with the fewest rows whose ε is at most the target; None if there is none."""

    def with_rounds(rounds: int) -> Setting | None:
        """Return the setting with the smallest sufficient B_ζ."""
        setting = replace(template, rounds=rounds)
        errors = bound(constants, setting)
        remaining = target - errors.optimization - errors.sampling
        if errors.estimation <= remaining:
            return setting
        if remaining <= 0:
            return None

        def is_enough(size: int) -> bool:
            return bound(constants, replace(setting, value_batch_size=size)).epsilon <= target

        size = smallest_integer(is_enough, limit=MAX_ROWS)
        return None if size is None else replace(setting, value_batch_size=size)

    def cost(rounds: int) -> float:
        setting = with_rounds(rounds)
        if setting is None:
            return math.inf
        return float(rounds) * (setting.value_batch_size + setting.local_steps * setting.batch_size)

    # If the sampling error grows with K, ε falls and rises again: smaller factors find the interval between.
    growth = 1.1 if _grows_with_rounds(constants, template) else 2.0
    fewest = smallest_integer(lambda k: with_rounds(k) is not None, limit=limit, growth=growth)
    if fewest is None:
        return None
    # More rounds than the fewest allow a larger estimation error, and may need fewer rows.
    span = (math.log(fewest), math.log(min(limit, 1000 * fewest)))
    optimum = optimize.minimize_scalar(lambda x: math.log(cost(max(fewest, round(math.exp(x))))), bounds=span)
    rounds = min((fewest, max(fewest, round(math.exp(optimum.x)))), key=cost)
    best = with_rounds(rounds)
    assert best is not None
    size = best.value_batch_size
    enough = smallest_integer(
        lambda k: bound(constants, replace(template, rounds=k, value_batch_size=size)).epsilon <= target, limit=rounds
    )
    return best if enough is None else with_rounds(enough) or best


def _best_within(constants: Constants, template: Setting, budget: int, limit: int) -> Setting:
    """Return the setting with the smallest ε that evaluates at most ``budget`` rows."""
    gradient_rows = template.local_steps * template.batch_size
    smallest_round = template.participants * (gradient_rows + 1)
    most = min(limit, budget // smallest_round)
    if most < 1:
        raise ValueError(
            f"samples must be at least {smallest_round}, one round of m = {template.participants} clients with E·B_g = "
            f"{gradient_rows} rows and one row per report, but is {budget}"
        )

    def within(rounds: int) -> Setting:
        size = budget // (template.participants * rounds) - gradient_rows
        return replace(template, rounds=rounds, value_batch_size=size)

    def error(rounds: int) -> float:
        return bound(constants, within(rounds)).epsilon

    optimum = optimize.minimize_scalar(
        lambda x: error(min(most, max(1, round(math.exp(x))))), bounds=(0, math.log(most))
    )
    near = round(math.exp(optimum.x))
    # Rows per report are rounded down, so neighbouring numbers of rounds differ; few rounds differ most.
    candidates = {*range(1, min(most, 100) + 1), *range(max(1, near - 20), min(most, near + 20) + 1), most}
    best = within(min(candidates, key=error))
    return replace(best, value_batch_size=1) if constants.value_noise == 0 else best


def _find_remedies(constants: Constants, setting: Setting) -> tuple[tuple[Remedy, ...], Remedy | None]:
    """Return remedies by the decrease of ε per additional row, and the best one for the dominant error."""

    def count_rows(setting: Setting) -> int:
        per_client = setting.value_batch_size + setting.local_steps * setting.batch_size
        return setting.rounds * setting.participants * per_client

    now, spent = bound(constants, setting), count_rows(setting)
    more = min(setting.clients, 2 * setting.participants)
    changes = {
        "twice the rounds": replace(setting, rounds=2 * setting.rounds),
        "twice the rows per report": replace(setting, value_batch_size=2 * setting.value_batch_size),
        "twice the rows per gradient": replace(setting, batch_size=2 * setting.batch_size),
    }
    if setting.longest_wait is None:
        changes[f"{more} clients per round"] = replace(setting, participants=more)
    found = []
    for change, new in changes.items():
        after, rows = bound(constants, new), count_rows(new)
        if after.epsilon < now.epsilon:
            gain = (now.epsilon - after.epsilon) / (rows - spent)
            dominant_gain = (getattr(now, now.dominant) - getattr(after, now.dominant)) / (rows - spent)
            found.append((gain, dominant_gain, Remedy(change, after.epsilon, rows)))
    ordered = tuple(remedy for _, _, remedy in sorted(found, key=lambda entry: -entry[0]))
    best = max(found, key=lambda entry: entry[1], default=None)
    return ordered, best[2] if best is not None and best[1] > 0 else None


def _describe_constraint(constants: Constants, setting: Setting, switch_share: float, slater: bool) -> str:
    """Describe the constraint's bound with partial participation."""
    most, always = (constraint_bound(constants, setting, kappa) for kappa in (switch_share, 1 / setting.rounds))
    text = f" The constraint is at most {most:.4g}"
    if _grows_with_rounds(constants, setting):
        return f"{text} for any κ."
    source = ", which follows from Slater's condition" if slater else ""
    text += f" if κ >= {switch_share:.4g}{source}."
    return f"{text} For any κ >= 1/K it is at most {always:.4g}." if always > most else text


def _describe_general_bound(
    constants: Constants, setting: Setting, error: Callable[[Constants], float], now: float
) -> str:
    """Mention the paper's general bound if it is smaller than Theorem 3's for the same uniform gap."""
    if constants.gap != "uniform" or setting.longest_wait is not None:
        return ""
    general = error(replace(constants, gap="beta", gap_shape=(1.0, 1.0)))
    if general >= now:
        return ""
    return f" The paper's general bound (gap 'beta' of shape (1, 1)) gives ε = {general:.4g} for any κ."


def _explain_failure(
    constants: Constants, setting: Setting, switch_share: float, target: float, smallest: float, limit: int
) -> str:
    """Explain why a target cannot be met, and what would meet it."""
    m, n = setting.participants, setting.clients

    def sampling_error(participants: int) -> float:
        partial = replace(setting, participants=participants)
        return bound(constants, partial).sampling + _constraint_excess(constants, partial, switch_share)

    sampling = sampling_error(m)
    if sampling < target or setting.longest_wait is not None:
        rounds = f"in {limit:,} rounds" if limit < MAX_ROUNDS else "in any practical number of rounds and rows"
        advice = " Allow more rounds." if limit < MAX_ROUNDS else ""
        return f"ε = {target:g} cannot be met {rounds}: with the largest batches ε is {smallest:.4g}.{advice}"
    general = _grows_with_rounds(constants, setting)

    def is_enough(participants: int) -> bool:
        if general:
            return _smallest_error(constants, replace(setting, participants=participants), MAX_ROUNDS) < target
        return sampling_error(participants) < target

    enough = smallest_integer(is_enough, limit=n)
    text = (
        f"ε = {target:g} cannot be met with {m} of {n} clients per round: the sampling error is {sampling:.4g}"
        f"{'' if general else f' (κ >= {switch_share:.4g})'}, and does not fall with more rounds or rows. The smallest "
        f"reachable ε is just above {smallest:.4g}; for {target:g} select at least {enough} clients per round"
    )
    with_more = replace(setting, participants=enough or n, rounds=limit)
    remaining = _smallest_error(constants, with_more, limit) + _constraint_excess(constants, with_more, switch_share)
    if remaining > target:
        text += f", and allow more than {limit:,} rounds"
    general_bound = _describe_general_bound(
        constants, setting, lambda other: _smallest_error(other, setting, limit), smallest
    )
    return f"{text}.{general_bound}"


def _find_warnings(constants: Constants, setting: Setting) -> tuple[str, ...]:
    """Return warnings if ε' loses the rate DL/√K: E beyond √K, or too noisy gradients."""
    warnings = []
    rows, variance = setting.batch_size * setting.local_steps, effective_variance(constants, setting)
    if setting.local_steps > max_local_steps(setting.rounds):
        drift = 1 + setting.local_steps / math.sqrt(6 * setting.rounds)
        warnings.append(
            f"E = {setting.local_steps} local steps are more than √K = {math.sqrt(setting.rounds):.4g}: the theorems "
            f"keep their rate DL/√K only for E up to about √K. Drift multiplies the gradient noise by {drift:.3g}."
        )
    if variance > 1:
        warnings.append(
            f"B_g·E = {rows:,} gradient rows per client and round are fewer than (σ_g/L)² = {variance * rows:.4g}: the "
            f"theorems keep their rate DL/√K only for σ̄² up to about 1, but σ̄² = {variance:.3g}. Increase B_g·E to at "
            f"least {min_gradient_rows(constants):,}."
        )
    return tuple(warnings)
