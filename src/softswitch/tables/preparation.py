"""Preparation of a table: read, encode and split it into each client's training, validation and held-out rows."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import optax
import pandas as pd

from softswitch.data.client_data import ClientData
from softswitch.data.splits import DataSplit, split_masks
from softswitch.engine.auto_tuning import default_alpha
from softswitch.methods.automatic import Automatic
from softswitch.methods.base import Method
from softswitch.methods.memory import Memory
from softswitch.methods.softmax_sgm import SoftmaxSGM
from softswitch.problem.problem import Problem
from softswitch.support import checks
from softswitch.tables.cells import parse_each
from softswitch.tables.constraints import KINDS, build_problem
from softswitch.tables.features import Encoding, mark_categories
from softswitch.tables.labels import Label, NumberLabel, fit_label
from softswitch.tables.private import PRIVATE_FORM, declared_encoding, declared_label, hold_out_by_hash
from softswitch.tables.settings import (
    AIMS,
    AUTO,
    Config,
    DataSection,
    MethodSection,
    ModelSection,
    RunSection,
    replace_auto,
)
from softswitch.tables.table import find_column, match_value, read_table

CERTIFIED = AIMS[0]  # the value of run.aim that requests certification
OPTIMIZERS = {AUTO: None, "sgd": optax.sgd, "adam": optax.adam}
MEMORY: dict[str, Any] = {AUTO: AUTO, "on": Memory(), "off": None, "corrected": Memory(corrected=True)}


@dataclass(frozen=True, eq=False)
class PreparedTable:
    """A problem and the splits of a table, prepared for training."""

    problem: Problem
    train: ClientData
    validation: ClientData | None  # rows to select a model with; None unless certification is requested
    held_out: ClientData | None  # rows for the certificate; None if the settings hold out none
    encoding: Encoding
    label: Label
    fingerprint: str  # SHA-256 digest of the file, as hexadecimal text
    dropped: int  # number of rows dropped because their label, client or group is empty

    @property
    def learning(self) -> ClientData:
        """The training and the validation rows together."""
        if self.validation is None:
            return self.train
        parts = (self.train, self.validation)
        arrays = [{name: np.asarray(column) for name, column in part.rows.columns.items()} for part in parts]
        columns = {name: np.concatenate([part[name] for part in arrays]) for name in arrays[0]}
        owner = np.concatenate([np.repeat(list(part.names), part.sizes) for part in parts])
        return ClientData.from_arrays(columns, owner)

    @property
    def split(self) -> DataSplit | None:
        """The three splits; None unless certification is requested."""
        if self.validation is None or self.held_out is None:
            return None
        return DataSplit(self.train, self.validation, self.held_out)


def prepare_table(config: Config, folder: Path) -> PreparedTable:
    """Read the table of the settings, relative to ``folder``, encode it, and split the rows of every client."""
    data, task, is_private = config.data, config.task, config.privacy.epsilon is not None
    file = folder / data.file
    table, dropped = _read(file, config)
    types = KINDS[task.kind].label_types
    known: dict[str, Any] = {"positive": data.positive, "limits": data.label_range}
    full_label, client, features, group = checks.call_all(
        lambda: fit_label(find_column(table, data.label, "data.label"), np.ones(len(table), bool), types, **known),
        lambda: find_column(table, data.client, "data.client"),
        lambda: _feature_names(table, data),
        lambda: _group(table, config),
    )
    values = table[data.label]
    columns = {} if isinstance(full_label, NumberLabel) else {"y": full_label.encode(values)}
    columns |= {} if group is None else {"group": group}
    share = data.validation if config.run.aim == CERTIFIED and data.held_out > 0 else 0.0
    options: dict[str, Any] = {"seed": config.run.seed, "names": ("data.validation", "data.held_out")}
    if is_private:  # rows must not depend on each other
        held = hold_out_by_hash(table, data.held_out, config.run.seed)
        masks = ~held, np.zeros_like(held), held
    else:
        masks = split_masks(client, *columns.values(), validation=share, calibration=data.held_out, **options)
    label: Label = fit_label(values, masks[0], types, **known)
    if is_private:
        label, encoding = declared_label(label), declared_encoding(config, features)
    else:
        encoding = Encoding.fit(table[masks[0]], features, table)
    columns = {"y": label.encode(values)} | columns | {"x": encoding.encode(table)}
    given: dict[str, Any] = {"loss": replace_auto(task.loss), "quantile": replace_auto(task.quantile)}
    given |= {"seed": config.run.seed, "label": label, "bound": task.bound}
    built = build_problem(task.kind, len(encoding.features), config.model.hidden, **given)
    problem = built.problem
    if is_private and built.private_surrogate is not None:
        problem = replace(problem, constraint_surrogate=built.private_surrogate)
    owner = client.astype(str).to_numpy() if client.dtype == object else client.to_numpy()

    def select(rows: np.ndarray) -> ClientData:
        selected = {name: column[rows] for name, column in columns.items()}
        return ClientData.from_arrays(selected, owner[rows], strata=built.strata)

    validation, held_out = (select(rows) if rows.any() else None for rows in masks[1:])
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    parts = (select(masks[0]), validation, held_out)
    return PreparedTable(problem, *parts, encoding, label, digest, dropped)


def _read(file: Path, config: Config) -> tuple[pd.DataFrame, int]:
    """Return the table without the rows that lack a label, a client or a group, and the number of these rows."""
    data, task = config.data, config.task
    form = {name: getattr(data, name) for name in ("encoding", "separator", "decimal")}
    if config.privacy.epsilon is None:
        table = read_table(file, empty=data.empty, **form)
    else:  # a row must not change how others are read
        form = {name: PRIVATE_FORM[name] if value == AUTO else value for name, value in form.items()}
        table = read_table(file, as_text=True, **form)
        table = table.apply(parse_each, decimal=form["decimal"], empty=data.empty)
    group = (task.sensitive,) if KINDS[task.kind].uses_groups else ()
    needed = [name for name in (data.label, data.client, *group) if name in table.columns]
    complete = table.dropna(subset=needed).reset_index(drop=True)
    if complete.empty:
        raise ValueError(f"every row of {file} has an empty cell in one of {', '.join(map(repr, needed))}")
    for name in needed:  # integers that empty cells had turned into floats
        values = complete[name]
        if values.isna().sum() < table[name].isna().sum() and pd.api.types.is_float_dtype(values):
            complete[name] = values.astype(int) if (values % 1 == 0).all() else values
    complete = mark_categories(complete, [name for name in data.categories if name not in needed])
    return complete, len(table) - len(complete)


def _group(table: pd.DataFrame, config: Config) -> np.ndarray | None:
    """Return 1 for rows of the protected group and 0 for others; None if the kind does not compare groups."""
    task = config.task
    if not KINDS[task.kind].uses_groups:
        return None
    if task.sensitive is None or task.protected is None:
        raise ValueError(f"task.kind {task.kind!r} needs task.sensitive and task.protected: a column and its value")
    group = find_column(table, task.sensitive, "task.sensitive")
    return match_value(group, task.protected, "task.protected").astype(np.int32)


def _feature_names(table: pd.DataFrame, data: DataSection) -> list[str]:
    """Return the names of the feature columns; the client's column is not one, because new clients are unknown."""
    if unknown := [repr(name) for name in data.ignore if name not in table.columns]:
        raise ValueError(f"data.ignore must name columns of the table, but {', '.join(unknown)} is not one")
    return [name for name in table.columns if name not in (data.label, data.client, *data.ignore)]


