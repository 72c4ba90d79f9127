"""Training from a file of settings: read, encode, split, solve, certify, and write the run's folder."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import optax
import pandas as pd

from softswitch.clients.client_data import ClientData
from softswitch.clients.splits import hold_out
from softswitch.engines.request import prepare
from softswitch.engines.solve import solve
from softswitch.guarantees.certify import certify
from softswitch.method import rules
from softswitch.method.rules import Rule
from softswitch.problem.problem import Problem
from softswitch.results.certificate import Certificate
from softswitch.results.result import Result
from softswitch.results.status import StatusCode
from softswitch.runs.checkpoints import Checkpoints, write_atomically
from softswitch.runs.folder import (
    ABOUT,
    CHECKPOINTS,
    CONFIG,
    FORMAT,
    new_folder,
    open_run,
    versions,
    write_json,
    write_result,
)
from softswitch.runs.watching import Callback
from softswitch.support import checks
from softswitch.tables.kinds import GROUPED, default_alpha, function_named, recipe
from softswitch.tables.model import write_encoding
from softswitch.tables.settings import Config, Data, read_config, write_config
from softswitch.tables.table import Encoding, column, is_value, read_table
from softswitch.tasks.group_metrics import by_group

KEPT = ("started", "settings", "base", "data", "command")
"""What a resumed run keeps of what it is about."""
ALPHA_PER_SPREAD = 10.0


@dataclass(frozen=True, eq=False)
class Prepared:
    """A table made ready: the clients' rows, and how they were made."""

    problem: Problem
    train: ClientData
    held_out: ClientData | None
    encoding: Encoding
    classes: tuple[Any, Any]
    fingerprint: str


@dataclass(frozen=True, eq=False)
class Trained:
    """What training came to.

    Attributes:
        folder: the run's.
        result: of the rounds; its client values are those of the model.
        certificate: on held-out rows; None where there are none, or the run diverged.
    """

    folder: Path
    result: Result
    certificate: Certificate | None


def make_ready(config: Config, folder: Path) -> Prepared:
    """Read the table, encode it, and split off held-out rows of every client.

    Args:
        config: the settings.
        folder: relative paths begin here.
    """
    data, task = config.data, config.task
    file = folder / data.file
    table = read_table(file)
    label, client = column(table, data.label, "data.label"), column(table, data.client, "data.client")
    classes = _classes(label, data.positive)
    y = is_value(label, classes[1], "data.positive").astype(np.int32)
    columns = {"y": y}
    if task.kind in GROUPED:
        if task.sensitive is None or task.protected is None:
            raise ValueError(f"task.kind {task.kind!r} needs task.sensitive and task.protected: a column and its value")
        group = column(table, task.sensitive, "task.sensitive")
        columns["group"] = is_value(group, task.protected, "task.protected").astype(np.int32)
    apart = hold_out(client, *columns.values(), share=data.held_out, seed=config.run.seed)
    encoding = Encoding.fit(table[~apart], _features(table, data))
    columns["x"] = encoding.encode(table)
    functions = _own_functions(config, folder) if task.kind == "own" else None
    made = recipe(task.kind, len(encoding.features), config.model.hidden, seed=config.run.seed, own=functions)
    owner = client.astype(str).to_numpy() if client.dtype == object else client.to_numpy()
    train, held = (
        ClientData.from_arrays(
            {name: values[part] for name, values in columns.items()}, owner[part], strata=made.strata
        )
        if part.any()
        else None
        for part in (~apart, apart)
    )
    assert train is not None
    return Prepared(made.problem, train, held, encoding, classes, _digest(file))


def _classes(label: pd.Series, positive: Any) -> tuple[Any, Any]:
    """The negative and the positive value of the label."""
    values = sorted(pd.unique(label).tolist(), key=lambda value: (str(type(value)), value))
    if len(values) != 2:
        raise ValueError(
            f"data.label must be a column of two values, but {label.name!r} has {len(values)}: {values[:8]}"
        )
    if positive is None:
        return values[0], values[1]
    chosen = [value for value in values if value == positive or str(value) == str(positive)]
    if len(chosen) != 1:
        raise ValueError(f"data.positive must be one of the label's values {values}, but is {positive!r}")
    return next(value for value in values if value is not chosen[0]), chosen[0]


def _features(table: pd.DataFrame, data: Data) -> list[str]:
    """The columns to learn from. The client's own column is none of them: a new client's would be unknown."""
    for name in (*data.features, *data.ignore):
        if name not in table.columns:
            raise ValueError(f"data.features and data.ignore must name columns of the table, but {name!r} is none")
    for name in (data.label, data.client):
        if name in data.features:
            raise ValueError(f"data.features must not have {name!r}, which is the label or the client")
    if data.features:
        return list(data.features)
    return [name for name in table.columns if name not in (data.label, data.client, *data.ignore)]


