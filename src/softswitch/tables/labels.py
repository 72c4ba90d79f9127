"""Labels: two classes, several classes, or a number. A label encodes the column as y and decodes predictions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from softswitch.problem import networks
from softswitch.problem.choices import BINARY, MULTICLASS, NUMBER
from softswitch.problem.networks import LabelScale, Network, rescale_network
from softswitch.problem.parameters import Move
from softswitch.tables.cells import same_value

MAX_CLASSES = 100  # largest number of classes of a label
ClassValue = str | bool | int | float | None


class Label:
    """Base of fitted labels: conversion between the label column, y and the outputs of a network."""

    type: Any  # label type: "binary", "multiclass" or "number"
    classes: Any  # values of the classes in the order of y; empty for a number
    outputs: Any = 1  # number of network outputs

    def encode(self, values: Any) -> np.ndarray:
        """Return y of each row: the index of its class (int32), or the standardised number (float32)."""
        return _encode_classes(self.classes, values)

    def decode(self, outputs: Any) -> np.ndarray:
        """Return the predicted label of each row from the network's outputs (rows × outputs)."""
        decoded: np.ndarray = np.array([*self.classes, None], dtype=object)[:-1][predict_codes(outputs)]
        return decoded

    def probabilities(self, outputs: Any) -> dict[str, np.ndarray]:
        """Return each row's predicted probabilities, by suffix of the column name; empty for a number."""
        return {}

    @property
    def move(self) -> Move | None:
        """Function (params, scale, offset) that rescales and shifts a network's outputs; None if there is none."""
        return rescale_network

    def constant(self, like: Network, value: float) -> Network:
        """Return a network of the shape of ``like`` whose outputs are ``value`` on every row."""
        return networks.constant_network(like, value)

    def initial_network(self, features: int, hidden: tuple[int, ...], seed: int) -> Network:
        """Return a network with ``hidden`` layer widths and random weights; zeros if there are no hidden layers."""
        start = networks.init_network(features, hidden, outputs=self.outputs, seed=seed)
        return start if hidden else jax.tree.map(jnp.zeros_like, start)


@dataclass(frozen=True)
class BinaryLabel(Label):
    """A label of two values. y is 1 for the positive value, which is predicted if its probability exceeds 1/2."""

    negative: ClassValue
    positive: ClassValue
    type: Literal["binary"] = "binary"

    @property
    def classes(self) -> tuple[Any, ...]:
        """The negative and the positive value."""
        return self.negative, self.positive

    def probabilities(self, outputs: Any) -> dict[str, np.ndarray]:
        """Return the probability of the positive value of each row, as "probability_of_VALUE"."""
        return {f"probability_of_{self.positive}": np.asarray(jax.nn.sigmoid(outputs[:, 0]))}


@dataclass(frozen=True)
class MulticlassLabel(Label):
    """A label of several values. y is the index of the value."""

    classes: tuple[ClassValue, ...]  # the values in sorted order
    shares: tuple[float, ...]  # share of each value in the training rows
    type: Literal["multiclass"] = "multiclass"

    @property
    def outputs(self) -> int:
        """Number of classes."""
        return len(self.classes)

    def probabilities(self, outputs: Any) -> dict[str, np.ndarray]:
        """Return the probability of every class of each row, as "probability_CLASS"."""
        shares = np.asarray(jax.nn.softmax(outputs, axis=1))
        return {f"probability_{value}": shares[:, i] for i, value in enumerate(self.classes)}

    @property
    def _rarity(self) -> np.ndarray:
        """Negative log share of each class in the training rows, minus the mean over the classes."""
        rarity: np.ndarray = -np.log(np.maximum(self.shares, np.finfo(float).tiny))
        return rarity - rarity.mean()

    @property
    def move(self) -> Move | None:
        """Function (params, scale, offset) that shifts outputs to rarer classes; None if all are equally frequent."""
        spread = float(self._rarity.std())
        if not spread > 1e-6:
            return None
        direction = jnp.asarray(self._rarity / spread, dtype=jnp.float32)
        return lambda params, scale, offset: rescale_network(params, scale, offset * direction)

    def constant(self, like: Network, value: float) -> Network:
        """Return a network that predicts shares**value, normalised, on every row; 1 predicts the class shares."""
        return networks.constant_network(like, -value * jnp.asarray(self._rarity, dtype=jnp.float32))


