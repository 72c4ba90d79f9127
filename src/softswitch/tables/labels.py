"""What the label is: one of two classes, one of several, or a number. How it becomes y, and scores predictions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from softswitch.engine.candidates import Move
from softswitch.problem.multiclass import decided_class
from softswitch.problem.networks import Network, constant_network, moved_network
from softswitch.problem.rates import decided
from softswitch.problem.regression import Unit

MOST_CLASSES = 100
"""A label of more values is most likely a number, or a name."""


class Label(ABC):
    """What a label is.

    Attributes:
        what: its name in settings and folders.
        outputs: how many numbers a network gives for it.
    """

    what: ClassVar[str]

    @property
    @abstractmethod
    def outputs(self) -> int:
        """How many numbers a network gives for a row."""

    @abstractmethod
    def encode(self, values: Any) -> np.ndarray:
        """y, one a row."""

    @abstractmethod
    def predicted(self, values: Any) -> np.ndarray:
        """What a network's outputs predict, in the label's own words or unit."""

    @abstractmethod
    def beside(self, values: Any) -> dict[str, np.ndarray]:
        """What else they say: probabilities, by the ending of a column's name."""

    @abstractmethod
    def said(self, y: Any) -> str:
        """What is found in the rows, in words."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """For JSON."""

    @property
    def move(self) -> Move | None:
        """How a model is moved to choose its decisions by other rows, where it can be."""
        return moved_network

    def constant(self, like: Network, value: float) -> Network:
        """A network of the same shape that says the same of every row."""
        return constant_network(like, value)


@dataclass(frozen=True)
class BinaryLabel(Label):
    """One of two values; y is 1 for the positive one."""

    negative: Any
    positive: Any
    what: ClassVar[str] = "two-classes"
    outputs: ClassVar[int] = 1

    def encode(self, values: Any) -> np.ndarray:
        """1 for the positive one."""
        return _places((self.negative, self.positive), values)

    def predicted(self, values: Any) -> np.ndarray:
        """The positive one where its probability is above one half, as rates count decisions."""
        return _named((self.negative, self.positive), np.asarray(decided(values[:, 0])).astype(int))

    def beside(self, values: Any) -> dict[str, np.ndarray]:
        """The positive one's probability."""
        return {"probability": np.asarray(jax.nn.sigmoid(values[:, 0]))}

    def said(self, y: Any) -> str:
        """How many are positive."""
        return f"positive: {self.positive!r}, {float(np.mean(y)):.1%} of the training rows"

    def to_dict(self) -> dict[str, Any]:
        """The two values."""
        return {"what": self.what, "classes": [self.negative, self.positive]}


@dataclass(frozen=True)
class MulticlassLabel(Label):
    """One of several values; y counts them.

    Attributes:
        values: in this order.
        shares: of the rows learnt from that have each.
    """

    values: tuple[Any, ...]
    shares: tuple[float, ...]
    what: ClassVar[str] = "classes"

    @property
    def outputs(self) -> int:
        """One a class."""
        return len(self.values)

    def encode(self, values: Any) -> np.ndarray:
        """Each value's place."""
        return _places(self.values, values)

    def predicted(self, values: Any) -> np.ndarray:
        """The class with the largest score."""
        return _named(self.values, np.asarray(decided_class(values)))

    def beside(self, values: Any) -> dict[str, np.ndarray]:
        """Every class's probability."""
        chances = np.asarray(jax.nn.softmax(values, axis=1))
        return {f"probability_{value}": chances[:, place] for place, value in enumerate(self.values)}

    def said(self, y: Any) -> str:
        """How many there are, and the rarest."""
        rarest = int(np.argmin(self.shares))
        of_rows = f"{self.shares[rarest]:.1%} of the training rows"
        return f"{len(self.values)} classes; the rarest is {self.values[rarest]!r}, {of_rows}"

    def to_dict(self) -> dict[str, Any]:
        """The values and their shares."""
        return {"what": self.what, "classes": list(self.values), "shares": list(self.shares)}

    @property
    def _rarity(self) -> np.ndarray:
        """How rare each class is: 0 on average."""
        rare: np.ndarray = -np.log(np.maximum(self.shares, np.finfo(float).tiny))
        return rare - rare.mean()

    @property
    def move(self) -> Move | None:
        """Rarer classes are decided for more often, or more seldom; none where all are equally frequent."""
        spread = float(self._rarity.std())
        if not spread > 1e-6:
            return None
        direction = jnp.asarray(self._rarity / spread, dtype=jnp.float32)

        def moved(params: Network, scale: float, offset: float) -> Network:
            return moved_network(params, scale, offset * direction)

        return moved

    def constant(self, like: Network, value: float) -> Network:
        """The classes' shares, made sharper or flatter: 1 are the shares themselves."""
        return constant_network(like, -value * jnp.asarray(self._rarity, dtype=jnp.float32))


