"""The roles of a table's columns for the command init: from flags, answers or proposals."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import typer
from rich.table import Table
from rich.text import Text

from softswitch.problem.choices import BINARY
from softswitch.support import checks
from softswitch.tables import proposal
from softswitch.tables.constraints import KINDS
from softswitch.tables.inspection import ColumnSummary, infer_label_type, inspect_column, non_numeric_cells
from softswitch.tables.settings import INCOMPLETE, Config, DataSection, TaskSection
from softswitch.tables.table import empty_marks, read_table, text_format
from softswitch.tables.text_file import TextFormat

MOSTLY_POSITIVE = 0.8  # share of positive rows from which a bound on misses is easy to keep
MAX_COLUMNS = 24  # number of columns from which plain features are summarised
REQUESTED = "as requested"


@dataclass(frozen=True, eq=False)
class Inspected:
    """A table with summaries of its columns, and what counts as empty: marks, and non-numeric cells among numbers."""

    file: Path
    form: TextFormat | None
    table: pd.DataFrame
    summaries: tuple[ColumnSummary, ...]
    marks: tuple[str, ...]
    non_numeric: dict[str, dict[str, float]]
    empty: tuple[str, ...]  # the non-numeric cells

    def header(self) -> str:
        """Return file, size and format."""
        form = "" if self.form is None else f" ({self.form})"
        return f"{self.file}: {len(self.table):,} rows, {len(self.table.columns)} columns{form}"

    def overview(self, roles: dict[str, str]) -> Table:
        """Return a table of the columns, with their roles if there are any."""
        grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for heading in ("column", "content", "empty", "values", *(["role"] if roles else [])):
            grid.add_column(heading, overflow="fold", justify="right" if heading in ("empty", "values") else "left")
        others: Counter[str] = Counter()
        for one in self.summaries:
            is_plain = one.name not in roles and not one.empty and not one.remark and not one.reason
            if is_plain and len(self.summaries) > MAX_COLUMNS:
                others[one.content] += 1
                continue
            empty = "" if not one.empty else "<1%" if one.empty < 0.01 else f"{one.empty:.0%}"
            role = [roles.get(one.name, "feature")] if roles else []
            grid.add_row(Text(one.name), one.content, empty, f"{one.values:,}", *role)
        for content, count in others.items():
            grid.add_row(f"… {count} more", content, "", "", *(["feature"] if roles else []))
        return grid


def inspect_table(file: str) -> Inspected:
    """Read a table and inspect its columns."""
    form = text_format(file)
    options = {} if form is None else asdict(form)
    table = read_table(file, **options)
    if len(table.columns) < 3:
        found = f"{len(table.columns)} columns: {', '.join(map(repr, table.columns[:3]))}"
        read = "" if form is None else f", {form},"
        raise ValueError(f"{file} must have a label, a client and features, but read as a table{read} has {found}")
    non_numeric = {str(name): cells for name in table.columns if (cells := non_numeric_cells(table[name]))}
    empty = tuple(dict.fromkeys(text for cells in non_numeric.values() for text in cells))
    if non_numeric:
        table = read_table(file, empty=empty, **options)
    summaries = tuple(inspect_column(table[name]) for name in table.columns)
    return Inspected(Path(file), form, table, summaries, empty_marks(file), non_numeric, empty)


@dataclass(frozen=True)
class Roles:
    """Roles of the columns, and the constraint."""

    label: str
    client: str
    label_type: str
    positive: proposal.PositiveClass | None
    ignore: dict[str, str]
    task: TaskSection

    def by_column(self) -> dict[str, str]:
        """Return the role of every column that is not a feature."""
        roles = {self.label: "label", self.client: "client"}
        if self.task.sensitive is not None and self.task.protected is not None:
            roles.setdefault(self.task.sensitive, "group")
        return roles | dict.fromkeys(self.ignore, "ignored")

    def describe(self, inspected: Inspected) -> list[str]:
        """Return the proposal, the ignored columns with reasons, and remarks on the table."""
        lines = [f"\nLabel: {self.label}. Client: {self.client}."]
        if (positive := self.positive) is not None:
            change = "" if positive.why == REQUESTED else f" To change it: --positive {str(positive.other)!r}"
            lines.append(f"Positive: {positive.value!r}, {positive.share:.1%} of the rows, {positive.why}.{change}")
            if positive.share > MOSTLY_POSITIVE and self.task.kind == "miss-rate":
                lines.append(
                    f"Most rows are positive, so always predicting {positive.value!r} misses none. Should "
                    f"{positive.other!r} be the positive value?"
                )
        lines.append(f"At every client: {self.task.kind} at most {self.task.bound:g}. To change it: --kind, --bound")
        if self.ignore:
            lines.append("\nIgnored columns (to keep one: --keep COLUMN):")
            lines += [f"- {name}: {reason}" for name, reason in self.ignore.items()]
        roles = (self.label, self.client, self.label_type, list(self.ignore))
        remarks = proposal.remarks(inspected.table, inspected.summaries, *roles)
        if inspected.marks:
            remarks.append(f"cells that count as empty: {', '.join(inspected.marks)}")
        for name, cells in inspected.non_numeric.items():
            texts = ", ".join(f"{text!r} ({share:.1%})" for text, share in cells.items())
            remarks.append(f"{name}: all but {texts} are numbers or dates, so this counts as empty in every column")
        return lines + (["\nRemarks:", *(f"- {remark}" for remark in remarks)] if remarks else [])

    def config(self, inspected: Inspected, out: Path) -> Config:
        """Return the settings; a relative path starts from the folder of the settings file."""
        file = inspected.file
        if not file.is_absolute() and out.resolve().parent != Path.cwd():
            file = Path(os.path.relpath(file.resolve(), out.resolve().parent))
        needed = [self.label, self.client, *((self.task.sensitive,) if self.task.sensitive else ())]
        options: dict[str, Any] = {} if inspected.form is None else asdict(inspected.form)
        options["incomplete"] = INCOMPLETE[int(inspected.table[needed].isna().any().any())]
        options |= {"ignore": tuple(self.ignore), "empty": inspected.empty}
        positive = None if self.positive is None else self.positive.value
        return Config(DataSection(file.as_posix(), self.label, self.client, positive, **options), self.task)


def annotate(text: str, roles: Roles) -> str:
    """Return the settings with the reasons for the ignored columns and the positive value as comments."""
    reasons = {"ignore = ": [f"{name}: {reason}" for name, reason in roles.ignore.items()]}
    if (positive := roles.positive) is not None:
        reasons["positive = "] = [f"{positive.value!r} is {positive.share:.1%} of the rows: {positive.why}."]
    lines = []
    for line in text.splitlines():
        comments = [one for start, comments in reasons.items() if line.startswith(start) for one in comments]
        lines += [*(f"# {' '.join(one.split())}" for one in comments), line]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Proposer:
    """Chooses the roles of the columns by flags, by answers if ``ask``, or by proposals."""

    inspected: Inspected
    flags: Any  # of the command line
    ask: bool

    def roles(self) -> Roles:
        """Return the roles, or raise one error with all problems."""
        flags, table, summaries = self.flags, self.inspected.table, self.inspected.summaries
        labels = proposal.label_candidates(summaries)
        likely = flags.label or (labels[0].name if labels else None)
        clients = proposal.client_candidates(summaries, len(table), likely)
        label, client, *_ = checks.call_all(
            lambda: self._choose(flags.label, labels, "label", "Column to predict"),
            lambda: self._choose(flags.client, clients, "client", "Column that identifies the client"),
            self._check_lists,
            lambda: flags.sensitive is None or self._check_column(flags.sensitive, "--sensitive"),
        )
        if label == client:
            raise ValueError(f"--label and --client must be two columns, but both are {label!r}")
        label_type = infer_label_type(table[label])
        positive, task = checks.call_all(
            lambda: self._positive(label, label_type), lambda: self._task(label, label_type)
        )
        ignore = dict.fromkeys(flags.ignore, REQUESTED)
        keep = (*flags.keep, *(() if task.sensitive is None else (task.sensitive,)))
        reasons = proposal.reasons_to_ignore(table, summaries, label, client, label_type, keep)
        for name, reason in reasons.items():
            if name not in ignore and (not self.ask or typer.confirm(f"Ignore {name}? It is {reason}", default=True)):
                ignore[name] = reason
        return Roles(label, client, label_type, positive, ignore, task)

    def _choose(self, name: str | None, candidates: Sequence[proposal.Candidate], flag: str, meaning: str) -> str:
        """Return a column by its flag, by an answer, or by the proposal if it is clear."""
        if name is not None:
            return self._check_column(name, f"--{flag}")
        clear = proposal.clear_choice(candidates)
        if self.ask:
            likely = clear or (candidates[0].name if candidates else None)
            return str(_ask(meaning, likely, lambda answer: self._check_column(answer, "the answer")))
        if clear is not None:
            return clear
        listed = [one for one in candidates if one.points >= 0] or candidates
        lines = [
            f"--{flag} is needed ({meaning.lower()}): " + ("candidates are" if listed else "there is no candidate")
        ]
        for one in listed[:6]:
            values = proposal.summarize_values(self.inspected.table[one.name])
            lines.append(f"  {one.name}: {values}; {one.why or 'no evidence'}")
        raise ValueError("\n".join(lines))

    def _check_column(self, name: str, flag: str) -> str:
        columns = [str(one) for one in self.inspected.table.columns]
        if name not in columns:
            near = checks.closest_match(name, columns)
            hint = f"did you mean {near!r}?" if near else f"there are {', '.join(map(repr, columns[:30]))}"
            raise ValueError(f"{flag} must name a column of the table, but is {name!r}; {hint}")
        if self.inspected.table[name].nunique() < 2:
            raise ValueError(f"{flag} must name a column of several values, but {name!r} has one")
        return name

    def _check_lists(self) -> None:
        flags = self.flags
        problems = [
            f"--{flag} must name a column of the table, but {name!r} is not one"
            for flag, names in (("ignore", flags.ignore), ("keep", flags.keep))
            for name in names
            if name not in self.inspected.table.columns
        ]
        problems += [f"{name!r} must not be both kept and ignored" for name in flags.ignore if name in flags.keep]
        if problems:
            raise ValueError("\n".join(problems))

    def _value(self, column: str, flag: str, text: str | None, question: str, default: str | None = None) -> Any:
        """Return a value of a column by a flag or an answer."""
        values = self.inspected.table[column]
        if text is not None:
            return proposal.parse_value(values, text, flag)
        return _ask(question, default, lambda answer: proposal.parse_value(values, answer, "the answer"))

    def _positive(self, label: str, label_type: str) -> proposal.PositiveClass | None:
        """Return the positive class of a label of two values."""
        text = self.flags.positive
        if label_type != BINARY:
            if text is not None:
                found = proposal.LABEL_DESCRIPTIONS[label_type]
                raise ValueError(f"--positive is for labels of two values, but {label!r} is {found}")
            return None
        likely = proposal.positive_class(self.inspected.table[label])
        if text is None and not self.ask:
            return likely
        question = f"Positive value of {label} ({likely.why})"
        value = self._value(label, "--positive", text, question, str(likely.value))
        if value != likely.value:
            likely = likely._replace(value=value, other=likely.value, share=1 - likely.share)
        return likely._replace(why=REQUESTED)

    def _task(self, label: str, label_type: str) -> TaskSection:
        """Return the constraint."""
        flags, labels = self.flags, self.inspected.table[label].dropna()
        kind, bound = flags.kind or proposal.DEFAULT_KIND[label_type], flags.bound
        suitable = proposal.suitable_kinds(labels, label_type)
        if self.ask and flags.kind is None:
            question = f"Constraint at every client ({', '.join(suitable)})"
            kind = _ask(question, kind, lambda answer: checks.check_choice("the answer", answer, suitable))
        if kind not in suitable:
            values = f"{labels.nunique():,} values, {proposal.summarize_values(labels)}"
            reason = f"{label!r} is {proposal.LABEL_DESCRIPTIONS[label_type]} ({values})"
            raise ValueError(f"--kind must be one of {', '.join(suitable)}, because {reason}, but is {kind!r}")
        if bound is None:
            bound = KINDS[kind].propose_bound(labels)
            bound = typer.prompt(f"Bound of {kind}", default=bound, type=float) if self.ask else bound
        sensitive, protected = flags.sensitive, flags.protected
        if KINDS[kind].uses_groups:
            if self.ask and sensitive is None:
                sensitive = _ask("Column with the group", None, lambda answer: self._check_column(answer, "the answer"))
            if sensitive is None or (protected is None and not self.ask):
                raise ValueError(f"--kind {kind} needs --sensitive and --protected: a column and its value")
            protected = self._value(sensitive, "--protected", protected, f"Protected value of {sensitive}")
        return TaskSection(kind=kind, bound=bound, sensitive=sensitive, protected=protected)


def _ask(question: str, default: Any, check: Callable[[Any], Any]) -> Any:
    """Return the checked answer; ask again if it is refused."""
    while True:
        answer = typer.prompt(question, default=default, type=None if default is None else type(default))
        try:
            return check(answer)
        except ValueError as error:
            typer.echo(str(error))
