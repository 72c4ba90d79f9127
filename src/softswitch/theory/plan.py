"""A plan: what to set, what it promises and what it costs, as a table and as plain numbers."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from softswitch.oracles.options import Sampling
from softswitch.support.text import as_text
from softswitch.theory.theorems import Bound, Constants, Setting, constraint_bound


@dataclass(frozen=True)
class Remedy:
    """A way to lower ε, and what it costs.

    Attributes:
        change: what to do.
        epsilon: ε afterwards.
        samples: oracle calls afterwards, in rows.
    """

    change: str
    epsilon: float
    samples: int


@dataclass(frozen=True)
class Plan:
    """What to set, what it promises and what it costs.

    Attributes:
        constants: what was assumed of the problem.
        setting: n, m, K, E, B_g, B_ζ, δ.
        bound: the theorem's errors, steps and smallest α for them.
        switch_share: the smallest share of feasible rounds, κ, that the promise on the constraint reckons with: what
            was given, or what Slater's condition assures, where that is more.
        wanted: the ε that was asked for; None where a budget was given.
        met: whether the promise is at most what was asked for.
        smallest: the smallest ε that any number of rows reaches, in the rounds allowed and at this participation.
        advice: in words: which error dominates, what lowers it most cheaply; or why the wish cannot be met.
        remedies: what more rounds, larger batches or more clients would give, cheapest gain first.
        warnings: where E or B_g are such that the error of optimization loses its rate DL/√K.
        slater: ν, by how much some w meets all constraints, where it was given.
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
        """What G(w̄) is promised to be at most, where κ is at least ``switch_share``."""
        return constraint_bound(self.constants, self.setting, self.switch_share)

    @property
    def value_samples(self) -> int:
        """Rows on which values are evaluated, K·m·B_ζ."""
        return self.setting.rounds * self.setting.participants * self.setting.value_batch_size

    @property
    def gradient_samples(self) -> int:
        """Rows on which gradients are evaluated, K·m·E·B_g."""
        setting = self.setting
        return setting.rounds * setting.participants * setting.local_steps * setting.batch_size

    @property
    def samples(self) -> int:
        """All oracle calls, in rows."""
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
        """The settings of the rule: ``SoftmaxSGM.from_plan(plan)``."""
        return {
            "alpha": self.bound.alpha,
            "step_size": self.bound.step_size,
            "local_step_size": self.bound.local_step_size,
            "tolerance": self.bound.epsilon,
            "slack": 1.0,
        }

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain numbers and words, for JSON."""
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
        """The plan as a table for the terminal."""
        table = Table("what", "symbol", "value", title=f"Plan by Theorem {self.bound.theorem}")
        setting, promise = self.setting, self.bound
        rows: list[tuple[str, str, Any]] = [
            ("rounds", "K", f"{setting.rounds:,}"),
            ("clients a round", "m of n", f"{setting.participants:,} of {setting.clients:,}"),
            ("local steps", "E", setting.local_steps),
            ("rows a report", "B_ζ", f"{setting.value_batch_size:,}"),
            ("rows a gradient", "B_g", f"{setting.batch_size:,}"),
            ("server step", "η", f"{promise.step_size:.4g}"),
            ("local step", "γ", f"{promise.local_step_size:.4g}"),
            ("tolerance", "ε", f"{promise.epsilon:.4g}"),
            ("threshold", "λ = ε/2", f"{promise.threshold:.4g}"),
            ("softmax sharpness, at least", "α", f"{promise.alpha:.4g}"),
            ("error of optimization", "ε'", f"{promise.optimization:.4g}"),
            ("error of estimation", "", f"{promise.estimation:.4g}"),
            (
                "error of sampling clients" if setting.longest_wait is None else "error of staleness",
                "",
                f"{promise.sampling:.4g}",
            ),
            (f"constraint at most, where κ >= {self.switch_share:g}", "G(w̄)", f"{self.constraint_bound:.4g}"),
            ("holds with probability, at least", "1 − δ", f"{1 - setting.delta:g}"),
            ("values evaluated, in rows", "K·m·B_ζ", f"{self.value_samples:,}"),
            ("gradients evaluated, in rows", "K·m·E·B_g", f"{self.gradient_samples:,}"),
        ]
        for what, symbol, value in rows:
            table.add_row(what, symbol, str(value))
        return table

    def __str__(self) -> str:
        return as_text(self.table(), self.advice, *(f"Warning: {warning}" for warning in self.warnings), width=100)
