"""Label types: two classes, several classes, or a number. A label encodes y and decodes predictions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from softswitch.engine.candidates import Move
from softswitch.problem import networks
from softswitch.problem.choices import BINARY, MULTICLASS, NUMBER
from softswitch.problem.networks import LabelScale, Network, predict_class, rescale_network
from softswitch.problem.rates import is_positive

MAX_CLASSES = 100
ClassValue = str | bool | int | float | None


class Label:
    """A fitted label."""

    type: Any  # a label type
    classes: Any  # empty for a number
    outputs: Any = 1  # number of network outputs

    def encode(self, values: Any) -> np.ndarray:
        """Return y for each row: the index of its class, or the standardised number."""
        return _encode_classes(self.classes, values)

    def decode(self, outputs: Any) -> np.ndarray:
        """Return the predicted label of each row from the network's outputs."""
        codes = predict_class(outputs) if self.outputs > 1 else is_positive(outputs[:, 0])
        decoded: np.ndarray = np.array([*self.classes, None], dtype=object)[:-1][np.asarray(codes).astype(int)]
        return decoded

    def probabilities(self, outputs: Any) -> dict[str, np.ndarray]:
        """Return predicted probabilities by the suffix of their column name; none for a number."""
        return {}

    @property
    def move(self) -> Move | None:
        """Function that shifts a model's decision threshold, if there is one."""
        return rescale_network

    def constant(self, like: Network, value: float) -> Network:
        """Return a network of the same shape with a constant prediction."""
        return networks.constant_network(like, value)

    def initial_network(self, features: int, hidden: tuple[int, ...], seed: int) -> Network:
        """Return random weights, or zeros for a linear model."""
        start = networks.init_network(features, hidden, outputs=self.outputs, seed=seed)
        return start if hidden else jax.tree.map(jnp.zeros_like, start)


@dataclass(frozen=True)
class BinaryLabel(Label):
    """One of two values; y is 1 for the positive value, which is predicted if its probability is above one half."""

    negative: ClassValue
    positive: ClassValue
    type: Literal["binary"] = "binary"

    @property
    def classes(self) -> tuple[Any, ...]:
        """The two values."""
        return self.negative, self.positive

    def probabilities(self, outputs: Any) -> dict[str, np.ndarray]:
        """Return the probability of the positive value."""
        return {"probability": np.asarray(jax.nn.sigmoid(outputs[:, 0]))}


@dataclass(frozen=True)
class MulticlassLabel(Label):
    """One of several values, with their shares in the training rows; y is the index of the value."""

    classes: tuple[ClassValue, ...]
    shares: tuple[float, ...]
    type: Literal["multiclass"] = "multiclass"

    @property
    def outputs(self) -> int:
        """Number of classes."""
        return len(self.classes)

    def probabilities(self, outputs: Any) -> dict[str, np.ndarray]:
        """Return the probability of every class."""
        shares = np.asarray(jax.nn.softmax(outputs, axis=1))
        return {f"probability_{value}": shares[:, i] for i, value in enumerate(self.classes)}

    @property
    def _rarity(self) -> np.ndarray:
        """Negative log share of each class, centred."""
        rarity: np.ndarray = -np.log(np.maximum(self.shares, np.finfo(float).tiny))
        return rarity - rarity.mean()

    @property
    def move(self) -> Move | None:
        """Function that predicts rare classes more or less often; None if all classes are equally frequent."""
        spread = float(self._rarity.std())
        if not spread > 1e-6:
            return None
        direction = jnp.asarray(self._rarity / spread, dtype=jnp.float32)
        return lambda params, scale, offset: rescale_network(params, scale, offset * direction)

    def constant(self, like: Network, value: float) -> Network:
        """Return a network that predicts the class shares, sharper or flatter; 1 predicts the shares themselves."""
        return networks.constant_network(like, -value * jnp.asarray(self._rarity, dtype=jnp.float32))


@dataclass(frozen=True)
class NumberLabel(Label):
    """A number, with mean and standard deviation of the training rows and its range, if known; y is standardised."""

    mean: float = 0.0
    scale: float = 1.0
    low: float | None = None
    high: float | None = None
    type: Literal["number"] = "number"
    classes = ()

    @property
    def unit(self) -> LabelScale:
        """Unit and limits of the standardised label."""
        if self.low is None or self.high is None:
            return LabelScale(self.scale)
        return LabelScale(self.scale, (self.low - self.mean) / self.scale, (self.high - self.mean) / self.scale)

    def encode(self, values: Any) -> np.ndarray:
        """Return (label − mean)/scale."""
        standardised: np.ndarray = ((np.asarray(values, dtype=float) - self.mean) / self.scale).astype(np.float32)
        return standardised

    def decode(self, outputs: Any) -> np.ndarray:
        """Return predictions in the label's unit, clipped to its range."""
        predicted = self.mean + self.scale * np.asarray(outputs[:, 0], dtype=float)
        return predicted if self.low is None else np.clip(predicted, self.low, self.high)


