"""How good an answer is: a lower bound on the best possible, and how far above it the answer lies."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from softswitch.support.text import in_words

_ARRAYS = ("weights", "multipliers")
MOST_ENTRIES = 10**8
"""One a client and constraint: nobody has more."""


@dataclass(frozen=True, eq=False)
class LowerBound:
    """A lower bound on F*, the smallest worst-client objective that any parameters within the tolerance can have.

    Attributes:
        value: F* is at least this; −∞ where there is no bound.
        objective: F of the answer, on all training data.
        tolerance: ε, that F* is meant at.
        meets: whether the answer meets that tolerance, and lies in the domain. One that does not may lie below F*.
        certified: whether the bound is certified: the problem is declared convex, and no check refuted it. Otherwise
            it is an estimate.
        why: reason for ``certified``, or for the missing bound.
        assumed: what is taken for granted beside convexity; empty where nothing is.
        weights: p, one entry a client: of the objectives in the Lagrangian.
        multipliers: μ of the constraints; clients × constraints, and 1 × constraints for one on all data together.
        subtracted: how much was taken off for a minimum that was not quite found, and for rounding.
        rows: how many rows gradients and values were taken of.
    """

    value: float
    objective: float
    tolerance: float
    meets: bool
    certified: bool
    why: str
    assumed: str
    weights: np.ndarray
    multipliers: np.ndarray
    subtracted: float
    rows: int

    @property
    def gap(self) -> float:
        """F(answer) − value: the answer is at most so much above the best possible; ∞ without a bound."""
        return self.objective - self.value

    @property
    def relative_gap(self) -> float:
        """The gap as a share of the bound; ∞ where the bound is not above 0, since a share of that says nothing."""
        return self.gap / self.value if self.value > 0 else math.inf

    def __str__(self) -> str:
        """In words, as part of a sentence."""
        if not math.isfinite(self.value):
            return f"no bound: {self.why}"
        kind = f"(certified: {self.why})" if self.certified else f"(estimated: {self.why})"
        if not self.meets:
            least = f"the best possible is {'at least' if self.certified else 'about'} {in_words(self.value)} {kind}"
            but = "is above the tolerance or outside the domain, and so may lie below the best possible"
            return f"{least}; the answer has {in_words(self.objective)}, but {but}"
        above = max(self.gap, 0.0)
        share = max(self.relative_gap, 0.0)
        told = f"{above:.3g}" if share > 10 else f"{100 * share:.2g}%" if share < 0.995 else f"{100 * share:.0f}%"
        return f"{'at most' if self.certified else 'about'} {told} above the best possible {kind}"

    def to_dict(self) -> dict[str, Any]:
        """As plain numbers and words for JSON: what is not finite is None, and of the weights only those above 0."""
        plain: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        for name in _ARRAYS:
            array = plain[name]
            places = np.argwhere(array > 0)
            entries = [[*place, float(array[tuple(place)])] for place in places.tolist()]
            plain[name] = {"shape": list(array.shape), "entries": entries}
        for name in ("value", "objective", "subtracted"):
            plain[name] = plain[name] if math.isfinite(plain[name]) else None
        return plain | {"gap": self.gap if math.isfinite(self.gap) else None, "words": str(self)}

    @classmethod
    def from_dict(cls, told: dict[str, Any]) -> LowerBound:
        """What ``to_dict`` told.

        Args:
            told: what ``to_dict`` gave.
        """
        own = {field.name: told[field.name] for field in fields(cls)}
        for name in _ARRAYS:
            if math.prod(own[name]["shape"]) > MOST_ENTRIES:
                raise ValueError(f"{name} must have at most {MOST_ENTRIES:,} entries, but is {own[name]['shape']}")
            array = np.zeros(own[name]["shape"])
            for *place, entry in own[name]["entries"]:
                array[tuple(place)] = entry
            own[name] = array
        for name, otherwise in (("value", -math.inf), ("objective", math.nan), ("subtracted", math.inf)):
            own[name] = otherwise if own[name] is None else own[name]
        return cls(**own)
