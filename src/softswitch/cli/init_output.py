"""What the command init tells of a table: what its columns are, what is proposed, and why."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from softswitch.tables.settings import TaskSection

if TYPE_CHECKING:
    import pandas as pd

    from softswitch.tables.inspection import ColumnSummary
    from softswitch.tables.proposal import PositiveClass
    from softswitch.tables.text_file import TextFormat

MOSTLY = 0.8
"""The share of positive rows from which on a bound on misses asks for little."""
MOST_SHOWN = 24
"""Columns, above which plain features are told in one line."""


@dataclass(frozen=True, eq=False)
class LookedAt:
    """A table that was looked at."""

    file: Path
    form: TextFormat | None
    table: pd.DataFrame
    survey: tuple[ColumnSummary, ...]
    odd: dict[str, dict[str, float]]
    marks: tuple[str, ...]


@dataclass(frozen=True)
class Roles:
    """What the columns are for."""

    label: str
    client: str
    what: str
    positive: PositiveClass | None
    ignore: dict[str, str]
    task: TaskSection


def header(looked: LookedAt) -> Text:
    """The file, its size, and how it is written."""
    form = "" if looked.form is None else f" ({looked.form})"
    return Text(f"{looked.file}: {len(looked.table):,} rows, {len(looked.table.columns)} columns{form}")


def used_as(roles: Roles) -> dict[str, str]:
    """What columns are for, but for features."""
    named = {roles.label: "label", roles.client: "client"}
    if roles.task.sensitive is not None and roles.task.protected is not None:
        named.setdefault(roles.task.sensitive, "group")
    return named | dict.fromkeys(roles.ignore, "left out")


def overview(looked: LookedAt, uses: dict[str, str]) -> Table:
    """A line a column: what it is, how much of it is empty, and what it is for, where that is known."""
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in ("column", "what it is"):
        grid.add_column(heading, overflow="fold")
    for heading in ("empty", "values"):
        grid.add_column(heading, justify="right")
    if uses:
        grid.add_column("used as")
    fold = len(looked.survey) > MOST_SHOWN
    folded: Counter[str] = Counter()
    for seen in looked.survey:
        if fold and seen.name not in uses and not seen.empty and not seen.remark and not seen.reason:
            folded[seen.content] += 1
            continue
        empty = "" if not seen.empty else "<1%" if seen.empty < 0.01 else f"{seen.empty:.0%}"
        role = (uses.get(seen.name, "feature"),) if uses else ()
        grid.add_row(Text(seen.name), seen.content, empty, f"{seen.values:,}", *role)
    for what, many in folded.items():
        grid.add_row(f"… {many} more", what, "", "", *(("feature",) if uses else ()))
    return grid


def words(looked: LookedAt, roles: Roles) -> list[str]:
    """What is proposed, what is left out and why, and what else is to be said."""
    from softswitch.tables.proposal import remarks

    said = [f"\nPredict {roles.label}; clients by {roles.client}."]
    if (positive := roles.positive) is not None:
        other = "" if positive.why == "as you said" else f" Else: --positive {str(positive.other)!r}"
        said.append(f"Positive is {positive.value!r}, {positive.share:.1%} of the rows: {positive.why}.{other}")
        if positive.share > MOSTLY and roles.task.kind == "miss-rate":
            said.append(
                f"Most rows are positive: who always says {positive.value!r} misses none. Is it {positive.other!r} "
                "that must not be missed?"
            )
    said.append(f"At every client: {roles.task.kind} at most {roles.task.bound:g}. Else: --kind, --bound")
    if roles.ignore:
        said.append("\nLeft out (to keep one: --keep COLUMN):")
        said += [f"- {name}: {reason}" for name, reason in roles.ignore.items()]
    told = remarks(looked.table, looked.survey, roles.label, roles.client, roles.what, list(roles.ignore))
    if looked.marks:
        told.append(f"these cells count as empty, as those with nothing in them: {', '.join(looked.marks)}")
    for name, cells in looked.odd.items():
        words = ", ".join(f"{word!r} ({share:.1%})" for word, share in cells.items())
        told.append(f"{name}: all but {words} are numbers or dates, so that counts as empty, in every column")
    if told:
        said.append("\nTo know:")
        said += [f"- {one}" for one in told]
    return said


def with_reasons(text: str, roles: Roles) -> str:
    """The settings with the reasons why columns are left out, and why this class is the positive one."""
    above = {"ignore = ": [f"{name}: {reason}" for name, reason in roles.ignore.items()]}
    if (positive := roles.positive) is not None:
        above["positive = "] = [f"{positive.value!r} is {positive.share:.1%} of the rows: {positive.why}."]
    lines = []
    for line in text.splitlines():
        for start, said in above.items():
            if line.startswith(start):
                lines += [f"# {' '.join(one.split())}" for one in said]
        lines.append(line)
    return "\n".join(lines) + "\n"
