"""The report's page: words, tables and charts put into one file."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from softswitch.results.certificate import Certificate
from softswitch.results.descriptions import ConstraintDescription, bound_sentence, client_noun, read_description
from softswitch.results.events import EVENTS, events_by_kind
from softswitch.results.folder import (
    ABOUT,
    CONFIG,
    Run,
    differing_settings,
    find_runs,
    has_frontier,
    open_run,
    read_frontier,
    write_result,
)
from softswitch.results.report import charts
from softswitch.results.report.charts import themed_svg
from softswitch.results.report.client_states import ClientStanding, ClientVerdict, standings
from softswitch.results.report.client_table import METRICS, SEEN, client_table
from softswitch.results.report.verdict import MARKS, verdict
from softswitch.results.result import Result
from softswitch.results.run_schema import check_about
from softswitch.support import checks
from softswitch.support.files import SETTINGS, or_damaged, read_words, write_atomically
from softswitch.support.text import duration, few_of, number, share, short_numbers


class FrontierSection(NamedTuple):
    """What the page shows of a frontier.

    Attributes:
        words: sentences.
        chart: as SVG.
        cells: the table's head and rows.
        notes: how to read it.
        of: which folder it is of, where that is not said otherwise.
    """

    words: list[str]
    chart: str
    cells: dict[str, list[Any]]
    notes: str
    of: str


def section_of(folder: Path, key: str) -> FrontierSection:
    """The section of the frontier in a folder; ``key`` tells it from the page's others."""
    found = read_frontier(folder)
    columns = found.columns
    cells: dict[str, list[Any]] = {
        "head": list(columns),
        "rows": [list(row) for row in zip(*columns.values(), strict=True)],
    }
    return FrontierSection(found.words, themed_svg(found.figure(), key), cells, found.notes, folder.name)


REPORT = "report.html"
CONSTANT = "best constant prediction"


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
        with or_damaged(run.folder / ABOUT):
            check_about(run.about, whole=True)
    file = places[0] / REPORT if out is None else Path(out)
    file.parent.mkdir(parents=True, exist_ok=True)
    with or_damaged(" and ".join(str(folder) for folder in places[:3])):
        shown = page(runs, of_bounds)
    write_atomically(file, shown.encode())
    return file


