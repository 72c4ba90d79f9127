"""What a constraint costs on a table of one's own: a frontier by a file of settings, and its folder."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from softswitch.certification.certifiability import Certifiability, certifiability
from softswitch.certification.certify import resolve_ranges
from softswitch.data.client_data import ClientData
from softswitch.data.splits import DataSplit
from softswitch.engine.baselines import add_baselines
from softswitch.engine.frontier import Measure, checked_bounds, frontier
from softswitch.methods.automatic import as_method
from softswitch.oracles.options import Logging
from softswitch.problem.networks import Network, outputs
from softswitch.problem.parameters import float_dtype
from softswitch.problem.ranges import ends
from softswitch.results.certificate import NOT_CERTIFIED, ending
from softswitch.results.folder import (
    CONFIG,
    FRONTIER,
    Run,
    has_frontier,
    new_folder,
    open_run,
    versions,
    write_frontier,
    write_result,
)
from softswitch.results.frontier import Frontier
from softswitch.results.frontier_point import BoundOutcome, FrontierPoint
from softswitch.support.files import write_atomically
from softswitch.tables.labels import Label, NumberLabel
from softswitch.tables.metrics import client_metrics
from softswitch.tables.model import write_encoding
from softswitch.tables.preparation import CERTIFIED, PreparedTable, build_method, prepare_table
from softswitch.tables.settings import Config, given, read_config, write_config
from softswitch.tables.training import count_earlier_certificates, describe_task, output_options, sampling_options

RUNGS = (4.0, 2.0, 1.5, 1.0, 0.75, 0.5, 0.25)
"""Bounds to try where none are given, in units of that of the settings;"""
BEYOND = (2.0, 1.2)
"""and where rows can certify none of them, in units of the smallest that they can."""
ALIKE = ("task.kind", "data.label", "data.client", "data.held_out", "run.seed")
"""In what a run must agree for a frontier to stand in its folder."""


@dataclass(frozen=True)
class FrontierPlan:
    """What is about to be trained.

    Attributes:
        config: the settings.
        bounds: from the loosest to the tightest.
        certifiability: what the rows to certify could show at best at the tightest.
        rows: how many there are to learn from, to choose by and to certify with.
    """

    config: Config
    bounds: tuple[float, ...]
    certifiability: Certifiability
    rows: tuple[int, int, int]


@dataclass(frozen=True, eq=False)
class FrontierRun:
    """A frontier, and where it is written down.

    Attributes:
        folder: its own, or the run's.
        frontier: the frontier.
        looks: how many other models the same rows have certified before.
    """

    folder: Path
    frontier: Frontier
    looks: int


def train_frontier(
    file: str | Path,
    bounds: Sequence[float] = (),
    run: str | Path | None = None,
    *,
    before: Callable[[FrontierPlan], None] | None = None,
    watch: Callable[[FrontierPoint], None] | None = None,
    progress: bool | None = None,
) -> FrontierRun:
    """What the constraint of a file of settings costs.

    Args:
        file: the settings.
        bounds: what the constraint may be at most; by default some about that of the settings.
        run: a run's folder to put it into, where its report shows it; by default a folder of its own.
        before: called with what is about to be trained.
        watch: called with each bound's point as soon as its model is trained.
        progress: show a progress bar; by default on a terminal only.
    """
    path = Path(file)
    base = path.resolve().parent
    config = _certified(read_config(path))
    if config.privacy.asked:
        raise ValueError(
            "[privacy] must be left out: models of several bounds are chosen and certified by the same rows, which is "
            "not counted"
        )
    ready = prepare_table(config, base)
    split = ready.parts
    assert split is not None
    checked = _bounds(bounds, config, ready, split)
    host = None if run is None else _host(run, config, ready)
    if before is not None:
        told = certifiability(ready.problem, split.calibration, checked[-1], config.run.confidence)
        learn, choose, keep = (int(part.sizes.sum()) for part in split)
        before(FrontierPlan(config, tuple(checked), told, (learn, choose, keep)))
    folder = new_folder(base / config.run.folder, f"{path.stem}-frontier") if host is None else host.folder
    started = datetime.now(UTC).isoformat(timespec="seconds")
    try:
        found = frontier(
            ready.problem,
            split,
            checked,
            as_method(build_method(config)),
            confidence=config.run.confidence,
            move=None if config.task.kind == "custom" else ready.label.move,
            measures=_measures(ready.label),
            watch=watch,
            rounds=given(config.run.rounds),
            seed=config.run.seed,
            sampling=sampling_options(config),
            output=output_options(config),
            logging=Logging(progress=progress, held_out=split.validation, record_clients=True),
        )
    except BaseException:
        if host is None:
            with suppress(OSError):
                folder.rmdir()
        raise
    found = replace(found, asked=config.task.bound)
    about: dict[str, Any] = {
        "started": started,
        "data": {"file": config.data.file, "sha256": ready.fingerprint, "rows": int(ready.train.sizes.sum())},
        "command": " ".join(["softswitch", *sys.argv[1:]]) if sys.argv else "",
        "versions": versions(),
    }
    looks = count_earlier_certificates(folder, config, about)
    for point in found.points:
        aim = {
            "answered": point.outcome is BoundOutcome.CERTIFIED,
            "words": _ending(point, found),
            "earlier_certificates": looks,
            "certifiability": found.certifiability,
        }
        _write_model(folder / bound_folder(point.bound), point, config, ready, about | {"aim": aim})
    kept = {"settings": str(path.resolve()), "earlier_certificates": looks}
    kept["finished"] = datetime.now(UTC).isoformat(timespec="seconds")
    kept["models"] = {f"{point.bound:g}": bound_folder(point.bound) for point in found.points}
    write_frontier(folder, found, about | kept)
    return FrontierRun(folder, found, looks)


def bound_folder(bound: float) -> str:
    """The folder of a bound's model."""
    return f"bound-{bound:.6g}"


