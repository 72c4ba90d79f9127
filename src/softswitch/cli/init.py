"""The command init, which inspects a table, proposes the roles of its columns, and writes a settings file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from softswitch.problem.choices import BINARY, MULTICLASS, NUMBER
from softswitch.support import checks
from softswitch.tables.constraints import KINDS, kind_names
from softswitch.tables.settings import Config, DataSection, TaskSection, write_config

if TYPE_CHECKING:
    import pandas as pd

    from softswitch.tables.inspection import Candidate, ColumnSummary, PositiveClass
    from softswitch.tables.text_file import TextFormat

REQUESTED = "as requested"  # reason of a choice that a flag made
DEFAULT_KIND = {BINARY: "miss-rate", MULTICLASS: "class-miss-rate", NUMBER: "coverage"}  # by label type


def init(
    table: Annotated[str, typer.Argument(help="Table: CSV (also .gz, .xz or .bz2), Parquet or Excel.")],
    label: Annotated[str | None, typer.Option(help="Column to predict. Default: proposed.")] = None,
    client: Annotated[str | None, typer.Option(help="Column that identifies the client. Default: proposed.")] = None,
    positive: Annotated[str | None, typer.Option(help="Positive value of the label. Default: proposed.")] = None,
    ignore: Annotated[list[str] | None, typer.Option(help="Column to ignore; repeatable.")] = None,
    keep: Annotated[list[str] | None, typer.Option(help="Column to keep that would be ignored; repeatable.")] = None,
    kind: Annotated[str | None, typer.Option(help=f"Constraint: {', '.join(KINDS)}. Default: by the label.")] = None,
    bound: Annotated[float | None, typer.Option(help="Bound: a rate (0.05: 5%), a loss, or an error.")] = None,
    sensitive: Annotated[str | None, typer.Option(help="Column with the group, for kinds that compare groups.")] = None,
    protected: Annotated[str | None, typer.Option(help="Value of the protected group.")] = None,
    out: Annotated[Path | None, typer.Option(help="Settings file to write. Default: named like the table.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Inspect a table, and write a settings file for softswitch train. Values set to "auto" need no tuning.

    Roles without a flag are proposed. If the label or the client is not clear, the candidates are listed as an error.
    """
    from softswitch.tables import inspection
    from softswitch.tables.table import find_column

    file = out or Path(Path(table).name.partition(".")[0] + ".toml")

    def check_out() -> None:
        if file.exists() and not force:
            raise ValueError(f"{file} already exists; use another --out, or --force")

    _, found = checks.call_all(check_out, lambda: inspect_table(table))
    console = Console(highlight=False)
    size = f"{len(found.table):,} rows, {len(found.table.columns)} columns"
    console.print(f"{table}: {size}{f' ({found.form})' if found.form else ''}", markup=False)
    labels = inspection.label_candidates(found.summaries)
    likely = label or (labels[0].name if labels else None)
    clients = inspection.client_candidates(found.summaries, len(found.table), likely)
    flags = {"--sensitive": [sensitive] if sensitive else [], "--ignore": ignore or [], "--keep": keep or []}
    target, owner, *_ = checks.call_all(
        lambda: found.choose_column(label, labels, "--label", "column to predict"),
        lambda: found.choose_column(client, clients, "--client", "column that identifies the client"),
        *(partial(find_column, found.table, name, flag) for flag, names in flags.items() for name in names),
    )
    if target == owner:
        raise ValueError(f"--label and --client must be two columns, but both are {target!r}")
    if found.table[target].nunique() < 2:
        raise ValueError(f"--label must name a column of several values, but {target!r} has one")
    label_type = inspection.infer_label_type(found.table[target])
    positive_value, task = checks.call_all(
        lambda: _positive(found.table[target], label_type, positive),
        lambda: _task(found.table, target, label_type, kind, bound, sensitive, protected),
    )
    proposed = inspection.reasons_to_ignore(found.table, found.summaries, target, owner, label_type)
    ignored = dict.fromkeys(flags["--ignore"], REQUESTED)
    kept = {*flags["--ignore"], *flags["--keep"], sensitive}
    ignored |= {name: reason for name, reason in proposed.items() if name not in kept}
    roles = Roles(target, owner, positive_value, ignored, task)
    console.print(found.overview(roles))
    for line in roles.describe(found):
        console.print(line, markup=False)
    file.write_text(roles.write_settings(found, file), encoding="utf-8")
    console.print(f"\nWrote {file}. Next: softswitch train {file}", markup=False, soft_wrap=True)


@dataclass(frozen=True)
class Roles:
    """The proposed roles of the columns, and the constraint."""

    label: str  # name of the column to predict
    client: str  # name of the column that identifies the client
    positive: PositiveClass | None  # None if the label does not have two values
    ignored: dict[str, str]  # reason by name of the ignored column
    task: TaskSection

    def of_column(self, name: str) -> str:
        """Return the role of a column: "label", "client", "group", "ignored" or "feature"."""
        roles = {self.label: "label", self.client: "client"} | dict.fromkeys(self.ignored, "ignored")
        return roles.get(name, "group" if name == self.task.sensitive else "feature")

    def describe(self, found: InspectedTable) -> list[str]:
        """Return lines of text: the proposal, the ignored columns with reasons, and remarks on the table."""
        from softswitch.tables.inspection import remarks

        lines = [f"\nLabel: {self.label}. Client: {self.client}."]
        if (positive := self.positive) is not None:
            change = "" if positive.why == REQUESTED else f" To change it: --positive {str(positive.other)!r}"
            lines.append(f"Positive: {positive.value!r}, {positive.share:.1%} of the rows, {positive.why}.{change}")
        lines.append(f"At every client: {self.task.kind} at most {self.task.bound:g}. To change it: --kind, --bound")
        if self.ignored:
            lines.append("\nIgnored columns (to keep one: --keep COLUMN):")
            lines += [f"- {name}: {reason}" for name, reason in self.ignored.items()]
        notes = remarks(found.table, found.summaries, self.label, self.client, list(self.ignored))
        if found.empty:
            notes.append(f"cells among numbers or dates that count as empty: {', '.join(found.empty)}")
        return lines + (["\nRemarks:", *(f"- {note}" for note in notes)] if notes else [])

    def write_settings(self, found: InspectedTable, out: Path) -> str:
        """Return the content of the settings file ``out``, with the path of the table relative to its folder."""
        file = found.file
        if not file.is_absolute() and out.resolve().parent != Path.cwd():
            file = Path(os.path.relpath(file.resolve(), out.resolve().parent))
        options: dict[str, Any] = {} if found.form is None else asdict(found.form)
        options |= {"ignore": tuple(self.ignored), "empty": found.empty}
        value = None if self.positive is None else self.positive.value
        data = DataSection(file.as_posix(), self.label, self.client, value, **options)
        return write_config(Config(data, self.task))


