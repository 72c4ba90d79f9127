"""The HTML page of a report."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from softswitch.results import folder as run_folder
from softswitch.results.baseline import Usefulness
from softswitch.results.certificate import Certificate, Verdict
from softswitch.results.descriptions import read_description
from softswitch.results.folder import FRONTIER, Run, write_result
from softswitch.results.report import charts
from softswitch.results.report.clients import (
    build_calibration,
    build_columns,
    judge_run,
    natural_frequencies,
    sort_worst_first,
    summarise_clients,
)
from softswitch.results.result import Result
from softswitch.support import checks
from softswitch.support.files import MAX_SETTINGS_BYTES, read_text, wrap_read_errors, write_atomically
from softswitch.support.text import format_duration, format_number, format_percent, join_first, shorten_numbers

REPORT = "report.html"
MAX_CLIENTS, WORST_CLIENTS = 50, 20  # with more than MAX_CLIENTS clients, only the worst WORST_CLIENTS are shown
FILTERS = {"number": format_number, "percent": format_percent, "duration": format_duration, "first_few": join_first}


def report(result: Result, out: str | Path = REPORT, *, certificate: Certificate | None = None) -> Path:
    """Write the report of a run as one HTML file, and return its path.

    The file shows the verdict, clients, rounds and diagnostics, and opens offline.

    Args:
        result: The result of ``solve``, or of a run over Flower.
        out: The HTML file to write; an existing file is replaced. Default: ``report.html`` in the working directory.
        certificate: The result of ``certify`` for ``result``. Default: none, and the verdict is on training rows.
    """
    checks.check_instance("result", result, Result)
    if certificate is not None:
        checks.check_instance("certificate", certificate, Certificate)
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / Path(out).stem
        write_result(folder, result, certificate=certificate)
        return write_report([folder], out)


def write_report(folders: Sequence[str | Path], out: str | Path | None = None) -> Path:
    """Write the report of one or several finished runs as one HTML file, and return its path.

    Args:
        folders: The folders of the runs. The folder of a frontier stands for the runs in it.
        out: The HTML file to write; an existing file is replaced. Default: ``report.html`` in the first folder.
    """
    if not folders:
        raise ValueError("folders must have at least one run, but is empty")
    paths = [Path(folder) for folder in folders]
    frontiers = [folder for folder in paths if (folder / FRONTIER).exists()]
    find = run_folder.find_runs
    runs = [run for path in paths for run in (find(path) if path in frontiers else [run_folder.open_run(path)])]
    if running := [run.folder for run in runs if not run.finished]:
        raise ValueError(f"{running[0]} is not finished; resume it: softswitch resume {running[0]}")
    file = paths[0] / REPORT if out is None else Path(out)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, render_page(runs, frontiers).encode())
    return file


def render_page(runs: list[Run], frontiers: Sequence[Path] = ()) -> str:
    """Return the report as self-contained HTML: the trade-off curves in the folders ``frontiers``, then the runs."""
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError as error:
        raise ImportError("the report needs Jinja: pip install 'softswitch[report]'") from error
    loader = PackageLoader("softswitch.results.report", ".")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    environment.filters |= FILTERS
    return environment.get_template("page.html").render(
        runs=[_describe_run(run, i) for i, run in enumerate(runs)],
        frontiers=[_describe_frontier(folder, f"frontier-{i}") for i, folder in enumerate(frontiers)],
    )


def _describe_frontier(folder: Path, key: str) -> dict[str, Any]:
    """Return the template's variables of the frontier in a folder; ``key`` is the ``render_svg`` key of its chart."""
    frontier = run_folder.read_frontier(folder)
    columns = frontier.columns
    cells = {"head": list(columns), "rows": [list(row) for row in zip(*columns.values(), strict=True)]}
    chart = charts.render_svg(frontier.figure(), key)
    return {"name": folder.name, "summary": frontier.summary, "chart": chart, "cells": cells, "notes": frontier.notes}


def _describe_run(run: Run, i: int) -> dict[str, Any]:
    """Return the template's variables of the run at index ``i`` of the page."""
    about, config = run.about, run.folder / run_folder.CONFIG
    kind, clients = read_description(about), summarise_clients(run)
    is_regret = about.get("worst_loss") is not None
    columns, bound = build_columns(run, clients, kind), kind.write(about["tolerance"])
    shown = sort_worst_first(clients)[: WORST_CLIENTS if len(clients) > MAX_CLIENTS else None]
    titles = f"F: {'regret in ' * is_regret}{kind.objective}", f"G: {kind.constraint}"
    calibration, curves = build_calibration(run), about.get("reliability")
    return {
        "name": run.name,
        "about": about,
        "kind": kind,
        "objective": f"regret in {kind.objective}" if is_regret else kind.objective,
        "noun": run.client_noun,
        "verdict": judge_run(run),
        "requirement": about.get("requirement") or f"At every client, the constraint may be at most {bound}.",
        "usefulness": describe_usefulness(run),
        "frequencies": natural_frequencies(run),
        "classes": about.get("classes") or {"negative": "the negative class", "positive": "the positive class"},
        "calibration": list(calibration),
        "calibration_rows": [[column[k] for column in calibration.values()] for k in (shown if calibration else ())],
        "reliability": charts.plot_reliability(curves, f"reliability-{i}") if curves and curves["all"] else "",
        "events": Counter(str(event["what"]) for event in run.events),
        "restarts": [str(restart) for restart in run.restarts],
        "columns": list(columns),
        "rows": [(clients[k].verdict, [column[k] for column in columns.values()]) for k in shown],
        "is_wider": any(c.verdict is Verdict.MEETS and c.upper > about["tolerance"] for c in clients),
        "method": shorten_numbers(about["method"]),
        "settings": read_text(config, MAX_SETTINGS_BYTES) if config.exists() else "",
        "curves": charts.plot_curves(run, f"curves-{i}", titles) if about["rounds"] > 1 else "",
        "bars": charts.plot_clients(run, [clients[k] for k in shown], f"clients-{i}"),
    }


def describe_usefulness(run: Run) -> str | None:
    """Return a sentence that compares the model with the best constant prediction; None if it is unknown."""
    if (compared := run.about.get("usefulness")) is None:
        return None
    with wrap_read_errors(run.folder / run_folder.ABOUT):
        usefulness = Usefulness.from_dict(compared)
    sentence = usefulness.describe(run.client_noun)
    if not (run.about.get("certification") or {}).get("certified", True):
        return sentence
    return f"{'Useful' if usefulness.is_useful else 'Not useful'}: {sentence[0].lower()}{sentence[1:]}"
