"""RecordPrivacy: settings of record-level differential privacy."""

from __future__ import annotations

from dataclasses import dataclass

from softswitch.support import checks

SAMPLING = ("poisson", "fixed")
"""How rows are drawn: independently with equal probability, or a fixed number without replacement."""

MIN_EPSILON, MIN_NOISE = 1e-6, 1e-9
"""Smaller values overflow in the accounting."""


@dataclass(frozen=True, kw_only=True)
class RecordPrivacy:
    """Record-level differential privacy: clients release only sums of clipped rows with Gaussian noise.

    Set ``epsilon`` to calibrate the noise for the planned number of rounds, or ``noise`` to compute ε from it. With
    both, a client stops taking part when its budget is spent. Needs ``pip install 'softswitch[privacy]'``.

    Attributes:
        epsilon: Budget ε of each client for the whole run. Default: ``noise`` determines it.
        delta: δ, which should be well below one over the rows of the smallest client.
        clip_value: Clipping norm of the vector of a row's objective and constraints. If it is too small, large losses
            are underestimated, and the constraint holds only for the clipped values.
        clip_gradient: Clipping norm of a row's gradient.
        sampling: "poisson" draws every row independently with probability ``rate``; neighbouring data sets differ by
            adding or removing a row. "fixed" draws that fraction of the rows without replacement; neighbouring data
            sets differ by replacing a row, which needs more than twice the noise.
        rate: Fraction of its rows that a client draws for a report and for each gradient.
        noise: Noise multiplier of a gradient: standard deviation of the noise divided by ``clip_gradient``.
        report_share: Share of the budget for reports.
        evaluation_share: Share of the budget for the evaluation of the answer. Gradients get the rest.
        public_sizes: Whether the number of rows of each client and function, such as of each class, is public. If
            False, these numbers are released once with noise, which is charged.
        sizes_share: Share of the budget for the numbers of rows if they are not public.
    """

    epsilon: float | None = None
    delta: float = 1e-5
    clip_value: float = 3.0
    clip_gradient: float = 2.0
    sampling: str = "poisson"
    rate: float = 1.0
    noise: float | None = None
    report_share: float = 0.5
    evaluation_share: float = 0.05
    public_sizes: bool = True
    sizes_share: float = 0.05

    def __post_init__(self) -> None:
        for name, minimum in (("epsilon", MIN_EPSILON), ("noise", MIN_NOISE)):
            if getattr(self, name) is not None:
                self._set(name, minimum=minimum)
        if self.epsilon is None and self.noise is None:
            raise ValueError(
                "RecordPrivacy needs epsilon (the budget) or noise (the noise multiplier), but has neither"
            )
        object.__setattr__(self, "delta", checks.check_probability("delta", self.delta))
        for name in ("clip_value", "clip_gradient"):
            self._set(name, above=0)
        self._set("rate", above=0, maximum=1)
        for name in ("report_share", "evaluation_share", "sizes_share"):
            object.__setattr__(self, name, checks.check_probability(name, getattr(self, name)))
        checks.check_choice("sampling", self.sampling, SAMPLING)
        if not isinstance(self.public_sizes, bool):
            raise TypeError(f"public_sizes must be True or False, but is {self.public_sizes!r}")
        if self.sampling == "fixed" and not self.public_sizes:
            raise ValueError(
                "public_sizes must be True with sampling='fixed', but is False; use sampling='poisson' to protect the "
                "numbers of rows"
            )
        if self.step_share <= 0:
            raise ValueError(
                "report_share, evaluation_share and sizes_share must sum to less than 1, but leave "
                f"{self.step_share:g} for gradients"
            )

    def _set(self, name: str, **bounds: float) -> None:
        object.__setattr__(self, name, checks.check_real(name, getattr(self, name), **bounds))

    @property
    def step_share(self) -> float:
        """Share of the budget for gradients."""
        return 1 - self.report_share - self.evaluation_share - (0 if self.public_sizes else self.sizes_share)

    @property
    def neighbours(self) -> str:
        """Definition of neighbouring data sets, as text."""
        if self.sampling == "fixed":
            return "one row of a client is replaced, with the same number of rows"
        if self.public_sizes:
            return "one row of a client is added or removed, with the same public numbers of rows"
        return "one row of a client is added or removed"