def describe_label(label: Any, y: Any) -> str:
    """Summarise the label in the training rows."""
    if isinstance(label, BinaryLabel):
        return f"positive: {label.positive!r}, {float(np.mean(y)):.1%} of the training rows"
    if isinstance(label, MulticlassLabel):
        share, rarest = min(zip(label.shares, label.classes, strict=True), key=lambda pair: pair[0])
        return f"{len(label.classes)} classes; the rarest is {rarest!r}, {share:.1%} of the training rows"
    return f"a number; mean {label.mean:.4g}, standard deviation {label.scale:.4g} in the training rows"


def fit_label(
    values: pd.Series,
    is_training: np.ndarray,
    supported: tuple[str, ...],
    positive: Any = None,
    limits: tuple[float, ...] = (),
) -> BinaryLabel | MulticlassLabel | NumberLabel:
    """Fit the label of a column, of one of the label types that a kind supports.

    ``positive``: the positive one of two values. ``limits``: the possible range of a number.
    """
    if supported == (NUMBER,):
        return fit_number_label(values, is_training, limits)
    if BINARY not in supported or (MULTICLASS in supported and values.nunique() > 2):
        return fit_multiclass_label(values, is_training)
    return fit_binary_label(values, positive)


def fit_binary_label(label: pd.Series, positive: Any = None) -> BinaryLabel:
    """Fit a label of two values; the positive value is the larger one by default."""
    values = _sort_values(label)
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


def fit_multiclass_label(label: pd.Series, is_training: np.ndarray) -> MulticlassLabel:
    """Fit a label of several values, with class shares of the training rows."""
    values = _sort_values(label)
    if not 2 <= len(values) <= MAX_CLASSES:
        problem = f"{label.name!r} has {len(values)} values: {values[:8]}"
        raise ValueError(f"data.label must be a column of 2 to {MAX_CLASSES} classes, but {problem}")
    counts = np.bincount(_encode_classes(tuple(values), label)[is_training], minlength=len(values))
    return MulticlassLabel(tuple(values), tuple((counts / counts.sum()).tolist()))


def fit_number_label(label: pd.Series, is_training: np.ndarray, limits: tuple[float, ...] = ()) -> NumberLabel:
    """Fit a number, with mean and standard deviation of the training rows and its possible range, if known."""
    numbers = pd.to_numeric(label, errors="coerce").to_numpy(float)
    wrong = ~np.isfinite(numbers)
    if wrong.any():
        raise ValueError(f"data.label must be a column of numbers, but {label.name!r} holds {label[wrong].iloc[0]!r}")
    if len(limits) not in (0, 2) or (limits and not limits[0] < limits[1]):
        raise ValueError(f"data.label_range must be [low, high] with low < high, or empty, but is {list(limits)!r}")
    low, high = limits or (None, None)
    if low is not None and high is not None and not low <= numbers.min() <= numbers.max() <= high:
        extent = f"{label.name!r} ranges from {numbers.min():g} to {numbers.max():g}"
        raise ValueError(f"data.label_range must contain all labels, but is {list(limits)!r}, and {extent}")
    training = numbers[is_training]
    return NumberLabel(float(training.mean()), float(training.std()) or 1.0, low, high)


def _sort_values(label: pd.Series) -> list[Any]:
    return sorted(pd.unique(label).tolist(), key=lambda value: (str(type(value)), value))


def _encode_classes(classes: tuple[Any, ...], values: Any) -> np.ndarray:
    """Return the index of each value, compared directly or as text, because text files have no types."""
    series = pd.Series(np.asarray(values))
    codes = series.map({value: i for i, value in enumerate(classes)})
    if codes.isna().any():
        codes = codes.where(codes.notna(), series.astype(str).map({str(value): i for i, value in enumerate(classes)}))
    if codes.isna().any():
        raise ValueError(f"the label must be one of {list(classes)[:8]}, but is {series[codes.isna()].iloc[0]!r}")
    return codes.to_numpy(np.int32)