def _own_functions(config: Config, folder: Path) -> tuple[Callable[..., Any], Callable[..., Any]]:
    named = {"task.objective": config.task.objective, "task.constraint": config.task.constraint}
    for setting, where in named.items():
        if where is None:
            raise ValueError(f"task.kind 'own' needs {setting} as 'module:function'")
    first, second = (function_named(where or "", setting, folder) for setting, where in named.items())
    return first, second


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def make_rule(config: Config, clients: int) -> Rule:
    """The method with its settings; what is not given gets the defaults that the settings' comments tell."""
    method, tolerance = config.method, config.task.at_most
    optimizer = method.optimizer or ("adam" if config.model.hidden else "sgd")
    common: dict[str, Any] = {
        "step_size": {"sgd": 0.5, "adam": 0.001}[optimizer] if method.step_size is None else method.step_size,
        "tolerance": tolerance,
        "optimizer": {"sgd": optax.sgd, "adam": optax.adam}[optimizer],
    }
    if method.criterion is not None:
        common["criterion"] = method.criterion
    if method.name == "softmax":
        alpha = method.alpha
        if alpha is None:
            spread = method.alpha_scale == "spread"
            alpha = ALPHA_PER_SPREAD if spread else default_alpha(clients, tolerance)
        return rules.SoftmaxSGM(alpha=alpha, alpha_scale=method.alpha_scale, **common)
    if method.name == "penalty":
        return rules.Penalty(penalty=method.penalty, **common)
    if method.name == "primal-dual":
        return rules.PrimalDual(multiplier=method.multiplier, dual_step_size=method.dual_step_size, **common)
    return {"average": rules.AverageSGM, "hard": rules.HardSGM}[method.name](**common)


def train(
    file: str | Path,
    *,
    watch: Callable[[Config, Prepared, Rule], None] | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
) -> Trained:
    """Train by a file of settings, in a new folder.

    Args:
        file: the settings.
        watch: called with the settings, the table made ready and the rule before training.
        callbacks: as for ``solve``.
        progress: show a progress bar; by default on a terminal only.
    """
    path = Path(file)
    config, base = read_config(path), path.resolve().parent
    ready = make_ready(config, base)
    rule = make_rule(config, len(ready.train))
    if watch is not None:
        watch(config, ready, rule)
    _check(config, ready, rule)
    folder = new_folder(base / config.run.folder, path.stem)
    write_atomically(folder / CONFIG, write_config(config).encode())
    about = {
        "format": FORMAT,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "settings": str(path.resolve()),
        "base": os.path.relpath(base, folder),
        "data": {"file": config.data.file, "sha256": ready.fingerprint, "rows": int(ready.train.sizes.sum())},
        "command": " ".join(["softswitch", *sys.argv[1:]]) if sys.argv else "",
        "versions": versions(),
    }
    write_json(folder / ABOUT, about)
    return _run(folder, config, ready, rule, about, callbacks, progress)


def resume(folder: str | Path, *, callbacks: Sequence[Callback] = (), progress: bool | None = None) -> Trained:
    """Go on with a run that was interrupted or killed, to exactly what it would have been."""
    run = open_run(folder)
    if "base" not in run.about:
        raise ValueError(f"{run.folder} was not made by softswitch train, and cannot be resumed")
    config = read_config(run.folder / CONFIG)
    ready = make_ready(config, run.folder / run.about["base"])
    if ready.fingerprint != run.about["data"]["sha256"]:
        raise ValueError(f"{config.data.file} has changed since {run.folder} began; train anew")
    kept: dict[str, Any] = {key: run.about[key] for key in KEPT if key in run.about}
    return _run(run.folder, config, ready, make_rule(config, len(ready.train)), kept, callbacks, progress)


def _options(config: Config, ready: Prepared) -> dict[str, Any]:
    """What the settings say to ``solve``."""
    run = config.run
    return {
        "rounds": run.rounds,
        "local_steps": run.local_steps,
        "participation": run.participation,
        "batch_size": run.batch_size or None,
        "answer": run.answer or ("last" if config.model.hidden else "average"),
        "held_out": ready.held_out,
    }


def _check(config: Config, ready: Prepared, rule: Rule) -> None:
    """Refuse what ``solve`` would refuse, before a folder is made."""
    rest = {
        "value_batch_size": "same",
        "replace": True,
        "average_last": 1.0,
        "eval_every": None,
        "clients_at_once": None,
    }
    prepare(ready.problem, ready.train, (rule,), **_options(config, ready), **rest)  # type: ignore[arg-type]
    checks.seed("run.seed", config.run.seed)
    checks.probability("run.confidence", config.run.confidence)


def _run(
    folder: Path,
    config: Config,
    ready: Prepared,
    rule: Rule,
    about: dict[str, Any],
    callbacks: Sequence[Callback],
    progress: bool | None,
) -> Trained:
    result = solve(
        ready.problem,
        ready.train,
        rule,
        **_options(config, ready),
        seed=config.run.seed,
        record_clients=True,
        callbacks=callbacks,
        checkpoints=Checkpoints(folder / CHECKPOINTS),
        progress=progress,
    )
    certificate = None
    if ready.held_out is not None and result.status.code is not StatusCode.DIVERGED:
        certificate = certify(result, ready.problem, ready.held_out, config.run.confidence)
    write_encoding(folder, ready.encoding, config.data.label, ready.classes, config.model.hidden)
    rows = {"rows": ready.train.sizes.tolist()}
    if config.task.kind in GROUPED and ready.held_out is not None and find_spec("fairlearn") is not None:
        others = {"protected": str(config.task.protected), "others": f"not {config.task.protected}"}
        told = by_group(result.params, ready.held_out)
        about = about | {"groups": {others[row.pop("group")]: row for row in told}}
    write_result(folder, result, about=about, clients=rows, certificate=certificate)
    return Trained(folder, result, certificate)
