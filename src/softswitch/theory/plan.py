"""Plans of runs by the theorems: rounds, batch sizes, step sizes and α for a target accuracy."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.table import Table
from scipy import optimize

from softswitch.oracles.options import Sampling, count_participants
from softswitch.support import checks
from softswitch.support.bisection import smallest_integer
from softswitch.support.text import render_text
from softswitch.theory import theorems
from softswitch.theory.theorems import Bound, Constants, Setting, bound

MAX_ROUNDS = MAX_ROWS = 10**15  # largest number of rounds, and of rows per report, that is considered
DEFAULT_SWITCH_SHARE = 0.05  # default of ``switch_share``, the smallest fraction of feasible rounds


@dataclass(frozen=True)
class Plan:
    """Settings of a run, the theorem's bounds for them, and their cost.

    Attributes:
        constants: Assumed constants of the problem.
        setting: Numbers of clients, rounds, local steps and rows, and δ.
        bound: The theorem's errors, step sizes and smallest α.
        switch_share: Smallest fraction κ of feasible rounds for which the constraint's bound holds, in (0, 1].
        target_epsilon: The requested ε, in units of f and g.
        met: Whether the bound is at most the requested ε.
        smallest_epsilon: Smallest ε for any number of rows, within the allowed rounds and at this participation.
        advice: Text with the dominant error, or why the target cannot be met.
        warnings: Texts about values of E or B_g with which the optimization error loses its rate DL/√K.
    """

    constants: Constants
    setting: Setting
    bound: Bound
    switch_share: float
    target_epsilon: float
    met: bool
    smallest_epsilon: float
    advice: str
    warnings: tuple[str, ...] = ()

    @property
    def constraint_bound(self) -> float:
        """Upper bound on G(w̄), in units of g, if κ is at least ``switch_share``."""
        return theorems.constraint_bound(self.constants, self.setting, self.switch_share)

    def solve_options(self) -> dict[str, Any]:
        """Return ``rounds`` and ``sampling`` for ``solve(problem, clients, method, **plan.solve_options())``."""
        sampling = Sampling(
            local_steps=self.setting.local_steps,
            participation=self.setting.participants / self.setting.clients,
            batch_size=self.setting.batch_size,
            value_batch_size=self.setting.value_batch_size,
        )
        return {"rounds": self.setting.rounds, "sampling": sampling}

    def method_settings(self) -> dict[str, Any]:
        """Return α, step sizes, tolerance and slack for ``SoftmaxSGM(**plan.method_settings())``."""
        settings = {name: getattr(self.bound, name) for name in ("alpha", "step_size", "local_step_size")}
        return settings | {"tolerance": self.bound.epsilon, "slack": 1.0}

    def to_dict(self) -> dict[str, Any]:
        """Return the fields and the derived bounds as a dict of JSON values."""
        errors = {name: getattr(self.bound, name) for name in ("epsilon", "threshold", "dominant")}
        plan = asdict(self) | {"samples": self.setting.samples}
        plan["bound"] |= errors | {"constraint_bound": self.constraint_bound}
        return plan

    def table(self) -> Table:
        """Return the plan as a ``rich`` table."""
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
            ("sampling error", "", f"{bound.sampling:.4g}"),
            (f"constraint, at most if κ >= {self.switch_share:g}", "G(w̄)", f"{self.constraint_bound:.4g}"),
            ("probability, at least", "1 − δ", f"{1 - setting.delta:g}"),
            ("rows evaluated", "K·m·(B_ζ + E·B_g)", f"{setting.samples:,}"),
        ):
            table.add_row(*row)
        return table

    def __str__(self) -> str:
        return render_text(self.table(), self.advice, *(f"Warning: {warning}" for warning in self.warnings), width=100)


def plan(
    constants: Constants,
    *,
    clients: int,
    epsilon: float,
    participation: float = 1.0,
    local_steps: int = 1,
    batch_size: int = 32,
    delta: float = 0.05,
    rounds: int | None = None,
    switch_share: float = DEFAULT_SWITCH_SHARE,
) -> Plan:
    """Plan a run that reaches ε with probability 1 − δ, and evaluates as few rows as possible.

    With partial participation, Theorem 3's bound on the constraint depends on κ, the fraction of feasible rounds, which
    is known only after the run: G(w̄) <= ε + 4σ ln(1/(2κ))/(|ln(1−r)|n). A target is met if it bounds both F(w̄) − F*
    and, for every κ >= ``switch_share``, G(w̄).

    Args:
        constants: Constants of the problem.
        clients: Number of clients n.
        epsilon: Target accuracy ε > 0, in units of f and g. The plan is the K and B_ζ with the fewest rows whose bound
            is at most ε.
        participation: Fraction m/n of the clients in a round, in (0, 1]. Default: 1.
        local_steps: Number of local steps E. Default: 1.
        batch_size: Number of rows B_g of a gradient. Default: 32.
        delta: Failure probability δ, in (0, 1). Default: 0.05.
        rounds: Maximum number of rounds. Default: 10¹⁵.
        switch_share: Smallest κ to allow for, in (0, 1]. It does not matter with full participation. Under Slater's
            condition ``min_switch_share`` bounds κ from below. Default: 0.05.

    Returns:
        The plan. If the target cannot be met, ``met`` is False, ``advice`` gives the reason, and the settings are those
        for 1.1 times the smallest reachable ε. ``warnings`` report E > √K or B_g·E < (σ_g/L)².
    """
    clients = checks.check_integer("clients", clients, minimum=1)
    participation = checks.check_real("participation", participation, above=0, maximum=1)
    limit = MAX_ROUNDS if rounds is None else checks.check_integer("rounds", rounds, minimum=1)
    share = checks.check_real("switch_share", switch_share, above=0, maximum=1)
    target = checks.check_real("epsilon", epsilon, above=0)
    participants = count_participants(participation, clients)
    template = Setting(clients, participants, 1, local_steps, batch_size, 1, delta)
    return _Planner(constants, template, limit, share).plan(target)


@dataclass(frozen=True)
class _Planner:
    """Planner for given n, m, E, B_g and δ, with at most ``limit`` rounds of which a fraction ``share`` is feasible."""

    constants: Constants
    template: Setting
    limit: int
    share: float

    def plan(self, target: float) -> Plan:
        """Return the plan for ε = ``target``; if it cannot be met, for 1.1 times the smallest ε."""
        constants, share = self.constants, self.share
        excess = self._constraint_excess(self.template)
        smallest = self._smallest_epsilon(self.template)
        cheapest = self._cheapest(target - excess)
        fallback = cheapest or self._cheapest(1.1 * smallest - excess)
        setting = fallback or replace(self.template, rounds=self.limit)
        promised, warnings = bound(constants, setting), _find_warnings(constants, setting)
        failure = None if cheapest else self._explain_failure(setting, target, smallest)
        advice = failure or self._explain_errors(setting, promised)
        return Plan(constants, setting, promised, share, target, cheapest is not None, smallest, advice, warnings)

    def _explain_errors(self, setting: Setting, promised: Bound) -> str:
        """Return advice: the dominant error, and the constraint's bound."""
        part = getattr(promised, promised.dominant) / promised.epsilon
        advice = f"The {promised.dominant} error dominates ({part:.0%} of ε = {promised.epsilon:.4g})."
        if setting.participants == setting.clients:
            return advice
        shares = (self.share, 1 / setting.rounds)
        most, always = (theorems.constraint_bound(self.constants, setting, kappa) for kappa in shares)
        advice += f" The constraint is at most {most:.4g} if κ >= {self.share:.4g}."
        return f"{advice} For any κ >= 1/K it is at most {always:.4g}." if always > most else advice

    def _cheapest(self, target: float) -> Setting | None:
        """Return the setting with the fewest rows whose ε is at most the target; None if there is none."""
        constants, template = self.constants, self.template

        def is_enough(setting: Setting) -> bool:
            return bound(constants, setting).epsilon <= target

        def with_rounds(rounds: int) -> Setting | None:
            """Return the setting with these rounds and the smallest B_ζ that meets the target, or None."""
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

        fewest = smallest_integer(lambda k: with_rounds(k) is not None, limit=self.limit)
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

    def _explain_failure(self, setting: Setting, target: float, smallest: float) -> str:
        """Return advice: why the target cannot be met, and what would meet it."""
        constants, limit, n, switch_share = self.constants, self.limit, setting.clients, self.share

        def sampling_error(participants: int) -> float:
            partial = replace(setting, participants=participants)
            return bound(constants, partial).sampling + self._constraint_excess(partial)

        sampling = sampling_error(setting.participants)
        if sampling < target:
            rounds = f"in {limit:,} rounds" if limit < MAX_ROUNDS else "in any practical number of rounds and rows"
            advice = " Allow more rounds." if limit < MAX_ROUNDS else ""
            return f"ε = {target:g} cannot be met {rounds}: with the largest batches ε is {smallest:.4g}.{advice}"
        enough = smallest_integer(lambda participants: sampling_error(participants) < target, limit=n)
        text = (
            f"ε = {target:g} cannot be met with {setting.participants} of {n} clients per round: the sampling error is "
            f"{sampling:.4g} (κ >= {switch_share:.4g}), and does not fall with more rounds or "
            f"rows. The smallest reachable ε is just above {smallest:.4g}; for {target:g} select at least {enough} "
            "clients per round"
        )
        if self._smallest_epsilon(replace(setting, participants=enough or n)) > target:
            text += f", and allow more than {limit:,} rounds"
        return f"{text}."

    def _smallest_epsilon(self, setting: Setting) -> float:
        """Return the smallest ε of objective and constraint with unlimited rows per report, in ``limit`` rounds."""
        noiseless = replace(self.constants, value_noise=0.0)
        return bound(noiseless, replace(setting, rounds=self.limit)).epsilon + self._constraint_excess(setting)

    def _constraint_excess(self, setting: Setting) -> float:
        """Return the constraint's bound at the smallest κ minus ε, or 0; rounds and batches do not matter."""
        constants = self.constants
        return max(0.0, theorems.constraint_bound(constants, setting, self.share) - bound(constants, setting).epsilon)


def _find_warnings(constants: Constants, setting: Setting) -> tuple[str, ...]:
    """Return warnings, one for each reason why ε' loses the rate DL/√K: E above √K, or too noisy gradients."""
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
