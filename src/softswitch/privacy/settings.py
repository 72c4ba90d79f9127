"""RecordPrivacy: how clients keep single rows private, as a user sets it."""

from __future__ import annotations

from dataclasses import dataclass

from softswitch.support import checks

SAMPLING = ("poisson", "fixed")
"""How rows are drawn: each by itself with the same probability, or so many of them without replacement."""

LEAST_EPSILON, LEAST_NOISE = 1e-6, 1e-9
"""With less, what is counted overflows, and a count that overflows may say that nothing was told."""


@dataclass(frozen=True, kw_only=True)
class RecordPrivacy:
    """Differential privacy of single rows: whatever leaves a client is a sum of clipped rows with Gaussian noise.

    Give ``epsilon``, and the noise is found that a run of so many rounds may take; give ``noise``, and ε is what comes
    out; give both, and participation ends when ε is spent. Needs ``pip install 'softswitch[privacy]'``.

    Attributes:
        epsilon: ε, the budget of each client for the whole run: with whatever else is known, odds about any single row
            change by at most e^ε, but for a probability of δ. None: ``noise`` decides.
        delta: δ; well below one over the rows of the smallest client.
        clip_value: one row tells of its objective and all of its constraints a vector; it is shortened to this length.
            Too small, and large losses look smaller than they are: a constraint is then kept by what was clipped only.
        clip_gradient: the gradient on one row is shortened to this length.
        sampling: "poisson": every row is drawn by itself with probability ``rate``, and what is compared is a client
            with and without a row. "fixed": that share of the rows, without replacement, and what is compared is a
            client with one row replaced by another; that costs more than twice the noise.
        rate: the share of its rows that a client draws for a report and for each gradient; 1: all of them.
        noise: the noise multiplier of a gradient: the noise's deviation over ``clip_gradient``.
        report_share: how much of the budget the reports get,
        evaluation_share: and how much the judging of the answer; gradients get the rest.
        public_sizes: whether it is no secret how many rows a client has, and how many each function concerns: of each
            class, say. False: these numbers are released with noise once, and charged.
        sizes_share: how much of the budget that gets, where they are not public.
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
        for name, least in (("epsilon", LEAST_EPSILON), ("noise", LEAST_NOISE)):
            if getattr(self, name) is not None:
                self._set(name, at_least=least)
        if self.epsilon is None and self.noise is None:
            raise ValueError("RecordPrivacy needs epsilon, the budget, or noise, the noise multiplier; it has neither")
        object.__setattr__(self, "delta", checks.probability("delta", self.delta))
        for name in ("clip_value", "clip_gradient"):
            self._set(name, above=0)
        self._set("rate", above=0, at_most=1)
        for name in ("report_share", "evaluation_share", "sizes_share"):
            object.__setattr__(self, name, checks.probability(name, getattr(self, name)))
        checks.one_of("sampling", self.sampling, SAMPLING)
        if not isinstance(self.public_sizes, bool):
            raise TypeError(f"public_sizes must be True or False, but is {self.public_sizes!r}")
        if self.sampling == "fixed" and not self.public_sizes:
            raise ValueError(
                "sampling='fixed' draws a share of a client's rows, and compares clients of the same size: "
                "public_sizes must be True with it; sampling='poisson' keeps sizes secret"
            )
        if self.step_share <= 0:
            raise ValueError(
                f"report_share, evaluation_share and sizes_share must leave something for gradients, but leave "
                f"{self.step_share:g}"
            )

    def _set(self, name: str, **bounds: float) -> None:
        object.__setattr__(self, name, checks.real_number(name, getattr(self, name), **bounds))

    @property
    def step_share(self) -> float:
        """How much of the budget the gradients get."""
        return 1 - self.report_share - self.evaluation_share - (0 if self.public_sizes else self.sizes_share)

    @property
    def neighbours(self) -> str:
        """Which two data sets are to be hard to tell apart, in words."""
        if self.sampling == "fixed":
            return "one row of the client is replaced by another; sizes stay as they are"
        if self.public_sizes:
            return "one row of the client is there or is not; the sizes it declares stay as they are"
        return "one row of the client is there or is not"