def page(runs: list[Run], of_bounds: Sequence[Path] = ()) -> str:
    """The report as HTML, with everything it needs inside; ``of_bounds``: folders of frontiers to begin with."""
    try:
        from jinja2 import Environment, StrictUndefined
    except ImportError as error:
        raise ValueError("the report needs Jinja: pip install 'softswitch[report]'") from error
    told = [_told(run, i) for i, run in enumerate(runs)]
    own = resources.files("softswitch.results.report")
    files = {name: (own / name).read_text(encoding="utf-8") for name in ("page.html", "style.css", "script.js")}
    template = Environment(autoescape=True, undefined=StrictUndefined).from_string(files["page.html"])
    every = {
        str(i): {"rows": one["clients"].every, "marks": one["clients"].marks}
        for i, one in enumerate(told)
        if one["clients"].every
    }
    return template.render(
        runs=told,
        comparison=_comparison(runs),
        compared=charts.comparison(runs) if len(runs) > 1 else None,
        first=[section_of(folder, f"first-{i}") for i, folder in enumerate(of_bounds)],
        style=files["style.css"],
        script=files["script.js"],
        every=json.dumps(every, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c"),
    )


def _told(run: Run, i: int) -> dict[str, Any]:
    """What the page says of a run."""
    about, settings = run.about, run.folder / CONFIG
    plain, found = read_description(about), _within_range(standings(run), run)
    words = plain if about.get("worst_loss") is None else replace(plain, objective=f"regret in {plain.objective}")
    short = verdict(run, found)
    share_of_rounds = about["switch_share"]
    objective = f"{words.objective}, worst {client_noun(run.settings)}"
    return {
        "name": run.name,
        "about": about,
        "short": short,
        "mark": MARKS[short.level],
        "bounded": bound_sentence(about),
        "use": of_any_use(run, words),
        "aim": (about.get("aim") or {}).get("words"),
        "answer": about["answer"].removeprefix("the "),
        "how_good": (about.get("lower_bound") or {}).get("words"),
        "tiles": {
            f"{words.constraint}, worst {client_noun(run.settings)}, training rows": words.write(
                about["worst_constraint"]
            ),
            "bound": words.write(about["tolerance"]),
            f"F: {objective}, training rows": number(about["worst_objective"]),
            **_worst_loss(about.get("worst_loss"), f"{plain.objective}, worst {client_noun(run.settings)}"),
            **_best_possible(about.get("lower_bound")),
            **_stationarity(about.get("stationarity")),
            "rounds": f"{about['rounds']:,}",
            "feasible rounds": share(share_of_rounds),
            "time": duration(about["seconds"]),
            **_oldest(about.get("oldest_report")),
        },
        "events": _events(run),
        "privacy": about.get("privacy"),
        "beside": _beside(run, words),
        "restarts": [str(restart) for restart in run.restarts],
        "clients": client_table(run, found, plain, client_noun(run.settings)),
        "beyond": any(one.standing is ClientVerdict.MEETS and one.upper > about["tolerance"] for one in found),
        "word": client_noun(run.settings),
        "many": len(found),
        "groups": _groups(run),
        "method": short_numbers(about["method"]),
        "price": None if about.get("price") is None else number(about["price"]),
        "settings": read_words(settings, SETTINGS) if settings.exists() else "",
        "frontier": section_of(run.folder, f"frontier-{i}") if has_frontier(run.folder) else None,
        "curves": charts.curves(run, f"curves-{i}", (f"F: {words.objective}", f"G: {words.constraint}"), words.write),
        "bars": charts.clients(run, found, f"clients-{i}", words.constraint, words.write),
        "heat": charts.heat_map(run, found, f"heat-{i}"),
    }


def _within_range(found: list[ClientStanding], run: Run) -> list[ClientStanding]:
    """No rate and no loss is below 0, whatever an approximate limit says; of one's own functions nothing is known."""
    if not read_description(run.about).is_nonnegative:
        return found
    return [one._replace(lower=max(one.lower, 0.0)) if math.isfinite(one.lower) else one for one in found]


def of_any_use(run: Run, words: ConstraintDescription) -> str | None:
    """The model against the best constant prediction, in the metric that pays for the bound where there is one."""
    told, metric = run.clients, words.cost
    word = client_noun(run.settings)
    if metric is not None and f"{SEEN}_{metric}" in told and f"constant_{metric}" in told:
        heading, write = METRICS[metric]
        values = {name: _largest(told[f"{name}_{metric}"]) for name in (SEEN, "constant")}
        useful = "Of use" if values[SEEN] < values["constant"] else "Of no use"
        return (
            f"{useful}: {heading} at the worst {word} {write(values[SEEN])}; {write(values['constant'])} with the best "
            "constant prediction (seen on held-out rows)."
        )
    beside_it = {one["name"]: one for one in run.about.get("beside", ())}
    if CONSTANT not in beside_it or run.about["worst_objective"] is None:
        return None
    own, constant = run.about["worst_objective"], beside_it[CONSTANT]
    if constant["objective"] is None:
        return None
    if not constant["feasible"]:
        return f"No constant prediction keeps the bound; the worst {word}'s {words.objective} is {number(own)}."
    useful = "Of use" if own < constant["objective"] else "Of no use"
    return (
        f"{useful}: the worst {word}'s {words.objective} is {number(own)}; {number(constant['objective'])} with the "
        "best constant prediction that keeps the bound (training rows)."
    )


def _largest(values: Sequence[float]) -> float:
    return max((value for value in values if math.isfinite(value)), default=math.nan)


def _best_possible(told: dict[str, Any] | None) -> dict[str, str]:
    """What no parameters can be better than, where that was asked for."""
    if told is None:
        return {}
    return {f"best possible F, {'at least' if told['certified'] else 'estimated'}": number(told["value"])}


def _worst_loss(value: float | None, name: str) -> dict[str, str]:
    """The largest objective itself, where regrets were minimised."""
    return {} if value is None else {f"{name}, training rows": number(value)}


def _stationarity(stages: list[float | None] | None) -> dict[str, str]:
    """How far a proximal centre moved in its last stage, where there is one."""
    if not stages:
        return {}
    return {"stationarity, last stage": "∞: no feasible round" if stages[-1] is None else number(stages[-1])}


def _oldest(rounds: int | None) -> dict[str, str]:
    """How long the server had to rely on a report at most, where it remembers them."""
    return {} if rounds is None else {"oldest report relied on": f"{rounds:,} rounds"}


def _events(run: Run) -> str | None:
    """How often what happened to clients, where that was written down; and who was left out."""
    told = ", ".join(f"{many:,} {what}" for what, many in events_by_kind(run.events).items())
    left_out = few_of([str(name) for name in run.about.get("excluded", ())])
    said = [f"Events ({EVENTS}): {told}."] if told else []
    return " ".join([*said, f"Left out (exclude): {left_out}."] if left_out else said) or None


Cells = dict[str, list[Any]]
"""A table: its ``head``, and its ``rows``."""


def _comparison(runs: list[Run]) -> Cells:
    """One line a run: what it came to, and the settings in which runs differ."""
    differing = differing_settings(runs)
    head = ["run", "certificate", "meeting", "worst constraint", "bound", "worst objective", "rounds", *differing]
    rows = []
    for i, run in enumerate(runs):
        words, found = read_description(run.about), standings(run)
        meeting = sum(one.standing is ClientVerdict.MEETS for one in found)
        rows.append(
            [
                run.name,
                verdict(run, found).headline,
                f"{meeting:,} of {len(found):,}",
                words.write(run.about["worst_constraint"]),
                words.write(run.about["tolerance"]),
                number(run.about["worst_objective"]),
                f"{run.about['rounds']:,}",
                *(values[i] for values in differing.values()),
            ]
        )
    return {"head": head, "rows": rows}


def _beside(run: Run, words: ConstraintDescription) -> Cells | None:
    """The answer and the models that it is put beside, where they were looked at."""
    told = run.about.get("beside", ())
    if len(told) < 2:
        return None
    rows = [
        [
            one["name"],
            number(one["objective"]),
            number(one["mean_objective"]),
            words.write(one["constraint"]),
            f"{one['violating']:,} of {run.about['clients']:,}",
        ]
        for one in told
    ]
    head = ["model", "worst objective F", "mean objective", f"worst {words.constraint} G", "above the bound"]
    return {"head": head, "rows": rows}


def _groups(run: Run) -> Cells | None:
    """What decisions mean for each group, where it was measured."""
    told = run.about.get("groups")
    if not told:
        return None
    names = list(next(iter(told.values())))
    rows = [
        [group, *(number(values[name]) if name == "rows" else share(values[name]) for name in names)]
        for group, values in told.items()
    ]
    return {"head": ["group", *(name.replace("_", " ") for name in names)], "rows": rows}


def report(
    result: Result,
    out: str | Path = "report.html",
    *,
    certificate: Certificate | None = None,
    rows: Sequence[int] | None = None,
    title: str | None = None,
) -> Path:
    """Write the report of a run as one HTML file: verdict, every client, the rounds, what looks wrong.

    Args:
        result: of ``solve``, ``solve_torch``, ``solve_federation``, whichever engine.
        out: the HTML file to write.
        certificate: what ``certify`` or ``certify_torch`` said of it, if anything.
        rows: how many rows each client trained on, in the order of ``result.names``; to be shown.
        title: what the report is called; by default the file's name.

    Returns:
        The file.
    """
    checks.expect("result", result, Result)
    if certificate is not None:
        checks.expect("certificate", certificate, Certificate)
    if rows is not None and len(rows) != len(result.names):
        raise ValueError(f"rows must have one number for each of {len(result.names)} clients, but has {len(rows)}")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / (title or Path(out).stem).replace("/", " ")
        columns = None if rows is None else {"rows": list(rows)}
        write_result(folder, result, clients=columns, certificate=certificate)
        return write_report([folder], out)