def build_method(config: Config) -> Method:
    """Return the method of the settings, with None for settings that are "auto"."""
    section = config.method
    names = ("alpha", "step_size", "criterion", "slack", "threshold", "local_step_size")
    given: dict[str, Any] = {name: replace_auto(getattr(section, name)) for name in names}
    given |= {"optimizer": OPTIMIZERS[section.optimizer], "robust": section.robust or None}
    if section.name == AUTO and given["step_size"] is None:
        settings = {name: value for name, value in given.items() if value is not None}
        return Automatic(config.task.bound, **settings).template
    return SoftmaxSGM(tolerance=config.task.bound, **given)


def uses_score(config: Config) -> bool:
    """Return whether the model is a score with a threshold, rather than trained in rounds with the constraint.

    That is the default for bounded rates. A network, settings of the method or of sampling, regret and privacy need
    rounds. Raise ValueError for settings that the model does not use.
    """
    run, default = config.run, RunSection()
    in_rounds = config.model.hidden or config.task.regret or config.privacy.epsilon is not None
    names = ("rounds", "local_steps", "participation", "batch_size", "value_batch_size", "average_last", "answer")
    is_plain = config.method == MethodSection() and all(getattr(run, name) == getattr(default, name) for name in names)
    if KINDS[config.task.kind].path is not None and is_plain and not in_rounds:
        if run.seconds is not None:
            problem = "must not be set for a score with a threshold, which is not trained in rounds; remove it"
            raise ValueError(f"run.seconds = {run.seconds!r} {problem}, or set run.rounds to train in rounds")
        return True
    for name in ("score", "thresholds"):
        if getattr(config.model, name) != getattr(ModelSection(), name):
            reason = "needs a bounded rate, no hidden layers, and default settings of the method and of sampling"
            raise ValueError(f"model.{name} = {getattr(config.model, name)!r} {reason}")
    return False


def fill_alpha(method: Method, clients: int) -> Method:
    """Return a ``SoftmaxSGM`` that has a step size but no alpha with the published alpha; any other unchanged."""
    if not isinstance(method, SoftmaxSGM) or method.step_size is None or method.alpha is not None:
        return method
    return replace(method, alpha=default_alpha(clients, method.tolerance))
