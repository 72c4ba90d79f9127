"""plan(): rounds, batches, step sizes and α for a target accuracy or a budget, by the theorems."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.table import Table
from scipy import optimize

from softswitch.methods.memory import Memory
from softswitch.oracles.options import Sampling, count_participants
from softswitch.support import checks
from softswitch.support.bisection import smallest_integer
from softswitch.support.text import render_text
from softswitch.theory import theorems
from softswitch.theory.theorems import Bound, Constants, Setting, bound

MAX_ROUNDS = MAX_ROWS = 10**15  # largest number of rounds, and of rows per report, that is considered
DEFAULT_SWITCH_SHARE = 0.05
GRADIENT_FACTORS = [2**i for i in range(11)]  # multiples of the smallest admissible gradient batch that are tried


@dataclass(frozen=True)
class Remedy:
    """A change that lowers ε, with ε and the number of rows evaluated after it."""

    change: str
    epsilon: float
    samples: int


@dataclass(frozen=True)
class Plan:
    """Settings of a run, the theorem's bounds for them, and their cost.

    Attributes:
        constants: Assumed constants of the problem.
        setting: n, m, K, E, B_g, B_ζ, δ.
        bound: The theorem's errors, step sizes and smallest α.
        switch_share: Smallest share κ of feasible rounds for which the constraint's bound holds: the given one, or the
            one implied by Slater's condition if that is larger.
        target_epsilon: The requested ε; None if a budget was given.
        met: Whether the bound is at most the requested ε.
        smallest_epsilon: Smallest ε for any number of rows, within the allowed rounds and at this participation.
        advice: The dominant error and the cheapest way to lower it, or the reason why the target cannot be met.
        remedies: Effects of more rounds, larger batches or more clients, the cheapest improvement first.
        warnings: Values of E or B_g with which the optimization error loses its rate DL/√K.
        slater: ν, the margin by which some w meets all constraints, if given.
    """

    constants: Constants
    setting: Setting
    bound: Bound
    switch_share: float
    target_epsilon: float | None
    met: bool
    smallest_epsilon: float
    advice: str
    remedies: tuple[Remedy, ...]
    warnings: tuple[str, ...] = ()
    slater: float | None = None

    @property
    def constraint_bound(self) -> float:
        """The upper bound on G(w̄) if κ is at least ``switch_share``."""
        return theorems.constraint_bound(self.constants, self.setting, self.switch_share)

    @property
    def value_samples(self) -> int:
        """Number of rows on which values are evaluated, K·m·B_ζ."""
        return self.setting.rounds * self.setting.participants * self.setting.value_batch_size

    @property
    def gradient_samples(self) -> int:
        """Number of rows on which gradients are evaluated, K·m·E·B_g."""
        return self.samples - self.value_samples

    @property
    def samples(self) -> int:
        """Number of rows evaluated."""
        return self.setting.samples

    def solve_options(self) -> dict[str, Any]:
        """Return rounds and sampling: ``solve(problem, clients, method, **plan.solve_options())``."""
        sampling = Sampling(
            local_steps=self.setting.local_steps,
            participation=self.setting.participants / self.setting.clients,
            batch_size=self.setting.batch_size,
            value_batch_size=self.setting.value_batch_size,
        )
        return {"rounds": self.setting.rounds, "sampling": sampling}

    def method_settings(self) -> dict[str, Any]:
        """Return the settings of the method, for ``SoftmaxSGM(**plan.method_settings())``."""
        settings = {name: getattr(self.bound, name) for name in ("alpha", "step_size", "local_step_size")}
        return settings | {"tolerance": self.bound.epsilon, "slack": 1.0}

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain values, for JSON."""
        errors = {name: getattr(self.bound, name) for name in ("epsilon", "threshold", "dominant")}
        names = ("met", "target_epsilon", "smallest_epsilon", "switch_share", "slater", "advice")
        return {
            **{name: getattr(self, name) for name in (*names, "value_samples", "gradient_samples")},
            "constants": asdict(self.constants),
            "setting": asdict(self.setting),
            "bound": {**asdict(self.bound), **errors, "constraint_bound": self.constraint_bound},
            "remedies": [asdict(remedy) for remedy in self.remedies],
            "warnings": list(self.warnings),
        }

    def table(self) -> Table:
        """Return the plan as a table for the terminal."""
        table = Table("quantity", "symbol", "value", title=f"Plan by Theorem {self.bound.theorem}")
        setting, bound = self.setting, self.bound
        for row in (
            ("rounds", "K", f"{setting.rounds:,}"),
            ("clients per round", "m of n", f"{setting.participants:,} of {setting.clients:,}"),
            ("local steps", "E", str(setting.local_steps)),
            ("rows per report", "B_ζ", f"{setting.value_batch_size:,}"),
            ("rows per gradient", "B_g", f"{setting.batch_size:,}"),
            ("server step size", "η", f"{bound.step_size:.4g}"),
            ("local step size", "γ", f"{bound.local_step_size:.4g}"),
            ("tolerance", "ε", f"{bound.epsilon:.4g}"),
            ("threshold", "λ = ε/2", f"{bound.threshold:.4g}"),
            ("softmax sharpness, at least", "α", f"{bound.alpha:.4g}"),
            ("optimization error", "ε'", f"{bound.optimization:.4g}"),
            ("estimation error", "", f"{bound.estimation:.4g}"),
            (f"{'sampling' if setting.longest_wait is None else 'staleness'} error", "", f"{bound.sampling:.4g}"),
            (f"constraint, at most if κ >= {self.switch_share:g}", "G(w̄)", f"{self.constraint_bound:.4g}"),
            ("probability, at least", "1 − δ", f"{1 - setting.delta:g}"),
            ("rows for values", "K·m·B_ζ", f"{self.value_samples:,}"),
            ("rows for gradients", "K·m·E·B_g", f"{self.gradient_samples:,}"),
        ):
            table.add_row(*row)
        return table

    def __str__(self) -> str:
        return render_text(self.table(), self.advice, *(f"Warning: {warning}" for warning in self.warnings), width=100)


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
        slater: ν > 0 such that some w in Θ has G(w) <= −ν. Then κ >= ν/(ν + DL + ε) (``min_switch_share``).
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
    share = default if switch_share is None else checks.check_real("switch_share", switch_share, above=0, maximum=1)
    target = None if epsilon is None else checks.check_real("epsilon", epsilon, above=0)
    budget = 0 if samples is None else checks.check_integer("samples", samples, minimum=1)
    participants = count_participants(participation, clients)
    wait = _longest_wait(memory, clients, participants)
    plans: list[Plan] = []
    for steps, size in _gradient_choices(constants, local_steps, batch_size):
        template = Setting(clients, participants, 1, steps, size, 1, delta, wait)
        if target is None and plans and budget < participants * (steps * size + 1):
            continue  # beyond the budget; the first choice raises an error in that case
        plans.append(_Planner(constants, template, limit, share, nu).plan(target, budget))
    best = min(plans, key=lambda p: (not p.met, bool(p.warnings), p.bound.epsilon if target is None else p.samples))
    return best if slater is None else replace(best, slater=nu)


