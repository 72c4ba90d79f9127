"""A trained model on a table's columns, as a run's folder holds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from softswitch.problem.networks import Network, outputs
from softswitch.results.folder import ENCODING, PARAMS, Run, open_run
from softswitch.support.arrays import shaped
from softswitch.support.files import or_damaged, read_json, write_json
from softswitch.support.json_schema import check_shape
from softswitch.tables.constraints import first_network
from softswitch.tables.features import Encoding
from softswitch.tables.labels import Label, label_from_dict

VALUE = (str, bool, float, None)
ENCODING_SHAPE = {
    "label": str,
    "hidden": [int],
    "columns": [{"name": str, "levels?": [str], "mean?": (float, None), "scale?": float, "weekdays?": [int]}],
    "meaning?": {
        "what?": str,
        "classes?": [VALUE],
        "shares?": [float],
        "mean?": float,
        "scale?": float,
        "low?": (float, None),
        "high?": (float, None),
    },
    "classes?": [VALUE],
}
"""What says how a table becomes features; it may come from anyone."""


@dataclass(frozen=True, eq=False)
class Model:
    """A model that reads a table.

    Attributes:
        run: the run it comes from.
        encoding: how columns become features.
        label: the column that it predicts.
        meaning: what that column is: classes, or a number.
        params: the network.
        uncertified: whether it predicts though it was to be certified, and is not.
    """

    run: Run
    encoding: Encoding
    label: str
    meaning: Label
    params: Network
    uncertified: bool = False

    @property
    def answered(self) -> bool:
        """Whether it is certified, or was never to be."""
        aim = self.run.about.get("aim")
        return aim is None or bool(aim["answered"])

    @property
    def classes(self) -> tuple[Any, ...]:
        """The label's values, where it has classes: of two the negative and the positive one."""
        return tuple(self.meaning.to_dict().get("classes", ()))

    def probability(self, table: pd.DataFrame) -> np.ndarray:
        """Each row's probability of the positive class, or of every class where there are several."""
        found = list(self.meaning.beside(self._outputs(table)).values())
        if not found:
            raise ValueError(f"{self.label!r} is a number, which has no probability: use predict")
        return found[0] if len(found) == 1 else np.stack(found, axis=1)

    def predict(self, table: pd.DataFrame) -> np.ndarray:
        """Each row's class, as rates count decisions, or its number."""
        return self.meaning.predicted(self._outputs(table))

    def columns(self, table: pd.DataFrame) -> dict[str, np.ndarray]:
        """All that the model says of every row, as columns for a table."""
        values = self._outputs(table)
        beside = {f"{self.label}_{name}": column for name, column in self.meaning.beside(values).items()}
        return beside | {f"{self.label}_predicted": self.meaning.predicted(values)}

    def _outputs(self, table: pd.DataFrame) -> jax.Array:
        if not self.answered and not self.uncertified:
            raise ValueError(
                f"{self.run.folder} has no certified model. {self.run.about['aim']['words']} To predict all the same: "
                "softswitch predict --uncertified, or load(folder, uncertified=True)"
            )
        return outputs(self.params, jnp.asarray(self.encoding.encode(table)))

    def __repr__(self) -> str:
        return f"Model({self.label!r} from {len(self.encoding.columns)} columns; {self.run.about['status']['code']})"


def write_encoding(folder: Path, encoding: Encoding, label: str, meaning: Label, hidden: tuple[int, ...]) -> None:
    """Write how a table becomes features, beside the parameters."""
    told = {"label": label, "meaning": meaning.to_dict(), "hidden": list(hidden), "columns": encoding.to_dict()}
    write_json(folder / ENCODING, told)


def load(folder: str | Path, *, uncertified: bool = False) -> Model:
    """The model of a run: ``softswitch.load("runs/…").predict(table)``.

    Args:
        folder: the run's.
        uncertified: predict also where the model was to be certified, and is not.
    """
    run = open_run(folder)
    if not (run.folder / ENCODING).exists() or not (run.folder / PARAMS).exists():
        what = "was not finished: softswitch resume" if not run.finished else "was not made by softswitch train:"
        raise ValueError(f"{run.folder} has no model to load: it {what} {run.folder}")
    told = read_json(run.folder / ENCODING)
    with or_damaged(run.folder / ENCODING):
        check_shape(told, ENCODING_SHAPE, "encoding")
        encoding = Encoding.from_dict(told["columns"])
        meaning = label_from_dict(told.get("meaning", told))  # earlier folders have two classes, beside the rest
        features = len(encoding.features)
    with or_damaged(run.folder / PARAMS):
        params = _network(run.params, features, tuple(told["hidden"]), meaning.outputs)
    return Model(run, encoding, told["label"], meaning, params, uncertified)


def _network(arrays: Mapping[str, np.ndarray], features: int, hidden: tuple[int, ...], outputs: int) -> Network:
    """The arrays as a network of these widths, or raise where they are of another one. Nothing is made to compare."""
    if len(hidden) >= len(arrays):
        raise ValueError(f"it has {len(arrays)} arrays, too few for {len(hidden)} hidden layers")
    like = jax.eval_shape(partial(first_network, features, hidden, 0, outputs))
    found = shaped(arrays, like)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(like), strict=True):
        if one.shape != other.shape or one.dtype.kind != "f":
            raise ValueError(f"it has an array of {one.dtype} with the shape {one.shape}, but {other.shape} is needed")
    network: Network = jax.tree.map(jnp.asarray, found)
    return network
