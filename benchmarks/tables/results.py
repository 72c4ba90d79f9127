"""What is found on the cases, as rows; and the rows as tables for the terminal and as a figure."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from rich.table import Table

import softswitch as ss
from benchmarks.tables.cases import Case
from benchmarks.tables.known import Known, known
from benchmarks.tables.opponents import opponents
from benchmarks.tables.ours import ours, share_of
from benchmarks.tables.reference import Logistic, optimum
from softswitch_experiments.plotting import BLUE, GREY, VERMILLION, make_panels

Row = dict[str, Any]

ALLOWED = {True: 0.02, False: 0.05}
"""Excess over F* that passes, as a share of it: with everyone in every round, and with some."""
ALLOWED_OF_CONSTANT = 0.01
"""Or as a share of the best constant's F, where F* is next to nothing."""

MARGINS = (1.005, 1.01, 1.02)
"""A switch at the tolerance divided by one of these leaves room for what a run does not see."""


def passes(objective: float, constraint: float, case: Case, about: Known, everyone: bool) -> bool:
    """Whether F is near enough to F*, and G within the tolerance."""
    allowed = ALLOWED[everyone] * about.optimum
    if np.isfinite(about.constant):
        allowed = max(allowed, ALLOWED_OF_CONSTANT * about.constant)
    return bool(objective - about.optimum <= allowed and constraint <= case.tolerance)


def row_of(case: Case, participation: float, seeds: int, recipe: str) -> Row:
    """Our method on a case over the seeds; one run where all rows of everyone are taken, and no seed matters."""
    about = known(case)
    everyone = participation >= 1
    began = time.perf_counter()
    runs = [ours(case, participation, 0, recipe=recipe)]
    if not (everyone and nothing_is_drawn(runs[0])):
        runs += [ours(case, participation, seed, recipe=recipe) for seed in range(1, seeds)]
    reached = [(float(run.worst_objective), float(run.worst_constraint)) for run in runs]
    return {
        "case": case.name,
        "held_out": case.held_out,
        "participation": participation,
        "asked": round(share_of(participation, about.clients) * about.clients),
        "clients": about.clients,
        "tolerance": case.tolerance,
        "optimum": about.optimum,
        "constant": about.constant,
        "objective": float(np.median([f for f, _ in reached])),
        "constraint": max(g for _, g in reached),
        "violating": max(len(run.violating) for run in runs),
        "passed": sum(passes(f, g, case, about, everyone) for f, g in reached),
        "constant_passes": passes(about.constant, 0.0, case, about, everyone),
        "gap": float(np.median([gap_of(run) for run in runs])),
        "certified": all(run.lower_bound is not None and run.lower_bound.certified for run in runs),
        "seeds": len(runs),
        "seconds": (time.perf_counter() - began) / len(runs),
    }


def gap_of(run: ss.Result) -> float:
    """How far F is above the best possible at most, as a share of F; NaN where nothing was found."""
    return np.nan if run.gap is None else float(run.gap / abs(run.worst_objective))


def nothing_is_drawn(run: ss.Result) -> bool:
    """Whether clients take all of their rows for gradients and reports."""
    return all(run.auto_settings.get(f"rows for a {what}") == "all of a client's" for what in ("gradient", "report"))


def reference_row(case: Case) -> Row:
    """What is known of a case."""
    return {"case": case.name, "held_out": case.held_out, "tolerance": case.tolerance, **asdict(known(case))}


def opponent_rows(case: Case) -> list[Row]:
    """What others reach on a case."""
    about = known(case)
    return [
        {"case": case.name, "tolerance": case.tolerance, "optimum": about.optimum, **asdict(one)}
        for one in opponents(case)
    ]


def margin_row(case: Case) -> Row:
    """What it costs to keep a smaller bound: the excess of the best model; infinity where no model keeps it."""
    about, rows = known(case), Logistic.of(case)
    row: Row = {"case": case.name, "tolerance": case.tolerance, "optimum": about.optimum}
    for margin in MARGINS:
        bound = case.tolerance / margin
        kept = bound > about.least_constraint
        best = optimum(replace(case, tolerance=bound), rows).objective if kept else np.inf
        row[f"{margin:g}"] = best / about.optimum - 1
    return row


def number(value: float) -> str:
    """Four digits after the point; a dash for what there is not."""
    return f"{value:.4f}" if np.isfinite(value) else "–"