@dataclass(frozen=True)
class NumberLabel(Label):
    """A number; y is standardised.

    Attributes:
        mean: of the rows learnt from,
        scale: and their standard deviation.
        low: the smallest value that the label can have, where it is known,
        high: and the largest.
    """

    mean: float = 0.0
    scale: float = 1.0
    low: float | None = None
    high: float | None = None
    what: ClassVar[str] = "number"
    outputs: ClassVar[int] = 1

    @property
    def unit(self) -> Unit:
        """What a standardised label means."""
        if self.low is None or self.high is None:
            return Unit(self.scale)
        return Unit(self.scale, (self.low - self.mean) / self.scale, (self.high - self.mean) / self.scale)

    def encode(self, values: Any) -> np.ndarray:
        """(label − mean)/scale."""
        standardised: np.ndarray = ((np.asarray(values, dtype=float) - self.mean) / self.scale).astype(np.float32)
        return standardised

    def predicted(self, values: Any) -> np.ndarray:
        """In the label's unit."""
        found = self.mean + self.scale * np.asarray(values[:, 0], dtype=float)
        return found if self.low is None else np.clip(found, self.low, self.high)

    def beside(self, values: Any) -> dict[str, np.ndarray]:
        """Nothing."""
        return {}

    def said(self, y: Any) -> str:
        """Mean and deviation."""
        return f"a number, {self.mean:.4g} on average in the training rows, standard deviation {self.scale:.4g}"

    def to_dict(self) -> dict[str, Any]:
        """How it is standardised."""
        return {"what": self.what, "mean": self.mean, "scale": self.scale, "low": self.low, "high": self.high}


def label_from_dict(told: dict[str, Any]) -> Label:
    """From JSON; a folder of before labels could be anything has two classes."""
    what = told.get("what", BinaryLabel.what)
    if what == NumberLabel.what:
        return NumberLabel(told["mean"], told["scale"], told["low"], told["high"])
    if what == MulticlassLabel.what:
        return MulticlassLabel(tuple(told["classes"]), tuple(told["shares"]))
    return BinaryLabel(*told["classes"])


def is_number(label: pd.Series) -> bool:
    """Whether a label is most likely meant as a number: more than two values, and all of them numbers."""
    return bool(pd.api.types.is_numeric_dtype(label) and label.nunique() > 2)


def fit_binary_label(label: pd.Series, positive: Any = None) -> BinaryLabel:
    """A label of two values; the positive one is the larger, unless it is named."""
    values = _sorted(label)
    if len(values) != 2:
        raise ValueError(
            f"data.label must be a column of two values, but {label.name!r} has {len(values)}: {values[:8]}. Kinds for "
            "several classes are error-rate and class-miss-rate, for numbers mean-error, absolute-error and coverage"
        )
    if positive is None:
        return BinaryLabel(*values)
    chosen = [value for value in values if value == positive or str(value) == str(positive)]
    if len(chosen) != 1:
        raise ValueError(f"data.positive must be one of the label's values {values}, but is {positive!r}")
    return BinaryLabel(next(value for value in values if value is not chosen[0]), chosen[0])


def fit_multiclass_label(label: pd.Series, learnt_from: np.ndarray) -> MulticlassLabel:
    """A label of several values; ``learnt_from``: which rows count for their shares."""
    values = _sorted(label)
    if not 2 <= len(values) <= MOST_CLASSES:
        raise ValueError(
            f"data.label must be a column of 2 to {MOST_CLASSES} classes, but {label.name!r} has {len(values)} values: "
            f"{values[:8]}"
        )
    counts = np.bincount(_places(tuple(values), label)[learnt_from], minlength=len(values))
    return MulticlassLabel(tuple(values), tuple((counts / counts.sum()).tolist()))


def fit_number_label(
    label: pd.Series, learnt_from: np.ndarray, limits: tuple[float, ...] = (), *, as_is: bool = False
) -> NumberLabel:
    """A label that is a number.

    Args:
        label: the column.
        learnt_from: which rows its mean and deviation are of.
        limits: the smallest and the largest value that it can have, where they are known.
        as_is: do not standardise it.
    """
    numbers = pd.to_numeric(label, errors="coerce").to_numpy(float)
    wrong = ~np.isfinite(numbers)
    if wrong.any():
        raise ValueError(f"data.label must be a column of numbers, but {label.name!r} holds {label[wrong].iloc[0]!r}")
    if len(limits) not in (0, 2) or (limits and not limits[0] < limits[1]):
        raise ValueError(f"data.label_range must be [low, high] with low < high, or empty, but is {list(limits)!r}")
    low, high = limits or (None, None)
    if low is not None and high is not None and not low <= numbers.min() <= numbers.max() <= high:
        raise ValueError(
            f"data.label_range must hold all labels, but is {list(limits)!r}, and {label.name!r} goes from "
            f"{numbers.min():g} to {numbers.max():g}"
        )
    if as_is:
        return NumberLabel(low=low, high=high)
    own = numbers[learnt_from]
    deviation = float(own.std())
    return NumberLabel(float(own.mean()), deviation if deviation > 0 else 1.0, low, high)


def _sorted(label: pd.Series) -> list[Any]:
    return sorted(pd.unique(label).tolist(), key=lambda value: (str(type(value)), value))


def _places(known: tuple[Any, ...], values: Any) -> np.ndarray:
    """Each value's place among those that are known; compared as they are or as text, since a file knows no types."""
    by_value = {value: place for place, value in enumerate(known)}
    by_text = {str(value): place for place, value in enumerate(known)}
    series = pd.Series(np.asarray(values))
    found = series.map(by_value)
    if found.isna().any():
        found = found.where(found.notna(), series.astype(str).map(by_text))
    if found.isna().any():
        raise ValueError(f"the label must be one of {list(known)[:8]}, but is {series[found.isna()].iloc[0]!r}")
    return found.to_numpy(np.int32)


def _named(known: tuple[Any, ...], places: np.ndarray) -> np.ndarray:
    named: np.ndarray = np.array([*known, None], dtype=object)[:-1][places]
    return named
