"""NoisyOracle: clients that release only noisy sums, whatever they compute with."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, NamedTuple

import numpy as np

from softswitch.oracles.base import Oracle


class NoiseDeviations(NamedTuple):
    """Standard deviations of the noise on each entry of a sum.

    Attributes:
        report: Of f and g in a report.
        step: Of a gradient.
        evaluation: Of f and g in an evaluation.
    """

    report: Any
    step: Any
    evaluation: Any


class NoisyOracle(Oracle):
    """Clients that hold rows, clip the contribution of each row, sum them up and add noise.

    Attributes:
        counts: Number of rows of f and each g, public or released with noise; 0 if a client lacks the function.
            Clients × functions.
        shares: Fraction of its rows that each client draws.
        noise: Standard deviations of the noise.
        clip_gradient: Clipping norm of a row's gradient.
    """

    counts: Any
    shares: Any
    noise: NoiseDeviations
    clip_gradient: Any
    noise_setting: ClassVar[str] = "epsilon of the privacy, or the rows of the smallest clients"
    is_private: ClassVar[bool] = True

    @abstractmethod
    def without_final_evaluation(self) -> NoisyOracle:
        """Return the same clients without evaluations: ``evaluate_params`` returns NaN."""

    @property
    def report_deviations(self) -> np.ndarray:
        """Standard deviation of the noise on each reported f and g, clients × functions; ∞ for missing functions."""
        return self._deviations(self.noise.report, np.asarray(self.counts) * np.asarray(self.shares)[:, None])

    @property
    def evaluation_deviations(self) -> np.ndarray:
        """Standard deviation of the noise on each evaluated f and g, clients × functions; ∞ for missing functions."""
        return self._deviations(self.noise.evaluation, np.asarray(self.counts))

    @staticmethod
    def _deviations(noise: Any, counts: np.ndarray) -> np.ndarray:
        return np.where(counts > 0, float(noise) / np.where(counts > 0, counts, 1), np.inf)

    def evaluate(self, params: Any) -> Any:
        """Raise: an evaluation of all rows during a run would not be counted."""
        raise ValueError("private clients cannot be evaluated on all rows during a run; use their reports")

    def cost(self, row_count: Any) -> tuple[Any, Any]:
        """Return the cost of a round by the public or noisy numbers of rows."""
        rows = round(self.participants * float((np.asarray(self.counts).max(axis=1) * np.asarray(self.shares)).mean()))
        return rows, self.local_steps * rows
