"""The report's page: words, tables and charts put into one file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from softswitch.runs.folder import ABOUT, CONFIG, Run, find_runs, open_run
from softswitch.runs.frontier_files import has_frontier
from softswitch.runs.report import charts
from softswitch.runs.report.frontier_section import section_of
from softswitch.runs.report.verdict import verdict
from softswitch.support.files import write_atomically

REPORT = "report.html"


def write_report(folders: Sequence[str | Path], out: str | Path | None = None) -> Path:
    """Write the report of a run, or of several side by side, as one HTML file.

    Args:
        folders: the runs' folders; a frontier's stands for the runs in it.
        out: the file; by default ``report.html`` in the first folder.
    """
    if not folders:
        raise ValueError("at least one run's folder is needed")
    places = [Path(folder) for folder in folders]
    of_bounds = [folder for folder in places if has_frontier(folder) and not (folder / ABOUT).exists()]
    runs = [run for folder in places for run in (find_runs(folder) if folder in of_bounds else [open_run(folder)])]
    for run in runs:
        if not run.finished:
            raise ValueError(f"{run.folder} is not finished; softswitch resume {run.folder}")
    file = places[0] / REPORT if out is None else Path(out)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, page(runs, of_bounds).encode())
    return file


def page(runs: list[Run], of_bounds: Sequence[Path] = ()) -> str:
    """The report as HTML, with everything it needs inside; ``of_bounds``: folders of frontiers to begin with."""
    try:
        from jinja2 import Environment, StrictUndefined
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise ValueError("the report needs plotly and Jinja: pip install 'softswitch[report]'") from error
    drawn: dict[str, Any] = {"comparison": charts.comparison(runs)} if len(runs) > 1 else {}
    for i, run in enumerate(runs):
        drawn |= {f"curves-{i}": charts.curves(run), f"clients-{i}": charts.clients(run)}
        heat = charts.heat_map(run)
        if heat is not None:
            drawn[f"heat-{i}"] = heat
    frontiers = {f"frontier-{i}": section_of(run.folder) for i, run in enumerate(runs) if has_frontier(run.folder)}
    first = {f"first-{i}": section_of(folder) for i, folder in enumerate(of_bounds)}
    drawn |= {key: section.chart for key, section in (frontiers | first).items()}
    own = resources.files("softswitch.runs.report")
    files = {name: (own / name).read_text(encoding="utf-8") for name in ("page.html", "style.css", "script.js")}
    template = Environment(autoescape=True, undefined=StrictUndefined).from_string(files["page.html"])
    return template.render(
        runs=[_told(run) for run in runs],
        comparison=_comparison(runs),
        frontiers=frontiers,
        first=first,
        drawn=list(drawn),
        style=files["style.css"],
        script=files["script.js"],
        plotly=get_plotlyjs().replace("</script", "<\\/script"),
        charts=json.dumps(drawn, allow_nan=False).replace("<", "\\u003c"),
    )


def _told(run: Run) -> dict[str, Any]:
    """What the page says of a run."""
    about = run.about
    level, words = verdict(run)
    settings = run.folder / CONFIG
    share = about["switch_share"]
    return {
        "name": run.name,
        "about": about,
        "level": level,
        "words": words,
        "answer": about["answer"].removeprefix("the "),
        "how_good": (about.get("lower_bound") or {}).get("words"),
        "tiles": {
            "worst objective F": number(about["worst_objective"]),
            **_best_possible(about.get("lower_bound")),
            "worst constraint G": number(about["worst_constraint"]),
            "bound": number(about["tolerance"]),
            "rounds": f"{about['rounds']:,}",
            "feasible rounds": "—" if share is None else f"{share:.0%}",
            "time": f"{about['seconds']:.1f} s",
            **_oldest(about.get("oldest_report")),
        },
        "beside": _beside(run),
        "cycles": [str(cycle) for cycle in run.cycles],
        "clients": _clients(run),
        "groups": _groups(run),
        "settings": settings.read_text(encoding="utf-8") if settings.exists() else "",
    }


def _best_possible(told: dict[str, Any] | None) -> dict[str, str]:
    """What no parameters can be better than, where that was asked for."""
    if told is None:
        return {}
    return {f"best possible F, {'at least' if told['promise'] else 'estimated'}": number(told["value"])}


def _oldest(rounds: int | None) -> dict[str, str]:
    """How long the server had to rely on a report at most, where it remembers them."""
    return {} if rounds is None else {"oldest report relied on": f"{rounds:,} rounds"}


Cells = dict[str, list[Any]]
"""A table: its ``head``, and its ``rows``."""


def _comparison(runs: list[Run]) -> Cells:
    head = ["run", "status", "worst objective", "worst constraint", "bound", "certificate", "rounds", "method"]
    rows = [
        [
            run.name,
            run.about["status"]["code"],
            number(run.about["worst_objective"]),
            number(run.about["worst_constraint"]),
            number(run.about["tolerance"]),
            "—" if run.certificate is None else run.certificate["verdict"],
            f"{run.about['rounds']:,}",
            run.about["rule"],
        ]
        for run in runs
    ]
    return {"head": head, "rows": rows}


def _clients(run: Run) -> Cells:
    """Every client, the worst first, with what the certificate says of it."""
    columns = run.clients
    certified = charts.intervals(run)
    head = [name.replace("_", " ") for name in columns]
    if certified:
        head += ["held-out constraint", "at most", "verdict"]
    _, worst = charts.client_constraints(run)
    rows = []
    for i in np.argsort(-worst, kind="stable"):
        row = [values[i] if name == "client" else number(values[i]) for name, values in columns.items()]
        if certified:
            one = certified.get(columns["client"][i])
            row += ["—", "—", "no held-out rows"] if one is None else [number(one[0]), number(one[2]), one[3]]
        rows.append(row)
    return {"head": head, "rows": rows}


def _beside(run: Run) -> Cells | None:
    """The answer and the models that it is put beside, where they were looked at."""
    told = run.about.get("beside", ())
    if len(told) < 2:
        return None
    names = ("objective", "mean_objective", "constraint")
    rows = [
        [one["name"], *(number(one[name]) for name in names), f"{one['violating']} of {run.about['clients']}"]
        for one in told
    ]
    head = ["model", "worst objective F", "mean objective", "worst constraint G", "clients above the bound"]
    return {"head": head, "rows": rows}


def _groups(run: Run) -> Cells | None:
    """What decisions mean for each group, where it was measured."""
    told = run.about.get("groups")
    if not told:
        return None
    names = list(next(iter(told.values())))
    rows = [[group, *(number(values[name]) for name in names)] for group, values in told.items()]
    return {"head": ["group", *(name.replace("_", " ") for name in names)], "rows": rows}


def number(value: float | None) -> str:
    """A number for a table; what is not finite is a dash."""
    return "—" if value is None or not np.isfinite(value) else f"{value:.4g}"
