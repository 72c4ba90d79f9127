"""The report's section on what the bound costs: sentences, a chart and a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from softswitch.runs.frontier_files import read_frontier
from softswitch.runs.report.themed_svg import themed_svg


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
