"""The trade-off curve between bound and objective on a table: training from a settings file, and its folder."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from softswitch.certification.certifiability import certifiability
from softswitch.certification.row_values import row_ranges
from softswitch.data.client_data import ClientData
from softswitch.data.splits import DataSplit
from softswitch.engine.baselines import add_baselines
from softswitch.engine.certified import Certified
from softswitch.engine.frontier import Measure, build_frontier, check_bounds, frontier
from softswitch.methods.automatic import as_method
from softswitch.problem.networks import Network
from softswitch.problem.ranges import endpoints
from softswitch.results import folder as run_folder
from softswitch.results.certificate import describe_certification
from softswitch.results.folder import CONFIG, write_result
from softswitch.results.frontier import Frontier, FrontierPoint
from softswitch.support.files import write_atomically
from softswitch.tables.labels import Label, NumberLabel, predict_codes
from softswitch.tables.metrics import assess_model, client_rows, predict_outputs
from softswitch.tables.preparation import CERTIFIED, PreparedTable, build_method, fill_alpha, prepare_table, uses_score
from softswitch.tables.settings import Config, read_config, write_config
from softswitch.tables.thresholds import ScoredModel, fit_score
from softswitch.tables.training import (
    count_earlier_certificates,
    describe_origin,
    describe_task,
    shift_options,
    solve_options,
    with_score,
    write_encoding,
)

MULTIPLES = (4.0, 2.0, 1.5, 1.0, 0.75, 0.5, 0.25)  # default bounds as multiples of the bound in the settings
CERTIFIABLE_MULTIPLES = (2.0, 1.2)  # further ones, of the smallest certifiable bound, if no other is certifiable


def train_frontier(
    file: str | Path,
    bounds: Sequence[float] = (),
    *,
    say: Callable[[str], None] = lambda text: None,
    progress: bool | None = None,
) -> tuple[Path, Frontier, int]:
    """Train models for several bounds, certify them jointly, and write one folder with a run folder per bound.

    ``bounds`` are by default multiples of the bound in the settings. ``say`` is called with lines of text. Return the
    folder, the frontier, and the number of models of other runs that the same rows have certified.
    """
    path = Path(file)
    base = path.resolve().parent
    config = read_config(path.resolve())
    for name in ("held_out", "validation"):
        if not getattr(config.data, name) > 0:
            raise ValueError(f"data.{name} must be above 0: a frontier needs validation rows and held-out rows")
    if config.task.regret:
        raise ValueError("task.regret must be false for a frontier, which compares bounds by the objective")
    if config.privacy.epsilon is not None:
        raise ValueError("privacy.epsilon must not be set for a frontier: the budget is for one model, not for several")
    config = replace(config, run=replace(config.run, aim=CERTIFIED))
    table = prepare_table(config, base)
    split = table.split
    assert split is not None
    bounds = _check_bounds(bounds, config, table, split)
    say(f"{config.task.kind} at most {', '.join(f'{bound:g}' for bound in bounds)}.")
    learn, choose, keep = (int(part.sizes.sum()) for part in split)
    say(f"Rows: {learn:,} for training, {choose:,} for validation, {keep:,} for the certificate.")
    say(f"{certifiability(table.problem, split.calibration, bounds[-1], config.run.confidence)}\n")

    def report_point(point: FrontierPoint) -> None:
        outcome = f"least F {point.objective:.4f}" if point.reached else f"not reached, G is {point.constraint:.4g}"
        say(f"trained for {point.bound:g}: {outcome}")

    about = describe_origin(config, table)
    folder = run_folder.create_folder(base / config.run.folder, f"{path.stem}-frontier")
    try:
        if uses_score(config):
            curve = _frontier_of_scores(config, table, bounds, report_point)
        else:
            options = solve_options(config, progress=progress, held_out=split.validation)
            options |= {"confidence": config.run.confidence, "measures": _measures(table.label), "watch": report_point}
            method = as_method(fill_alpha(build_method(config), len(table.train)))
            curve = frontier(table.problem, split, bounds, method, move=table.label.move, **options)
    except BaseException:
        folder.rmdir()
        raise
    earlier = count_earlier_certificates(folder, config, about)
    aim = {"earlier_certificates": earlier, "certifiability": curve.certifiability}
    for point in curve.points:
        verdict = {"outcome": str(point.outcome), "certified": point.outcome.is_certified}
        verdict["message"] = describe_certification(point.certificate)
        entries = about | {"certification": verdict | aim}
        _write_model(folder / bound_folder(point.bound), point, config, table, entries)
    finished = datetime.now(UTC).isoformat(timespec="seconds")
    details = {"settings": str(path.resolve()), "earlier_certificates": earlier, "finished": finished}
    run_folder.write_frontier(folder, curve, about | details)
    return folder, curve, earlier


def _frontier_of_scores(
    config: Config, table: PreparedTable, bounds: Sequence[float], watch: Callable[[FrontierPoint], None]
) -> Frontier:
    """Return the frontier of the thresholds of one score."""
    label, seed = table.label, config.run.seed
    kind, score, bound = config.task.kind, config.model.score, config.task.bound
    fitted = fit_score(kind, label, table.learning, bound=bound, score=score, seed=seed)
    choose_shift = partial(fitted.choose_shift, kind)

    def train(bound: float, confidence: float) -> Certified:
        return choose_shift(bound, table.held_out, **shift_options(config) | {"confidence": confidence})

    first = choose_shift(bounds[0], table.held_out, select=False)
    assert first.calibration is not None
    split = DataSplit(first.learning, first.learning, first.calibration)
    constants = partial(label.constant, first.problem.start)
    options: dict[str, Any] = {"confidence": config.run.confidence, "measures": _measures(label), "watch": watch}
    return build_frontier(
        first.problem, split, bounds, train, move=lambda params, scale, offset: constants(offset), **options
    )


def bound_folder(bound: float) -> str:
    """Return the name of the run folder of a bound's model, such as "bound-0.05"."""
    return f"bound-{bound:.6g}"


