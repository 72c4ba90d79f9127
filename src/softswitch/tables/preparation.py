"""A table made ready: read, encoded, and split into the clients' rows to train on and those held out."""

from __future__ import annotations

import hashlib
import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import optax
import pandas as pd

from softswitch import methods as methods
from softswitch.data.client_data import ClientData
from softswitch.data.splits import DataSplit, part_masks
from softswitch.engine.auto_tuning import SHARPNESS
from softswitch.methods.base import Method
from softswitch.methods.memory import Memory
from softswitch.problem.problem import Problem
from softswitch.problem.ranges import checked_range
from softswitch.support import checks
from softswitch.support.checks import all_at_once
from softswitch.tables.constraints import GROUPED, CustomFunctions, Loss, build_problem
from softswitch.tables.features import Encoding
from softswitch.tables.labels import (
    BinaryLabel,
    Label,
    MulticlassLabel,
    NumberLabel,
    fit_binary_label,
    fit_multiclass_label,
    fit_number_label,
    is_number,
)
from softswitch.tables.private import declared_encoding, private_problem, public_label
from softswitch.tables.settings import (
    AIMS,
    AUTO,
    INCOMPLETE,
    OF_AMOUNTS,
    OF_CLASSES,
    Config,
    DataSection,
    MethodSection,
    given,
)
from softswitch.tables.table import column, is_value, read_table


def function_named(where: str, setting: str, folder: Path) -> Callable[..., Any]:
    """The function that 'module:function' names; the module may lie in the given folder."""
    module, colon, name = where.partition(":")
    if not (module and colon and name):
        raise ValueError(f"{setting} must be 'module:function', but is {where!r}")
    sys.path.insert(0, str(folder))
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"{setting} must name a function that can be imported, but {where!r} cannot: {error}"
        ) from error
    finally:
        sys.path.remove(str(folder))
    checks.function(setting, found, "(params, batch) -> number")
    function: Callable[..., Any] = found
    return function


CERTIFIED = AIMS[0]


@dataclass(frozen=True, eq=False)
class PreparedTable:
    """A table made ready: the clients' rows, and how they were made.

    Attributes:
        problem: objective, constraint and start.
        train: the rows to learn from.
        validation: those that a model for unseen rows is chosen by; None where that is not the aim.
        held_out: those kept for the certificate; None without any.
        encoding: how columns become features.
        label: what the label is.
        fingerprint: of the file.
        cost: the rate that the bound is paid with, where there is one.
        left_out: how many rows were left out, since their label, client or group is empty.
    """

    problem: Problem
    train: ClientData
    validation: ClientData | None
    held_out: ClientData | None
    encoding: Encoding
    label: Label
    fingerprint: str
    cost: Callable[..., Any] | None = None
    left_out: int = 0

    @property
    def parts(self) -> DataSplit | None:
        """The three parts, where a certified model is the aim."""
        if self.validation is None or self.held_out is None:
            return None
        return DataSplit(self.train, self.validation, self.held_out)


def prepare_table(config: Config, folder: Path) -> PreparedTable:
    """Read the table, encode it, and split off held-out rows of every client.

    Args:
        config: the settings.
        folder: relative paths begin here.
    """
    data, task = config.data, config.task
    file = folder / data.file
    table, left_out = _read(file, config)
    of_all_rows, client, features, group = all_at_once(
        lambda: _label(column(table, data.label, "data.label"), np.ones(len(table), bool), config),
        lambda: column(table, data.client, "data.client"),
        lambda: _features(table, data),
        lambda: _group(table, config),
    )
    values = table[data.label]
    alike = {} if isinstance(of_all_rows, NumberLabel) else {"y": of_all_rows.encode(values)}
    if group is not None:
        alike["group"] = group
    share = data.validation if config.run.aim == CERTIFIED and data.held_out > 0 else 0.0
    masks = part_masks(client, *alike.values(), choosing=share, held_out=data.held_out, seed=config.run.seed)
    label = _label(values, masks[0], config)
    if config.privacy.asked:
        label, encoding = public_label(label, config), declared_encoding(config, features)
    else:
        encoding = Encoding.fit(table[masks[0]], features, table)
    y = alike["y"] if "y" in alike else label.encode(values)
    columns = alike | {"y": y, "x": encoding.encode(table)}
    made = build_problem(
        task.kind,
        len(encoding.features),
        config.model.hidden,
        seed=config.run.seed,
        own=_own_functions(config, folder) if task.kind == "custom" else None,
        label=label,
        loss=Loss(given(task.loss), given(task.quantile)),
        bound=task.bound,
    )
    owner = client.astype(str).to_numpy() if client.dtype == object else client.to_numpy()
    train, validation, held = (
        ClientData.from_arrays(
            {name: values[part] for name, values in columns.items()}, owner[part], strata=made.strata
        )
        if part.any()
        else None
        for part in masks
    )
    assert train is not None
    problem = private_problem(made.problem, task.kind) if config.privacy.asked else made.problem
    return PreparedTable(problem, train, validation, held, encoding, label, _digest(file), made.cost, left_out)


