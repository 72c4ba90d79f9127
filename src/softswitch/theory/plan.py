"""Plan: settings of a run, the theorem's bounds for them, and their cost."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from softswitch.oracles.options import Sampling
from softswitch.support.text import render_text
from softswitch.theory.theorems import Bound, Constants, Setting, constraint_bound


@dataclass(frozen=True)
class Remedy:
    """A change that lowers ε.

    Attributes:
        change: Description of the change.
        epsilon: ε after the change.
        samples: Number of rows evaluated after the change.
    """

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
        return constraint_bound(self.constants, self.setting, self.switch_share)

    @property
    def value_samples(self) -> int:
        """Number of rows on which values are evaluated, K·m·B_ζ."""
        return self.setting.rounds * self.setting.participants * self.setting.value_batch_size

    @property
    def gradient_samples(self) -> int:
        """Number of rows on which gradients are evaluated, K·m·E·B_g."""
        setting = self.setting
        return setting.rounds * setting.participants * setting.local_steps * setting.batch_size

    @property
    def samples(self) -> int:
        """Number of rows evaluated."""
        return self.value_samples + self.gradient_samples

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
        """Return the settings of the method, as used by ``SoftmaxSGM.from_plan(plan)``."""
        return {
            "alpha": self.bound.alpha,
            "step_size": self.bound.step_size,
            "local_step_size": self.bound.local_step_size,
            "tolerance": self.bound.epsilon,
            "slack": 1.0,
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain values, for JSON."""
        return {
            "met": self.met,
            "target_epsilon": self.target_epsilon,
            "smallest_epsilon": self.smallest_epsilon,
            "constants": asdict(self.constants),
            "setting": asdict(self.setting),
            "bound": {
                **asdict(self.bound),
                "epsilon": self.bound.epsilon,
                "threshold": self.bound.threshold,
                "dominant": self.bound.dominant,
                "constraint_bound": self.constraint_bound,
            },
            "switch_share": self.switch_share,
            "slater": self.slater,
            "value_samples": self.value_samples,
            "gradient_samples": self.gradient_samples,
            "advice": self.advice,
            "remedies": [asdict(remedy) for remedy in self.remedies],
            "warnings": list(self.warnings),
        }

    def table(self) -> Table:
        """Return the plan as a table for the terminal."""
        table = Table("quantity", "symbol", "value", title=f"Plan by Theorem {self.bound.theorem}")
        setting, bound = self.setting, self.bound
        sampling = "sampling error" if setting.longest_wait is None else "staleness error"
        rows: list[tuple[str, str, Any]] = [
            ("rounds", "K", f"{setting.rounds:,}"),
            ("clients per round", "m of n", f"{setting.participants:,} of {setting.clients:,}"),
            ("local steps", "E", setting.local_steps),
            ("rows per report", "B_ζ", f"{setting.value_batch_size:,}"),
            ("rows per gradient", "B_g", f"{setting.batch_size:,}"),
            ("server step size", "η", f"{bound.step_size:.4g}"),
            ("local step size", "γ", f"{bound.local_step_size:.4g}"),
            ("tolerance", "ε", f"{bound.epsilon:.4g}"),
            ("threshold", "λ = ε/2", f"{bound.threshold:.4g}"),
            ("softmax sharpness, at least", "α", f"{bound.alpha:.4g}"),
            ("optimization error", "ε'", f"{bound.optimization:.4g}"),
            ("estimation error", "", f"{bound.estimation:.4g}"),
            (sampling, "", f"{bound.sampling:.4g}"),
            (f"constraint, at most if κ >= {self.switch_share:g}", "G(w̄)", f"{self.constraint_bound:.4g}"),
            ("probability, at least", "1 − δ", f"{1 - setting.delta:g}"),
            ("rows for values", "K·m·B_ζ", f"{self.value_samples:,}"),
            ("rows for gradients", "K·m·E·B_g", f"{self.gradient_samples:,}"),
        ]
        for quantity, symbol, value in rows:
            table.add_row(quantity, symbol, str(value))
        return table

    def __str__(self) -> str:
        return render_text(self.table(), self.advice, *(f"Warning: {warning}" for warning in self.warnings), width=100)
