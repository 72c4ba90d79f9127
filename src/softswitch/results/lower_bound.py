"""A lower bound on the optimal value, and the optimality gap of an answer."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from softswitch.results.json_numbers import replace_non_finite
from softswitch.support.text import format_value

_ARRAYS = ("weights", "multipliers")
MAX_ENTRIES = 10**8  # largest number of clients × constraints in a file


@dataclass(frozen=True, eq=False)
class LowerBound:
    """A lower bound on F*, the smallest worst-client objective of any parameters within the tolerance.

    Attributes:
        value: The bound; −∞ if there is none.
        objective: F of the answer on all training data.
        tolerance: The tolerance ε in the definition of F*.
        feasible: Whether the answer meets the tolerance and is in the domain. If not, it may be below F*.
        certified: Whether the bound is rigorous: the problem is declared convex, and no check contradicted that.
            Otherwise it is an estimate.
        reason: Why the bound is rigorous or an estimate, or why there is none.
        assumptions: What is assumed in addition to convexity; empty if nothing is.
        weights: Weights p of the clients' objectives in the Lagrangian.
        multipliers: Multipliers μ of the constraints; clients × constraints, or 1 × constraints if it is pooled.
        subtracted: Margin subtracted for an inexact minimum and for rounding.
        rows: Number of rows on which gradients and values were computed.
    """

    value: float
    objective: float
    tolerance: float
    feasible: bool
    certified: bool
    reason: str
    assumptions: str
    weights: np.ndarray
    multipliers: np.ndarray
    subtracted: float
    rows: int

    @property
    def gap(self) -> float:
        """The optimality gap F(answer) − value; ∞ without a bound."""
        return self.objective - self.value

    @property
    def relative_gap(self) -> float:
        """The gap divided by the bound; ∞ if the bound is not positive."""
        return self.gap / self.value if self.value > 0 else math.inf

    def __str__(self) -> str:
        """Describe the bound as a part of a sentence."""
        if not math.isfinite(self.value):
            return f"no bound: {self.reason}"
        kind = f"({'certified' if self.certified else 'estimated'}: {self.reason})"
        if not self.feasible:
            least = f"the optimum is {'at least' if self.certified else 'about'} {format_value(self.value)} {kind}"
            reason = "is above the tolerance or outside the domain, and may be below the optimum"
            return f"{least}; the answer has {format_value(self.objective)}, but {reason}"
        gap, share = max(self.gap, 0.0), max(self.relative_gap, 0.0)
        written = f"{gap:.3g}" if share > 10 else f"{100 * share:.2g}%" if share < 0.995 else f"{100 * share:.0f}%"
        return f"{'at most' if self.certified else 'about'} {written} above the optimum {kind}"

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for JSON, with None for numbers that are not finite and arrays in sparse form."""
        plain: dict[str, Any] = {entry.name: replace_non_finite(getattr(self, entry.name)) for entry in fields(self)}
        for name in _ARRAYS:
            array = plain[name]
            entries = [[*place, float(array[tuple(place)])] for place in np.argwhere(array > 0).tolist()]
            plain[name] = {"shape": list(array.shape), "entries": entries}
        return plain | {"gap": replace_non_finite(self.gap), "description": str(self)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> LowerBound:
        """Restore a bound from ``to_dict``."""
        restored = {entry.name: values[entry.name] for entry in fields(cls)}
        for name in _ARRAYS:
            shape = restored[name]["shape"]
            if math.prod(shape) > MAX_ENTRIES:
                raise ValueError(f"{name} must have at most {MAX_ENTRIES:,} entries, but is {shape}")
            array = np.zeros(shape)
            for *place, entry in restored[name]["entries"]:
                array[tuple(place)] = entry
            restored[name] = array
        for name, missing in (("value", -math.inf), ("objective", math.nan), ("subtracted", math.inf)):
            restored[name] = missing if restored[name] is None else restored[name]
        return cls(**restored)
