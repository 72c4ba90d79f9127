"""A trained model on a table's columns, as a run's folder holds it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from softswitch.runs.folder import ENCODING, PARAMS, Run, open_run
from softswitch.support.arrays import shaped
from softswitch.support.files import write_json
from softswitch.tables.encoding import Encoding
from softswitch.tables.kinds import first_network
from softswitch.tables.label_meaning import Label, label_from_dict
from softswitch.tasks.networks import Network, outputs


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
    told = json.loads((run.folder / ENCODING).read_text(encoding="utf-8"))
    encoding = Encoding.from_dict(told["columns"])
    meaning = label_from_dict(told.get("meaning", told))  # earlier folders have two classes, beside the rest
    like = first_network(len(encoding.features), tuple(told["hidden"]), 0, meaning.outputs)
    params = jax.tree.map(jnp.asarray, shaped(run.params, like))
    return Model(run, encoding, told["label"], meaning, params, uncertified)