@dataclass(frozen=True, eq=False)
class InspectedTable:
    """A table with summaries of its columns."""

    file: Path
    form: TextFormat | None  # format of a text file; None for other files
    table: pd.DataFrame
    summaries: tuple[ColumnSummary, ...]  # one per column, in their order
    empty: tuple[str, ...]  # texts in columns of numbers or dates, which count as empty cells

    def overview(self, roles: Roles) -> Table:
        """Return a rich table with the content and the role of each column."""
        grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for heading in ("column", "content", "empty", "values", "role"):
            grid.add_column(heading, overflow="fold", justify="right" if heading in ("empty", "values") else "left")
        for one in self.summaries:
            empty = "" if not one.empty else "<1%" if one.empty < 0.01 else f"{one.empty:.0%}"
            grid.add_row(Text(one.name), one.content, empty, f"{one.values:,}", roles.of_column(one.name))
        return grid

    def choose_column(self, name: str | None, candidates: Sequence[Candidate], flag: str, meaning: str) -> str:
        """Return the column of a flag or, without one, a clear choice; otherwise raise ValueError with candidates."""
        from softswitch.tables.inspection import clear_choice
        from softswitch.tables.table import find_column

        if name is not None:
            return str(find_column(self.table, name, flag).name)
        if (clear := clear_choice(candidates)) is not None:
            return clear
        listed = ([one for one in candidates if one.points >= 0] or candidates)[:6]
        lines = [f"{flag} is needed ({meaning}): {'candidates are' if listed else 'there is no candidate'}"]
        lines += [f"  {one.name}: {one.why or 'no evidence'}" for one in listed]
        raise ValueError("\n".join(lines))


def inspect_table(file: str) -> InspectedTable:
    """Read a table and inspect its columns; raise ValueError if it has fewer than three."""
    from softswitch.tables.inspection import inspect_column, non_numeric_cells
    from softswitch.tables.table import read_table, text_format

    form = text_format(file)
    options = {} if form is None else asdict(form)
    table = read_table(file, **options)
    if len(table.columns) < 3:
        found = f"{len(table.columns)} columns: {', '.join(map(repr, table.columns))} ({form})"
        raise ValueError(f"{file} must have a label, a client and features, but has {found}")
    empty = tuple(dict.fromkeys(cell for name in table.columns for cell in non_numeric_cells(table[name])))
    if empty:
        table = read_table(file, empty=empty, **options)
    summaries = tuple(inspect_column(table[name]) for name in table.columns)
    return InspectedTable(Path(file), form, table, summaries, empty)


def _positive(labels: pd.Series, label_type: str, text: str | None) -> PositiveClass | None:
    """Return the requested or proposed positive class; None if the label does not have two values."""
    from softswitch.tables.inspection import parse_value, positive_class

    if label_type != BINARY:
        if text is not None:
            raise ValueError(f"--positive is for labels of two values, but {labels.name!r} is {label_type}")
        return None
    likely = positive_class(labels)
    if text is None:
        return likely
    value = parse_value(labels, text, "--positive")
    if value != likely.value:
        likely = likely._replace(value=value, other=likely.value, share=1 - likely.share)
    return likely._replace(why=REQUESTED)


def _task(
    table: pd.DataFrame,
    label: str,
    label_type: str,
    kind: str | None,
    bound: float | None,
    sensitive: str | None,
    protected: str | None,
) -> TaskSection:
    """Return the task section of the settings: kind and bound of the constraint by flags or defaults, and the group."""
    import pandas as pd

    from softswitch.tables.inspection import parse_value

    labels, kind = table[label].dropna(), kind or DEFAULT_KIND[label_type]
    types = [label_type, *([MULTICLASS] if label_type == BINARY else [])]
    is_numeric = label_type == MULTICLASS and pd.api.types.is_numeric_dtype(labels)
    suitable = kind_names(*types, *([NUMBER] if is_numeric else []))
    if kind not in suitable:
        reason = f"{label!r} is {label_type} ({labels.nunique():,} values)"
        raise ValueError(f"--kind must be one of {', '.join(suitable)}, because {reason}, but is {kind!r}")
    proposed = KINDS[kind].default_bound
    bound = bound if bound is not None else proposed(labels) if callable(proposed) else proposed
    value: Any = protected
    if KINDS[kind].uses_groups:
        if sensitive is None or protected is None:
            raise ValueError(f"--kind {kind} needs --sensitive and --protected: a column and its value")
        value = parse_value(table[sensitive], protected, "--protected")
    return TaskSection(kind=kind, bound=bound, sensitive=sensitive, protected=value)