def _read(file: Path, config: Config) -> tuple[pd.DataFrame, int]:
    """The table, and how many of its rows were left out, where the settings say that incomplete ones are."""
    data, task = config.data, config.task
    table = read_table(file, encoding=data.encoding, separator=data.separator, decimal=data.decimal, empty=data.empty)
    if data.incomplete == INCOMPLETE[0]:
        return table, 0
    grouped = (task.sensitive,) if task.kind in GROUPED else ()
    needed = [name for name in (data.label, data.client, *grouped) if name in table.columns]
    whole = table.dropna(subset=needed).reset_index(drop=True)
    if whole.empty:
        raise ValueError(f"every row of {file} has an empty cell in one of {', '.join(map(repr, needed))}")
    for name in needed:  # whole numbers that gaps had made real ones are whole again
        values = whole[name]
        if values.isna().sum() < table[name].isna().sum() and pd.api.types.is_float_dtype(values):
            whole[name] = values.astype(int) if (values % 1 == 0).all() else values
    return whole, len(table) - len(whole)


def _group(table: pd.DataFrame, config: Config) -> np.ndarray | None:
    """1 for the rows of the protected group, where groups are compared."""
    task = config.task
    if task.kind not in GROUPED:
        return None
    if task.sensitive is None or task.protected is None:
        raise ValueError(f"task.kind {task.kind!r} needs task.sensitive and task.protected: a column and its value")
    group = column(table, task.sensitive, "task.sensitive")
    return is_value(group, task.protected, "task.protected").astype(np.int32)


def _what(values: pd.Series, config: Config) -> str:
    """What the label is: as the settings say, else by the kind and the column."""
    said: str | None = given(config.data.label_type)
    if said is not None:
        return said
    kind, many = config.task.kind, int(values.nunique())
    if kind in OF_AMOUNTS or (kind == "custom" and is_number(values)):
        return NumberLabel.what
    if kind == "class-miss-rate" or (kind in (*OF_CLASSES, "custom") and many > 2):
        return MulticlassLabel.what
    return BinaryLabel.what


def _label(values: pd.Series, learnt_from: np.ndarray, config: Config) -> Label:
    """What the label is; ``learnt_from``: which rows its mean, its deviation and the classes' shares are of."""
    what = _what(values, config)
    if what == NumberLabel.what:
        return fit_number_label(values, learnt_from, config.data.label_range, as_is=config.task.kind == "custom")
    if what == MulticlassLabel.what:
        return fit_multiclass_label(values, learnt_from)
    return fit_binary_label(values, config.data.positive)


def _features(table: pd.DataFrame, data: DataSection) -> list[str]:
    """The columns to learn from. The client's own column is none of them: a new client's would be unknown."""
    said = [
        f"data.features and data.ignore must name columns of the table, but {name!r} is none"
        for name in (*data.features, *data.ignore)
        if name not in table.columns
    ]
    said += [
        f"data.features must not have {name!r}, which is the label or the client"
        for name in (data.label, data.client)
        if name in data.features
    ]
    if said:
        raise ValueError("\n".join(said))
    if data.features:
        return list(data.features)
    return [name for name in table.columns if name not in (data.label, data.client, *data.ignore)]


def _own_functions(config: Config, folder: Path) -> CustomFunctions:
    named = {"task.objective": config.task.objective, "task.constraint": config.task.constraint}
    for setting, where in named.items():
        if where is None:
            raise ValueError(f"task.kind 'custom' needs {setting} as 'module:function'")
    if config.task.constraint_surrogate is not None:
        named["task.constraint_surrogate"] = config.task.constraint_surrogate
    functions = (function_named(where or "", setting, folder) for setting, where in named.items())
    of_row = checked_range("task.constraint_range", config.task.constraint_range or None)
    return CustomFunctions(*functions)._replace(constraint_range=of_row)


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


ALPHA_BY_SCALE = {"spread": 10.0, "change": SHARPNESS}
"""α where only its scale is given. In raw values no number fits all tasks."""
OPTIMIZERS = {AUTO: None, "sgd": optax.sgd, "adam": optax.adam}


def build_method(config: Config) -> Method:
    """The method with those settings that are given."""
    section = config.method
    common: dict[str, Any] = {
        "tolerance": config.task.bound,
        "optimizer": OPTIMIZERS[section.optimizer],
        "robust": section.robust,
        **{
            name: given(getattr(section, name))
            for name in ("step_size", "criterion", "slack", "threshold", "local_step_size")
        },
    }
    if section.name == "softmax":
        alpha = given(section.alpha, ALPHA_BY_SCALE.get(section.alpha_scale))
        return methods.SoftmaxSGM(alpha=alpha, alpha_scale=given(section.alpha_scale, "raw"), **common)
    if section.name == "penalty":
        return methods.Penalty(penalty=section.penalty, **common)
    if section.name == "primal-dual":
        return methods.PrimalDual(multiplier=section.multiplier, dual_step_size=section.dual_step_size, **common)
    return {"average": methods.AverageSGM, "hard": methods.HardSGM}[section.name](**common)


def build_memory(section: MethodSection) -> Memory | str | None:
    """The server's memory, as ``solve`` takes it."""
    if isinstance(section.memory, str):
        known: dict[str, Memory | str | None] = {
            AUTO: AUTO,
            "on": Memory(),
            "off": None,
            "corrected": Memory(corrected=True),
        }
        return known[section.memory]
    return Memory(smoothing=section.memory)