@dataclass(frozen=True)
class NumberLabel(Label):
    """A numeric label. y is (label − mean)/scale."""

    mean: float = 0.0  # mean of the training rows
    scale: float = 1.0  # standard deviation of the training rows
    low: float | None = None  # smallest possible label; None if unknown
    high: float | None = None  # largest possible label; None if unknown
    type: Literal["number"] = "number"
    classes = ()

    @property
    def unit(self) -> LabelScale:
        """Scale of the label, and its range in standardised units if known."""
        if self.low is None or self.high is None:
            return LabelScale(self.scale)
        return LabelScale(self.scale, (self.low - self.mean) / self.scale, (self.high - self.mean) / self.scale)

    def encode(self, values: Any) -> np.ndarray:
        """Return (label − mean)/scale of each row, as float32."""
        standardised: np.ndarray = ((np.asarray(values, dtype=float) - self.mean) / self.scale).astype(np.float32)
        return standardised

    def decode(self, outputs: Any) -> np.ndarray:
        """Return the prediction of each row in the label's unit, clipped to its range if known."""
        predicted = self.mean + self.scale * np.asarray(outputs[:, 0], dtype=float)
        return predicted if self.low is None else np.clip(predicted, self.low, self.high)

    def errors(self, outputs: Any, y: np.ndarray) -> np.ndarray:
        """Return prediction − label of each row in the label's unit."""
        return self.decode(outputs) - (self.mean + self.scale * y)


def predict_codes(outputs: Any) -> np.ndarray:
    """Return the predicted y of each row from the outputs of a classifier, rows × outputs."""
    values = np.asarray(outputs)
    return (values[:, 0] > 0).astype(int) if values.shape[1] == 1 else values.argmax(axis=1)


def describe_label(label: Any, y: Any) -> str:
    """Return a text with the share of positive rows, the classes or the mean of a label; ``y`` are encoded rows."""
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
    """Fit a label of one of the ``supported`` label types to a column.

    ``positive`` is the positive one of two values (default: the larger), and ``limits`` the range of a number.
    """
    if supported == (NUMBER,):
        return fit_number_label(values, is_training, limits)
    if BINARY not in supported or (MULTICLASS in supported and values.nunique() > 2):
        return fit_multiclass_label(values, is_training)
    return fit_binary_label(values, positive)


def fit_binary_label(label: pd.Series, positive: Any = None) -> BinaryLabel:
    """Fit a label of two values, or raise ValueError if there are not two. Default of ``positive``: the larger one."""
    values = _sort_values(label)
    if len(values) != 2:
        raise ValueError(
            f"data.label must be a column of two values, but {label.name!r} has {len(values)}: {values[:8]}. Kinds for "
            "several classes are error-rate and class-miss-rate, for numbers mean-error, absolute-error and coverage"
        )
    if positive is None:
        return BinaryLabel(*values)
    chosen = [value for value in values if value == positive] or [one for one in values if same_value(one, positive)]
    if len(chosen) != 1:
        raise ValueError(f"data.positive must be one of the label's values {values}, but is {positive!r}")
    return BinaryLabel(next(value for value in values if value is not chosen[0]), chosen[0])


def fit_multiclass_label(label: pd.Series, is_training: np.ndarray) -> MulticlassLabel:
    """Fit a label of 2 to ``MAX_CLASSES`` values, with their shares in the training rows."""
    values = _sort_values(label)
    if not 2 <= len(values) <= MAX_CLASSES:
        problem = f"{label.name!r} has {len(values)} values: {values[:8]}"
        raise ValueError(f"data.label must be a column of 2 to {MAX_CLASSES} classes, but {problem}")
    counts = np.bincount(_encode_classes(tuple(values), label)[is_training], minlength=len(values))
    return MulticlassLabel(tuple(values), tuple((counts / counts.sum()).tolist()))


def fit_number_label(label: pd.Series, is_training: np.ndarray, limits: tuple[float, ...] = ()) -> NumberLabel:
    """Fit mean and standard deviation of a numeric label to the training rows; ``limits`` is its range, if known."""
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
    """Return the class index of each value; values match directly or, because text files have no types, as text."""
    series = pd.Series(np.asarray(values))
    codes = series.map({value: i for i, value in enumerate(classes)})
    if codes.isna().any():
        codes = codes.where(codes.notna(), series.astype(str).map({str(value): i for i, value in enumerate(classes)}))
    if codes.isna().any():
        raise ValueError(f"the label must be one of {list(classes)[:8]}, but is {series[codes.isna()].iloc[0]!r}")
    return codes.to_numpy(np.int32)
