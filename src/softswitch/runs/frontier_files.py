"""A frontier's files: what it says, as JSON, CSV and figures; in a folder of its own, or in that of a run."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from softswitch.results.along_bounds.cost_of_bounds import Frontier
from softswitch.runs.run_shapes import check_frontier
from softswitch.support.capped_files import or_damaged, read_json
from softswitch.support.files import write_atomically, write_json

FRONTIER = "frontier.json"
FRONTIER_FORMAT = "softswitch frontier 1"


def write_frontier(folder: Path, frontier: Frontier, about: Mapping[str, Any]) -> None:
    """Write frontier.csv, .png and .svg, and at last frontier.json with what it is about."""
    write_atomically(folder / "frontier.csv", frontier.to_csv().encode(), durable=False)
    figure = frontier.figure()
    for kind in ("png", "svg"):
        stream = io.BytesIO()
        figure.savefig(stream, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
        write_atomically(folder / f"frontier.{kind}", stream.getvalue(), durable=False)
    write_json(folder / FRONTIER, {"format": FRONTIER_FORMAT, "about": dict(about), **frontier.to_dict()})


def has_frontier(folder: str | Path) -> bool:
    """Whether there is one."""
    return (Path(folder) / FRONTIER).exists()


def read_frontier(folder: str | Path) -> Frontier:
    """The frontier of a folder; its models are in folders of their own."""
    file = Path(folder) / FRONTIER
    told = read_json(file)
    found = told.get("format") if isinstance(told, dict) else None
    if found != FRONTIER_FORMAT:
        raise ValueError(f"{file} has the format {found!r}, but {FRONTIER_FORMAT!r} is what this version reads")
    with or_damaged(file):
        check_frontier(told)
        return Frontier.from_dict(told)