def printed(rows: list[Row]) -> Table:
    """Our method's rows, F and the gap as medians over seeds. A star: the best constant would pass too."""
    table = Table(
        "case", "clients a round", "F*", "constant", "F", "excess", "largest G", "bound", "gap", "passed", "s"
    )
    for row in rows:
        table.add_row(
            row["case"],
            f"{row['asked']} of {row['clients']}",
            number(row["optimum"]),
            number(row["constant"]),
            number(row["objective"]),
            f"{row['objective'] / row['optimum'] - 1:+.1%}",
            number(row["constraint"]),
            f"{row['tolerance']:g}",
            f"{row['gap']:.2%}{'' if row['certified'] else ' ?'}" if np.isfinite(row["gap"]) else "–",
            f"{row['passed']} of {row['seeds']}{' *' if row['constant_passes'] else ''}",
            f"{row['seconds']:.0f}",
        )
    passed = sum(row["passed"] == row["seeds"] for row in rows)
    gaps = [row["gap"] for row in rows if np.isfinite(row["gap"])]
    table.caption = (
        f"all seeds pass in {passed} of {len(rows)} rows; * the best constant would pass as well; "
        f"median gap {np.median(gaps) if gaps else np.nan:.2%}; ? an estimate"
    )
    return table


def references(rows: list[Row]) -> Table:
    """What is known of the cases."""
    table = Table("case", "", "rows", "clients", "d", "bound", "F*", "proven", "starts", "constant", "free F", "G")
    for row in rows:
        table.add_row(
            row["case"],
            "held out" if row["held_out"] else "",
            f"{row['rows']:,}",
            str(row["clients"]),
            str(row["features"]),
            f"{row['tolerance']:g}",
            *map(number, (row["optimum"], row["lower"])),
            str(row["agreeing"]) if np.isneginf(row["lower"]) else "–",
            *map(number, (row["constant"], row["free_objective"], row["free_constraint"])),
        )
    return table


def margins_table(rows: list[Row]) -> Table:
    """What smaller bounds cost."""
    table = Table("case", "bound", "F*", *(f"excess at bound/{margin:g}" for margin in MARGINS))
    for row in rows:
        costs = (row[f"{margin:g}"] for margin in MARGINS)
        shown = (f"{cost:+.2%}" if np.isfinite(cost) else "none keeps it" for cost in costs)
        table.add_row(row["case"], f"{row['tolerance']:g}", number(row["optimum"]), *shown)
    return table


def opponents_table(rows: list[Row]) -> Table:
    """What others reach."""
    table = Table("case", "who", "F*", "F", "excess", "G", "bound", "clients violating")
    for row in rows:
        table.add_row(
            row["case"],
            row["name"],
            number(row["optimum"]),
            number(row["objective"]),
            f"{row['objective'] / row['optimum'] - 1:+.1%}",
            number(row["constraint"]),
            f"{row['tolerance']:g}",
            str(row["violating"]),
        )
    return table


def draw(found: dict[str, list[Row]], file: str) -> None:
    """Every case's excess over F* in percent, and G in units of its bound: ours by participation, and opponents'."""
    marks: list[tuple[str, str, Any, list[Row]]] = []
    shares = sorted({row["participation"] for row in found.get("ours", [])}, reverse=True)
    for share, colour in zip(shares, (BLUE, VERMILLION), strict=False):
        own = [row for row in found["ours"] if row["participation"] == share]
        marks.append((f"ours, {share:.0%} of clients a round", "o", colour, own))
    others = found.get("opponents", [])
    for name, mark in zip(dict.fromkeys(row["name"] for row in others), "xsv^D", strict=False):
        marks.append((name, mark, GREY, [row for row in others if row["name"] == name]))
    cases = list(dict.fromkeys(row["case"] for *_, rows in marks for row in rows))[::-1]
    figure, axes = make_panels(1, 2, width=4.5, height=0.28 * len(cases) + 1.5)
    left, right = np.ravel(axes)
    for label, mark, colour, rows in marks:
        where = [cases.index(row["case"]) for row in rows]
        excess = [100 * (row["objective"] / row["optimum"] - 1) for row in rows]
        left.plot(excess, where, mark, color=colour, label=label, markersize=5)
        right.plot([row["constraint"] / row["tolerance"] for row in rows], where, mark, color=colour, markersize=5)
    left.set(xlabel="F above the optimum, %", xscale="symlog", yticks=range(len(cases)), yticklabels=cases)
    right.set(xlabel="G, of the bound", yticks=[], xlim=(0, 2))
    left.axvline(0, color="black", linewidth=0.8)
    right.axvline(1, color="black", linewidth=0.8)
    left.legend(frameon=False, fontsize=7)
    figure.savefig(file, dpi=120)