def _measures(label: Label) -> dict[str, Measure]:
    """What is measured beside F and G: accuracy of classes, the mean absolute error of numbers."""
    name, worst = ("mean absolute error", np.max) if isinstance(label, NumberLabel) else ("accuracy", np.min)

    def of_rows(params: Network, data: ClientData) -> np.ndarray:
        y = np.asarray(data.rows.columns["y"])
        found = label.predicted(outputs(params, jnp.asarray(data.rows.columns["x"])))
        if isinstance(label, NumberLabel):
            return np.abs(found - (label.mean + label.scale * y))
        return (label.encode(found) == y).astype(float)

    def at_worst(params: Network, data: ClientData) -> float:
        starts = np.cumsum(data.sizes) - data.sizes
        return float(worst(np.add.reduceat(of_rows(params, data), starts) / data.sizes))

    def of_all(params: Network, data: ClientData) -> float:
        return float(of_rows(params, data).mean())

    return {f"{name}, worst client": at_worst, f"{name}, all rows": of_all}


def _certified(config: Config) -> Config:
    """The settings with three parts of the rows, which a frontier needs."""
    for name in ("held_out", "validation"):
        if not getattr(config.data, name) > 0:
            raise ValueError(
                f"data.{name} must be above 0: a frontier needs rows to choose by, and rows to certify with"
            )
    if config.task.regret:
        raise ValueError("task.regret must be false here: bounds are compared by the objective itself")
    return replace(config, run=replace(config.run, aim=CERTIFIED))


def _bounds(asked: Sequence[float], config: Config, ready: PreparedTable, split: DataSplit) -> list[float]:
    """From the loosest on: those asked for, or some about that of the settings."""
    shapes = split.train.batch_shapes(1, float_dtype(ready.problem.start))
    ranges = resolve_ranges(ready.problem, None, None, ready.problem.trace(shapes).constraints)[1:]
    most = max(math.inf if of_row is None else ends(of_row)[1] for of_row in ranges)
    if asked:
        found = checked_bounds("--bound", asked)
        if found[0] >= most:
            raise ValueError(
                f"--bound must be below {most:g}, since the constraint {config.task.kind} is never above it, but is "
                f"{found[0]:g}"
            )
        return found
    if not config.task.bound > 0:
        raise ValueError("task.bound is 0, and there are no bounds about it; name them: --bound 0.2 --bound 0.1")
    found = [float(f"{rung * config.task.bound:.6g}") for rung in RUNGS]
    could = certifiability(ready.problem, split.calibration, config.task.bound, config.run.confidence).smallest_bound
    if max(found) < could < most:
        found = [*(float(f"{rung * could:.2g}") for rung in BEYOND), *found]
    return checked_bounds("--bound", [bound for bound in found if bound < most] or [config.task.bound])


def _host(run: str | Path, config: Config, ready: PreparedTable) -> Run:
    """The run whose folder is to have the frontier, or raise."""
    host = open_run(run)
    if not host.finished:
        raise ValueError(f"--run {host.folder} is not finished; softswitch resume {host.folder}")
    if has_frontier(host.folder):
        raise ValueError(f"--run {host.folder} has a {FRONTIER} already; without --run there is a folder of its own")
    own = {"data.sha256": ready.fingerprint[:12]}
    for name in ALIKE:
        section, setting = name.split(".")
        own[name] = getattr(getattr(config, section), setting)
    for name, value in own.items():
        if host.settings.get(name) != value:
            raise ValueError(
                f"--run {host.folder} must be a run of these settings, but its {name} is "
                f"{host.settings.get(name)!r}, and here it is {value!r}"
            )
    return host


def _write_model(
    folder: Path, point: FrontierPoint, config: Config, ready: PreparedTable, about: dict[str, Any]
) -> None:
    """The chosen model of a bound as a run's folder, so that it can be looked at, and used where it is certified."""
    assert point.result is not None
    folder.mkdir(parents=True, exist_ok=True)
    own = replace(config, task=replace(config.task, bound=point.bound))
    write_atomically(folder / CONFIG, write_config(own).encode(), durable=False)
    write_encoding(folder, ready.encoding, config.data.label, ready.label, config.model.hidden)
    constants = partial(ready.label.constant, ready.problem.start)
    told: dict[str, Any] = {"constants": constants, "unconstrained": False, "cost": ready.cost}
    result = add_baselines(point.result, ready.problem, ready.train, **told)
    about = about | describe_task(own, ready.label)
    columns = client_metrics(ready, result)
    write_result(folder, result, about=about, clients=columns, certificate=point.certificate)


def _ending(point: FrontierPoint, found: Frontier) -> str:
    """What came of a bound's model, in words."""
    if point.certificate is not None:
        return ending(point.certificate)
    why = {
        BoundOutcome.LATER: "it was not tested, since tests end with the first that does not pass",
        BoundOutcome.TOO_FEW: "no model could be certified for it by these rows",
        BoundOutcome.NOT_REACHED: "it is not kept on the rows learnt from",
    }
    sure = f"{NOT_CERTIFIED.capitalize()} ({found.confidence:.4g})"
    return f"{sure}: nothing can be said of the bound {point.bound:g} on unseen rows, for {why[point.outcome]}."