def _gradient_choices(constants: Constants, local_steps: int | None, batch_size: int | None) -> list[tuple[int, int]]:
    """Return the pairs of E and B_g to choose from."""
    if local_steps is not None and batch_size is not None:
        return [(local_steps, batch_size)]
    needed = theorems.min_gradient_rows(constants)
    if batch_size is None:
        steps = 1 if local_steps is None else checks.check_integer("local_steps", local_steps, minimum=1)
        return [(steps, -(-needed // steps) * factor) for factor in GRADIENT_FACTORS]
    size = checks.check_integer("batch_size", batch_size, minimum=1)
    return [(steps, size) for steps in sorted({1, *(-(-needed // size) * factor for factor in GRADIENT_FACTORS)})]


def _longest_wait(memory: Memory | None, clients: int, participants: int) -> int | None:
    if memory is None:
        return None
    checks.check_instance("memory", memory, Memory)
    if memory.smoothing:
        raise ValueError(f"memory must have smoothing=0 in a plan, but is {memory}")
    if not memory.places(participants).by_objective:
        raise ValueError(
            f"memory must select clients by constraint and by objective, but with {participants} clients per round "
            f"selects {memory.places(participants)}; select at least 3 per round"
        )
    return memory.longest_wait(clients, participants)


@dataclass(frozen=True)
class _Planner:
    """Plans for one choice of E and B_g. κ is at least ``share``, and what Slater's ν implies (0 if unknown)."""

    constants: Constants
    template: Setting
    limit: int
    share: float
    slater: float

    def plan(self, target: float | None, budget: int) -> Plan:
        """Return the plan for a target, or without one for a budget of rows."""
        constants, slater = self.constants, self.slater
        floor = _smallest_error(constants, self.template, self.limit)
        smallest = floor + self._excess(floor)
        cheapest = None if target is None else self._cheapest(self._available_epsilon(target))
        if target is None:
            setting = self._best_within(budget)
        else:
            fallback = cheapest or self._cheapest(self._available_epsilon(1.1 * smallest))
            setting = fallback or replace(self.template, rounds=self.limit)
        share = max(self.share, theorems.min_switch_share(constants, setting, slater) if slater else 0.0)
        promised, (remedies, best) = bound(constants, setting), _find_remedies(constants, setting)
        met = target is None or cheapest is not None
        if not met and target is not None:
            advice = self._explain_failure(setting, share, target, smallest)
        else:
            part = getattr(promised, promised.dominant) / promised.epsilon
            advice = f"The {promised.dominant} error dominates ({part:.0%} of ε = {promised.epsilon:.4g})."
            if best is not None:
                cost = f"ε = {best.epsilon:.4g}, {best.samples:,} rows"
                advice += f" The cheapest way to lower it: {best.change} ({cost})."
            if setting.participants < setting.clients:
                advice += _describe_constraint(constants, setting, share, slater > 0)
                advice += _describe_general_bound(
                    constants, setting, promised.epsilon, lambda other: bound(other, setting).epsilon
                )
        warnings = _find_warnings(constants, setting)
        return Plan(constants, setting, promised, share, target, met, smallest, advice, remedies, warnings)

    def _excess(self, epsilon: float) -> float:
        """Return ``_constraint_excess`` at the smallest κ for an accuracy of ε."""
        implied = self.slater / (self.slater + self.constants.diameter * self.constants.lipschitz + epsilon)
        return _constraint_excess(self.constants, self.template, max(self.share, implied))

    def _available_epsilon(self, target: float) -> float:
        """Return the largest ε for which the constraint's bound is within the target."""
        if not self.slater:
            return target - self._excess(target)
        if target + self._excess(target) <= target:
            return target
        if self._excess(0.0) >= target:
            return 0.0
        root = optimize.brentq(lambda e: e + self._excess(e) - target, 0.0, target, xtol=1e-12 * target)
        return float(root) * (1 - 1e-9)

    def _cheapest(self, target: float) -> Setting | None:
        """Return the setting with the fewest rows whose ε is at most the target; None if there is none."""
        constants, template = self.constants, self.template

        def is_enough(setting: Setting) -> bool:
            return bound(constants, setting).epsilon <= target

        def with_rounds(rounds: int) -> Setting | None:
            """Return the setting with the smallest sufficient B_ζ."""
            setting = replace(template, rounds=rounds)
            errors = bound(constants, setting)
            remaining = target - errors.optimization - errors.sampling
            if errors.estimation <= remaining:
                return setting
            if remaining <= 0:
                return None
            size = smallest_integer(lambda b: is_enough(replace(setting, value_batch_size=b)), limit=MAX_ROWS)
            return None if size is None else replace(setting, value_batch_size=size)

        def cost(rounds: int) -> float:
            setting = with_rounds(rounds)
            return math.inf if setting is None else float(setting.samples // setting.participants)

        # If the sampling error grows with K, ε falls and rises again: smaller factors find the interval between.
        growth = 1.1 if _grows_with_rounds(constants, template) else 2.0
        fewest = smallest_integer(lambda k: with_rounds(k) is not None, limit=self.limit, growth=growth)
        if fewest is None:
            return None
        # More rounds than the fewest allow a larger estimation error, and may need fewer rows.
        span = (math.log(fewest), math.log(min(self.limit, 1000 * fewest)))
        optimum = optimize.minimize_scalar(lambda x: math.log(cost(max(fewest, round(math.exp(x))))), bounds=span)
        rounds = min((fewest, max(fewest, round(math.exp(optimum.x)))), key=cost)
        best = with_rounds(rounds)
        assert best is not None
        enough = smallest_integer(lambda k: is_enough(replace(best, rounds=k)), limit=rounds)
        return best if enough is None else with_rounds(enough) or best

    def _best_within(self, budget: int) -> Setting:
        """Return the setting with the smallest ε that evaluates at most ``budget`` rows."""
        participants, gradient_rows = self.template.participants, self.template.local_steps * self.template.batch_size
        most = min(self.limit, budget // self.template.samples)
        if most < 1:
            raise ValueError(
                f"samples must be at least {self.template.samples}, one round of m = {participants} clients with "
                f"E·B_g = {gradient_rows} rows and one row per report, but is {budget}"
            )

        def within(rounds: int) -> Setting:
            size = budget // (participants * rounds) - gradient_rows
            return replace(self.template, rounds=rounds, value_batch_size=size)

        def error(rounds: int) -> float:
            return bound(self.constants, within(rounds)).epsilon

        span = (0, math.log(most))
        optimum = optimize.minimize_scalar(lambda x: error(min(most, max(1, round(math.exp(x))))), bounds=span)
        near = round(math.exp(optimum.x))
        # Rows per report are rounded down, so neighbouring numbers of rounds differ; few rounds differ most.
        candidates = {*range(1, min(most, 100) + 1), *range(max(1, near - 20), min(most, near + 20) + 1), most}
        best = within(min(candidates, key=error))
        return replace(best, value_batch_size=1) if self.constants.value_noise == 0 else best

    def _explain_failure(self, setting: Setting, switch_share: float, target: float, smallest: float) -> str:
        """Explain why a target cannot be met, and what would meet it."""
        constants, limit, n = self.constants, self.limit, setting.clients

        def sampling_error(participants: int) -> float:
            partial = replace(setting, participants=participants)
            return bound(constants, partial).sampling + _constraint_excess(constants, partial, switch_share)

        sampling = sampling_error(setting.participants)
        if sampling < target or setting.longest_wait is not None:
            rounds = f"in {limit:,} rounds" if limit < MAX_ROUNDS else "in any practical number of rounds and rows"
            advice = " Allow more rounds." if limit < MAX_ROUNDS else ""
            return f"ε = {target:g} cannot be met {rounds}: with the largest batches ε is {smallest:.4g}.{advice}"
        grows = _grows_with_rounds(constants, setting)

        def is_enough(participants: int) -> bool:
            if grows:
                return _smallest_error(constants, replace(setting, participants=participants), MAX_ROUNDS) < target
            return sampling_error(participants) < target

        enough = smallest_integer(is_enough, limit=n)
        text = (
            f"ε = {target:g} cannot be met with {setting.participants} of {n} clients per round: the sampling error is "
            f"{sampling:.4g}{'' if grows else f' (κ >= {switch_share:.4g})'}, and does not fall with more rounds or "
            f"rows. The smallest reachable ε is just above {smallest:.4g}; for {target:g} select at least {enough} "
            "clients per round"
        )
        more = replace(setting, participants=enough or n, rounds=limit)
        if _smallest_error(constants, more, limit) + _constraint_excess(constants, more, switch_share) > target:
            text += f", and allow more than {limit:,} rounds"
        general = _describe_general_bound(constants, setting, smallest, lambda c: _smallest_error(c, setting, limit))
        return f"{text}.{general}"


def _smallest_error(constants: Constants, template: Setting, limit: int) -> float:
    """Return the smallest ε with unlimited rows per report, in at most ``limit`` rounds."""
    rounds = [limit]
    if _grows_with_rounds(constants, template):
        k = 1
        while k < limit:
            rounds.append(k)
            k = max(k + 1, int(1.1 * k))
    noiseless = replace(constants, value_noise=0.0)
    return min(bound(noiseless, replace(template, rounds=k)).epsilon for k in rounds)


def _grows_with_rounds(constants: Constants, setting: Setting) -> bool:
    """Return whether the sampling error grows with the number of rounds, as in the general bound."""
    return setting.participants < setting.clients and setting.longest_wait is None and constants.gap != "uniform"


def _constraint_excess(constants: Constants, setting: Setting, switch_share: float) -> float:
    """Return how far the constraint's bound lies above ε at the smallest κ, for any rounds and batches."""
    return max(0.0, theorems.constraint_bound(constants, setting, switch_share) - bound(constants, setting).epsilon)


def _find_remedies(constants: Constants, setting: Setting) -> tuple[tuple[Remedy, ...], Remedy | None]:
    """Return remedies by the decrease of ε per additional row, and the best one for the dominant error."""
    now = bound(constants, setting)
    more = min(setting.clients, 2 * setting.participants)
    changes = {
        "twice the rounds": replace(setting, rounds=2 * setting.rounds),
        "twice the rows per report": replace(setting, value_batch_size=2 * setting.value_batch_size),
        "twice the rows per gradient": replace(setting, batch_size=2 * setting.batch_size),
    }
    if setting.longest_wait is None:
        changes[f"{more} clients per round"] = replace(setting, participants=more)
    gains = []
    for change, new in changes.items():
        after = bound(constants, new)
        if after.epsilon < now.epsilon:
            rows = new.samples - setting.samples
            dominant_gain = (getattr(now, now.dominant) - getattr(after, now.dominant)) / rows
            remedy = Remedy(change, after.epsilon, new.samples)
            gains.append(((now.epsilon - after.epsilon) / rows, dominant_gain, remedy))
    ordered = tuple(remedy for _, _, remedy in sorted(gains, key=lambda entry: -entry[0]))
    best = max(gains, key=lambda entry: entry[1], default=None)
    return ordered, best[2] if best is not None and best[1] > 0 else None


def _describe_constraint(constants: Constants, setting: Setting, switch_share: float, slater: bool) -> str:
    """Describe the constraint's bound with partial participation."""
    shares = (switch_share, 1 / setting.rounds)
    most, always = (theorems.constraint_bound(constants, setting, kappa) for kappa in shares)
    text = f" The constraint is at most {most:.4g}"
    if _grows_with_rounds(constants, setting):
        return f"{text} for any κ."
    source = ", which follows from Slater's condition" if slater else ""
    text += f" if κ >= {switch_share:.4g}{source}."
    return f"{text} For any κ >= 1/K it is at most {always:.4g}." if always > most else text


def _describe_general_bound(
    constants: Constants, setting: Setting, now: float, error: Callable[[Constants], float]
) -> str:
    """Mention the paper's general bound if it is smaller than Theorem 3's for the same uniform gap."""
    if constants.gap != "uniform" or setting.longest_wait is not None:
        return ""
    general = error(replace(constants, gap="beta", gap_shape=(1.0, 1.0)))
    text = f" The paper's general bound (gap 'beta' of shape (1, 1)) gives ε = {general:.4g} for any κ."
    return text if general < now else ""


def _find_warnings(constants: Constants, setting: Setting) -> tuple[str, ...]:
    """Return warnings if ε' loses the rate DL/√K: E beyond √K, or too noisy gradients."""
    warnings = []
    rows, variance = setting.batch_size * setting.local_steps, theorems.effective_variance(constants, setting)
    if setting.local_steps > theorems.max_local_steps(setting.rounds):
        drift = 1 + setting.local_steps / math.sqrt(6 * setting.rounds)
        warnings.append(
            f"E = {setting.local_steps} local steps are more than √K = {math.sqrt(setting.rounds):.4g}: the theorems "
            f"keep their rate DL/√K only for E up to about √K. Drift multiplies the gradient noise by {drift:.3g}."
        )
    if variance > 1:
        warnings.append(
            f"B_g·E = {rows:,} gradient rows per client and round are fewer than (σ_g/L)² = {variance * rows:.4g}: the "
            f"theorems keep their rate DL/√K only for σ̄² up to about 1, but σ̄² = {variance:.3g}. Increase B_g·E to at "
            f"least {theorems.min_gradient_rows(constants):,}."
        )
    return tuple(warnings)
