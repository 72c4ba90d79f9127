"""The trained model of a run folder, which predicts the rows of a table."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from pydantic import TypeAdapter

from softswitch.problem.choices import BINARY
from softswitch.problem.networks import Network, apply_network
from softswitch.results.folder import ENCODING, PARAMS, Run, open_run
from softswitch.support.arrays import unflatten_by_path
from softswitch.support.files import read_json, wrap_read_errors
from softswitch.tables.features import Encoding, to_categories
from softswitch.tables.labels import BinaryLabel, Label, MulticlassLabel, NumberLabel
from softswitch.tables.scores import SCORE_FILE, Score
from softswitch.tables.thresholds import add_indicators


@dataclass(frozen=True)
class ModelFile:
    """The content of encoding.json: how a model reads a table."""

    __pydantic_config__: ClassVar[Any] = {"strict": True, "extra": "forbid"}
    label: str  # name of the column that the model predicts
    label_values: BinaryLabel | MulticlassLabel | NumberLabel
    hidden: tuple[int, ...]  # widths of the hidden layers
    encoding: Encoding
    client: str = ""  # name of the column of clients; only used with thresholds per client
    clients: tuple[str, ...] = ()  # clients with a threshold of their own; empty: all share one
    threshold: float | None = None  # log odds above which a row is positive; None: 0, or not two classes
    has_score: bool = False  # whether the features go through the score in the run folder


@dataclass(frozen=True, eq=False, repr=False)
class Model:
    """A trained model that predicts the rows of a table.

    Tables are pandas data frames with the columns of the training data; the label and further columns are ignored.

    Attributes:
        run: The run that trained the model.
        file: How the model reads a table: label, encoding of the columns, threshold.
        params: Parameters of the network, one dict of weights and biases per layer.
        score: The score whose outputs are the features of the network; None if these are the encoded columns.
        allow_uncertified: Whether to predict even if certification failed. Default: False.
    """

    run: Run
    file: ModelFile
    params: Network
    score: Score | None = None
    allow_uncertified: bool = False

    @property
    def threshold(self) -> float | None:
        """Probability above which a row is predicted positive, at clients that share it; None without two classes."""
        if self.file.label_values.type != BINARY:
            return None
        return 1 / (1 + math.exp(-(self.file.threshold or 0.0)))

    @property
    def is_usable(self) -> bool:
        """Whether the model is certified, or certification was not requested."""
        aim = self.run.about.get("certification")
        return aim is None or bool(aim["certified"])

    @property
    def classes(self) -> tuple[Any, ...]:
        """The classes of the label; of two, the second is positive. Empty for a number."""
        return tuple(self.file.label_values.classes)

    def probability(self, table: pd.DataFrame) -> np.ndarray:
        """Return the probability of the positive class, shape (rows,); with more than two classes, rows × classes."""
        columns = list(self.file.label_values.probabilities(self._scores(table)).values())
        if not columns:
            raise ValueError(f"{self.file.label!r} is a number, which has no probability; use predict")
        return columns[0] if len(columns) == 1 else np.stack(columns, axis=1)

    def predict(self, table: pd.DataFrame) -> np.ndarray:
        """Return the predicted class or number of each row of a table."""
        return self.file.label_values.decode(self._outputs(table))

    def columns(self, table: pd.DataFrame) -> dict[str, np.ndarray]:
        """Return the predictions and probabilities by column name, such as "LABEL_predicted"."""
        name, label = self.file.label, self.file.label_values
        values, probabilities = self._outputs(table), label.probabilities(self._scores(table))
        columns = {f"{name}_{suffix}": column for suffix, column in probabilities.items()}
        return columns | {f"{name}_predicted": label.decode(values)}

    def _outputs(self, table: pd.DataFrame) -> jax.Array:
        if not self.is_usable and not self.allow_uncertified:
            message = f"{self.run.folder} has no certified model. {self.run.about['certification']['message']}"
            hint = "softswitch predict --uncertified, or load(folder, allow_uncertified=True)"
            raise ValueError(f"{message} To predict anyway, use {hint}")
        features = self.file.encoding.encode(table)
        if self.score is not None:
            client = self.file.client  # rows of a table without this column share the threshold
            owner = to_categories(table[client]) if client in table.columns else [""] * len(table)
            features = add_indicators(self.score.outputs(features), list(owner), self.file.clients)
        return apply_network(self.params, jnp.asarray(features))

    def _scores(self, table: pd.DataFrame) -> Any:
        """Return log odds, before thresholds are subtracted, log probabilities or predictions: rows × outputs."""
        if self.score is None or self.file.label_values.type != BINARY:
            return self._outputs(table)
        shared = replace(
            self, file=replace(self.file, clients=()), params=[{**self.params[0], "w": self.params[0]["w"][:1]}]
        )
        return shared._outputs(table) + (self.file.threshold or 0.0)


def load(folder: str | Path, *, allow_uncertified: bool = False) -> Model:
    """Load the model of a run folder: ``softswitch.load("runs/…").predict(table)``.

    Args:
        folder: A run folder of ``softswitch train``.
        allow_uncertified: Whether the model may predict even if certification failed. Default: False.
    """
    run = open_run(folder)
    if not (run.folder / ENCODING).exists() or not (run.folder / PARAMS).exists():
        reason = "was not finished: softswitch resume" if not run.finished else "was not created by softswitch train:"
        raise ValueError(f"{run.folder} has no model to load: it {reason} {run.folder}")
    content = read_json(run.folder / ENCODING)
    with wrap_read_errors(run.folder / ENCODING):
        stored: ModelFile = TypeAdapter(ModelFile).validate_json(json.dumps(content))
        features, score = len(stored.encoding.features), None
    if stored.has_score:
        features = stored.label_values.outputs + len(stored.clients)
        with wrap_read_errors(run.folder / SCORE_FILE):
            score = Score.load(run.folder, stored.label_values.type, len(stored.label_values.classes))
    with wrap_read_errors(run.folder / PARAMS):
        params = _network(run.params, features, stored.hidden, stored.label_values)
    return Model(run, stored, params, score, allow_uncertified)


def _network(arrays: Mapping[str, np.ndarray], features: int, hidden: tuple[int, ...], label: Label) -> Network:
    """Return the arrays as a network, or raise ValueError if their number, shapes or dtypes do not match."""
    if len(hidden) >= len(arrays):
        raise ValueError(f"it has {len(arrays)} arrays, too few for {len(hidden)} hidden layers")
    like = jax.eval_shape(partial(label.initial_network, features, hidden, 0))
    params = unflatten_by_path(arrays, like)
    for array, expected in zip(jax.tree.leaves(params), jax.tree.leaves(like), strict=True):
        if array.shape != expected.shape or array.dtype.kind != "f":
            raise ValueError(f"it has {array.dtype} of shape {array.shape}, but shape {expected.shape} is needed")
    return list(jax.tree.map(jnp.asarray, params))
