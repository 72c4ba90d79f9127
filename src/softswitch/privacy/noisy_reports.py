"""What clients that tell only sums with noise have in common, whatever they compute with."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, NamedTuple

import numpy as np

from softswitch.oracles.base import Oracle


class NoiseDeviations(NamedTuple):
    """The deviation of the noise on each number of a sum.

    Attributes:
        report: on f and each g of a report.
        step: on each number of a gradient.
        evaluation: on f and each g of an evaluation.
    """

    report: Any
    step: Any
    evaluation: Any


class NoisyOracle(Oracle):
    """Clients that hold rows, clip what each of them says, add it up, and add noise.

    Attributes:
        counts: how many rows f and each g concern, as it is declared or was told with noise; 0: none, and the client
            has no such function. Clients × functions.
        shares: which share of its rows a client draws.
        noise: how much noise there is.
        clip_gradient: how long a row's gradient is at most.
    """

    counts: Any
    shares: Any
    noise: NoiseDeviations
    clip_gradient: Any
    noise_setting: ClassVar[str] = "epsilon of the privacy, or the rows of the smallest clients"
    is_private: ClassVar[bool] = True

    @abstractmethod
    def without_final_evaluation(self) -> NoisyOracle:
        """The same clients, none of which judges an answer: all that is told of one is NaN."""

    @property
    def report_deviations(self) -> np.ndarray:
        """The deviation of the noise on each client's reported f and g; clients × functions, ∞ where there is none."""
        counts = np.asarray(self.counts) * np.asarray(self.shares)[:, None]
        return np.where(counts > 0, float(self.noise.report) / np.where(counts > 0, counts, 1), np.inf)

    @property
    def evaluation_deviations(self) -> np.ndarray:
        """The same of an evaluation."""
        counts = np.asarray(self.counts)
        return np.where(counts > 0, float(self.noise.evaluation) / np.where(counts > 0, counts, 1), np.inf)

    def evaluate(self, params: Any) -> Any:
        """Nobody looks at all rows while a run goes on."""
        raise ValueError("private clients are not evaluated on all rows during a run: their reports are what they tell")

    def cost(self, row_count: Any) -> tuple[Any, Any]:
        """By how many rows are declared."""
        rows = round(self.participants * float((np.asarray(self.counts).max(axis=1) * np.asarray(self.shares)).mean()))
        return rows, self.local_steps * rows