def _measures(label: Label) -> dict[str, Measure]:
    """Return metrics of a model by name: accuracy or mean absolute error, at the worst client and over all rows."""
    name, worst = ("mean absolute error", np.max) if isinstance(label, NumberLabel) else ("accuracy", np.min)

    def client_means(params: Network, data: ClientData) -> np.ndarray:
        y, outputs = np.asarray(data.rows.columns["y"]), predict_outputs(params, data)
        values = np.abs(label.errors(outputs, y)) if isinstance(label, NumberLabel) else predict_codes(outputs) == y
        return np.array([values[rows].mean() for rows in client_rows(data).values()])

    return {
        f"{name}, worst client": lambda params, data: float(worst(client_means(params, data))),
        f"{name}, all rows": lambda params, data: float(np.average(client_means(params, data), weights=data.sizes)),
    }


def _check_bounds(bounds: Sequence[float], config: Config, table: PreparedTable, split: DataSplit) -> list[float]:
    """Return the given bounds, or the default ones if empty, from the loosest to the tightest."""
    ranges = row_ranges(table.problem, split.train)[1:]
    largest = max(math.inf if row_range is None else endpoints(row_range)[1] for row_range in ranges)
    if bounds:
        checked = check_bounds("--bound", bounds)
        if checked[0] >= largest:
            limit = f"{largest:g}, the largest value of the constraint {config.task.kind}"
            raise ValueError(f"--bound must be below {limit}, but is {checked[0]:g}")
        return checked
    if not config.task.bound > 0:
        raise ValueError("task.bound is 0, which has no multiples; give bounds such as --bound 0.2 --bound 0.1")
    defaults = [float(f"{multiple * config.task.bound:.6g}") for multiple in MULTIPLES]
    limits = certifiability(table.problem, split.calibration, config.task.bound, config.run.confidence)
    if max(defaults) < limits.smallest_bound < largest:
        defaults += [float(f"{multiple * limits.smallest_bound:.2g}") for multiple in CERTIFIABLE_MULTIPLES]
    return check_bounds("--bound", [bound for bound in defaults if bound < largest] or [config.task.bound])


def _write_model(
    folder: Path, point: FrontierPoint, config: Config, table: PreparedTable, about: dict[str, Any]
) -> None:
    """Write the model of a bound, with baselines and client metrics, as a run folder."""
    assert point.result is not None
    scored = point.certified if isinstance(point.certified, ScoredModel) else None
    folder.mkdir(parents=True, exist_ok=True)
    config = replace(config, task=replace(config.task, bound=point.bound))
    result = point.result
    write_atomically(folder / CONFIG, write_config(config).encode(), durable=False)
    write_encoding(folder, config, table, scored)
    if scored is None:
        constants = partial(table.label.constant, table.problem.start)
        result = add_baselines(result, table.problem, table.train, constants=constants, unconstrained=False)
    else:
        table = with_score(table, scored)
    threshold = None if scored is None else scored.threshold
    assessed = assess_model(config, table, result, point.certificate, threshold=threshold)
    about = about | describe_task(config, table.label) | assessed.about
    write_result(folder, assessed.result, about=about, clients=assessed.columns, certificate=point.certificate)
