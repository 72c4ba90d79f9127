"""The command init, which inspects a table, proposes the roles of its columns, and writes a settings file."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from softswitch.cli.terminal import ask, is_interactive
from softswitch.problem.choices import BINARY, MULTICLASS, NUMBER
from softswitch.support import checks
from softswitch.tables.constraints import KINDS, kind_names
from softswitch.tables.settings import Config, DataSection, TaskSection, write_config

if TYPE_CHECKING:
    import pandas as pd

    from softswitch.tables.bounds import BoundEstimate
    from softswitch.tables.inspection import Candidate, ColumnSummary, PositiveClass
    from softswitch.tables.text_file import TextFormat

REQUESTED = "as requested"  # reason of a choice that a flag or an answer made
DEFAULT_KIND = {BINARY: "miss-rate", MULTICLASS: "class-miss-rate", NUMBER: "coverage"}  # by label type
MAX_NAME_WIDTH = 30  # longest name of a column that is not wrapped in the overview
COSTS = {"miss-rate": "false alarms", "false-alarm-rate": "misses"}  # the other error, by kind with estimates of bounds


def init(
    table: Annotated[str, typer.Argument(help="Table: CSV (also .gz, .xz or .bz2), Parquet or Excel.")],
    label: Annotated[str | None, typer.Option(help="Column to predict. Default: proposed.")] = None,
    client: Annotated[str | None, typer.Option(help="Column that identifies the client. Default: proposed.")] = None,
    positive: Annotated[str | None, typer.Option(help="Positive value of the label. Default: proposed.")] = None,
    ignore: Annotated[list[str] | None, typer.Option(help="Column to ignore; repeatable.")] = None,
    keep: Annotated[list[str] | None, typer.Option(help="Column to keep that would be ignored; repeatable.")] = None,
    category: Annotated[list[str] | None, typer.Option(help="Numbers to read as categories; repeatable.")] = None,
    kind: Annotated[str | None, typer.Option(help=f"Constraint: {', '.join(KINDS)}. Default: by the label.")] = None,
    bound: Annotated[float | None, typer.Option(help="Bound: a rate (0.05: 5%), a loss, or an error.")] = None,
    sensitive: Annotated[str | None, typer.Option(help="Column with the group, for kinds that compare groups.")] = None,
    protected: Annotated[str | None, typer.Option(help="Value of the protected group.")] = None,
    out: Annotated[Path | None, typer.Option(help="Settings file to write. Default: named like the table.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Accept all proposals without questions.")] = False,
) -> None:
    """Inspect a table, and write a settings file for softswitch train. Values set to "auto" need no tuning.

    Roles and a bound without a flag are proposed. On a terminal, init asks for what is not clear. Otherwise, an unclear
    label or client is an error that lists the candidates.
    """
    from softswitch.tables import inspection
    from softswitch.tables.table import find_column

    file, has_questions = out or Path(Path(table).name.partition(".")[0] + ".toml"), is_interactive() and not yes

    def check_out() -> None:
        if file.exists() and not force:
            raise ValueError(f"{file} already exists; use another --out, or --force")

    _, found = checks.call_all(check_out, lambda: inspect_table(table))
    console = Console(highlight=False)
    size = f"{len(found.table):,} rows, {len(found.table.columns)} columns"
    console.print(f"{table}: {size}{f' ({found.form})' if found.form else ''}", markup=False)
    labels = inspection.label_candidates(found.summaries)
    if label is None and has_questions:
        label = found.ask_column(labels, "label", "column to predict")
    likely = label or (labels[0].name if labels else None)
    clients = inspection.client_candidates(found.summaries, len(found.table), likely)
    if client is None and has_questions:
        client = found.ask_column(clients, "client", "column that identifies the client")
    lists = {"--ignore": ignore or [], "--keep": keep or [], "--category": category or []}
    flags = {"--sensitive": [sensitive] if sensitive else []} | lists
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
    if has_questions:
        positive = positive or _ask_positive(found.table[target], label_type)
        kind = kind or _ask_kind(found.table[target], label_type)
    positive_value, task = checks.call_all(
        lambda: _positive(found.table[target], label_type, positive),
        lambda: _task(found.table, target, label_type, kind, bound, sensitive, protected),
    )
    roles = found.propose_roles(target, owner, positive_value, task, lists, label_type)
    console.print(found.overview(roles))
    for line in roles.describe(found):
        console.print(line, markup=False)
    if bound is None:
        roles = _choose_bound(found, roles, console, has_questions=has_questions)
    console.print(f"\nAt every client: {roles.task.kind} at most {roles.task.bound:g}. To change it: --kind, --bound")
    file.write_text(write_config(roles.settings(found, file)), encoding="utf-8")
    console.print(f"Wrote {file}. Next: softswitch train {file}", markup=False, soft_wrap=True)


@dataclass(frozen=True)
class Roles:
    """The proposed roles of the columns, and the constraint."""

    label: str  # name of the column to predict
    client: str  # name of the column that identifies the client
    positive: PositiveClass | None  # None if the label does not have two values
    ignored: dict[str, str]  # reason by name of the ignored column
    categories: tuple[str, ...]  # columns of numbers that are read as categories
    constant: tuple[str, ...]  # features that are constant within clients
    flagged: dict[str, str]  # remark by name of a column that predicts the label almost alone
    task: TaskSection

    def of_column(self, name: str) -> str:
        """Return the role of a column, with the reason if it is ignored or flagged."""
        roles = {self.label: "label", self.client: "client"}
        roles |= {name: f"ignored: {reason}" for name, reason in self.ignored.items()}
        role = roles.get(name, "group" if name == self.task.sensitive else "feature")
        return f"{role}: {self.flagged[name]}" if name in self.flagged else role

    def describe(self, found: InspectedTable) -> list[str]:
        """Return lines of text: the proposal, and remarks on the columns and the table."""
        from softswitch.tables.inspection import remarks

        lines = [f"\nLabel: {self.label}. Client: {self.client}."]
        if (positive := self.positive) is not None:
            change = "" if positive.why == REQUESTED else f" To change it: --positive {str(positive.other)!r}"
            lines.append(f"Positive: {positive.value!r}, {positive.share:.1%} of the rows, {positive.why}.{change}")
        if set(self.ignored.values()) - {REQUESTED}:
            lines.append("To keep an ignored column: --keep COLUMN")
        notes = [
            f"{name} {remark}; is it known when a prediction is needed? To drop it: --ignore {name}"
            for name, remark in self.flagged.items()
        ]
        if self.constant:
            names = ", ".join(self.constant)
            notes.append(f"the same at all rows of a client, which may identify it: {names}. To drop: --ignore COLUMN")
        notes += remarks(found.table, found.summaries, self.label, self.client, list(self.ignored))
        if found.empty:
            notes.append(f"cells among numbers or dates that count as empty: {', '.join(found.empty)}")
        return lines + (["\nRemarks:", *(f"- {note}" for note in notes)] if notes else [])

    def settings(self, found: InspectedTable, out: Path) -> Config:
        """Return the settings for the file ``out``, with the path of the table relative to its folder."""
        file = found.file
        if not file.is_absolute() and out.resolve().parent != Path.cwd():
            file = Path(os.path.relpath(file.resolve(), out.resolve().parent))
        options: dict[str, Any] = {} if found.form is None else asdict(found.form)
        options |= {"ignore": tuple(self.ignored), "categories": self.categories, "empty": found.empty}
        value = None if self.positive is None else self.positive.value
        return Config(DataSection(file.as_posix(), self.label, self.client, value, **options), self.task)


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
        is_short = max(len(one.name) for one in self.summaries) <= MAX_NAME_WIDTH
        for heading in ("column", "content", "empty", "values", "role"):
            can_wrap = heading == "role" or (heading == "column" and not is_short)
            justify: JustifyMethod = "right" if heading in ("empty", "values") else "left"
            grid.add_column(heading, overflow="fold", justify=justify, no_wrap=not can_wrap)
        for one in self.summaries:
            empty = "" if not one.empty else "<1%" if one.empty < 0.01 else f"{one.empty:.0%}"
            grid.add_row(Text(one.name), one.content, empty, f"{one.values:,}", Text(roles.of_column(one.name)))
        return grid

    def propose_roles(
        self,
        label: str,
        client: str,
        positive: PositiveClass | None,
        task: TaskSection,
        flags: dict[str, list[str]],
        label_type: str,
    ) -> Roles:
        """Return the roles of all columns; ``flags`` are the columns of --ignore, --keep and --category."""
        from softswitch.tables.bounds import certification_mask, complete_rows
        from softswitch.tables.inspection import category_columns, leakage_remarks, reasons_to_ignore, unit_columns

        units = unit_columns(self.table, self.summaries, label, client)
        reasons = reasons_to_ignore(self.summaries, units, label, client)
        kept = {*flags["--ignore"], *flags["--keep"], task.sensitive}
        ignored = dict.fromkeys(flags["--ignore"], REQUESTED)
        ignored |= {name: reason for name, reason in reasons.items() if name not in kept}
        features = [one.name for one in self.summaries if one.name not in (label, client, *ignored)]
        categories = category_columns(self.table, self.summaries, reasons, [label, client, *ignored])
        categories += [name for name in flags["--category"] if name in features and name not in categories]
        constant = tuple(one.name for one in units if one.name in features)
        roles = Roles(label, client, positive, ignored, tuple(categories), constant, {}, task)
        config = roles.settings(self, self.file)
        rows = complete_rows(self.table, config)
        rows = rows[~certification_mask(rows, config)]
        return replace(roles, flagged=leakage_remarks(rows, features, label, label_type))

    def ask_column(self, candidates: Sequence[Candidate], role: str, meaning: str) -> str:
        """Return a clear choice of a column; if there is none, ask for it with the candidates."""
        from softswitch.tables.inspection import clear_choice
        from softswitch.tables.table import find_column

        if (clear := clear_choice(candidates)) is not None:
            return clear
        lines = _describe_candidates(candidates)
        typer.echo("\n".join([f"The {role} ({meaning}) is not clear.{' Candidates:' * bool(lines)}", *lines]))
        default = candidates[0].name if candidates else None
        return str(ask(role.capitalize(), default, lambda name: find_column(self.table, name, role).name))

    def choose_column(self, name: str | None, candidates: Sequence[Candidate], flag: str, meaning: str) -> str:
        """Return the column of a flag or, without one, a clear choice; otherwise raise ValueError with candidates."""
        from softswitch.tables.inspection import clear_choice
        from softswitch.tables.table import find_column

        if name is not None:
            return str(find_column(self.table, name, flag).name)
        if (clear := clear_choice(candidates)) is not None:
            return clear
        lines = _describe_candidates(candidates)
        problem = "candidates are" if lines else "there is no candidate"
        raise ValueError("\n".join([f"{flag} is needed ({meaning}): {problem}", *lines]))


def _describe_candidates(candidates: Sequence[Candidate]) -> list[str]:
    """Return a line for each of the most likely candidates."""
    listed = ([one for one in candidates if one.points >= 0] or candidates)[:6]
    return [f"  {one.name}: {one.why or 'no evidence'}" for one in listed]


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


def _ask_positive(labels: pd.Series, label_type: str) -> str | None:
    """Ask for the positive class if it would be a guess; return None if it is clear or the label has not two values."""
    from softswitch.tables.inspection import parse_value, positive_class

    if label_type != BINARY:
        return None
    likely = positive_class(labels)
    if not likely.is_guess:
        return None
    question = f"Positive class, {str(likely.value)!r} ({likely.share:.1%} of the rows) or {str(likely.other)!r}"
    return str(ask(question, str(likely.value), lambda text: parse_value(labels, text, "the positive class")))


def _ask_kind(labels: pd.Series, label_type: str) -> str:
    """Ask for the kind of constraint; kinds that compare groups need flags."""
    kinds = [name for name in _suitable_kinds(labels, label_type) if not KINDS[name].uses_groups]
    parse = partial(checks.check_choice, "the kind", choices=kinds)
    return str(ask(f"Kind of constraint ({', '.join(kinds)})", DEFAULT_KIND[label_type], parse))


def _suitable_kinds(labels: pd.Series, label_type: str) -> tuple[str, ...]:
    """Return the kinds of constraint for a label; integers of few values may also be predicted as numbers."""
    import pandas as pd

    types = [label_type, *([MULTICLASS] if label_type == BINARY else [])]
    is_numeric = label_type == MULTICLASS and pd.api.types.is_numeric_dtype(labels)
    return kind_names(*types, *([NUMBER] if is_numeric else []))


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
    from softswitch.tables.inspection import parse_value

    labels, kind = table[label].dropna(), kind or DEFAULT_KIND[label_type]
    if kind not in (suitable := _suitable_kinds(labels, label_type)):
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


def _choose_bound(found: InspectedTable, roles: Roles, console: Console, *, has_questions: bool) -> Roles:
    """Return the roles with a bound: proposed from estimates if the kind has some, and asked for if wanted."""
    task = roles.task
    if task.kind in COSTS:
        from softswitch.tables.bounds import estimate_bounds, fallback_bound, propose_bound

        try:
            estimates = estimate_bounds(found.table, roles.settings(found, found.file))
        except ValueError as error:
            console.print(f"\nNo estimates of bounds: {error}", markup=False)
        else:
            proposal = propose_bound(estimates)
            bound = proposal.bound if proposal else fallback_bound(estimates, task.bound)
            task = replace(task, bound=bound)
            console.print(f"\nBounds on the {KINDS[task.kind].description.constraint}, estimated with a quick model:")
            console.print(bounds_table(estimates, COSTS[task.kind]))
            console.print(describe_proposal(estimates, proposal, bound, COSTS[task.kind]), markup=False)
    if has_questions:
        parse = partial(_parse_bound, is_share=KINDS[task.kind].description.is_share)
        task = replace(task, bound=ask("Bound", f"{task.bound:g}", parse))
    return replace(roles, task=task)


def bounds_table(estimates: Sequence[BoundEstimate], cost: str) -> Table:
    """Return a rich table of the estimates; ``cost`` is the name of the other error."""
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in ("bound", "certifiable at", f"{cost}, worst client", "mean client"):
        grid.add_column(heading, justify="right")
    for one in estimates:
        clients = f"{len(one.certifiable)} of {len(one.names)} clients"
        costs = ["unknown" if math.isnan(value) else f"{value:.0%}" for value in (one.cost, one.mean_cost)]
        grid.add_row(f"{one.bound:.0%}", clients, *costs)
    return grid


def describe_proposal(
    estimates: Sequence[BoundEstimate], proposal: BoundEstimate | None, bound: float, cost: str
) -> str:
    """Return the reason for a bound: the proposal, or that none is certifiable and useful."""
    from softswitch.support.text import join_first  # NumPy would slow down the command line

    chosen = next((one for one in estimates if one.bound == bound), None)
    if chosen is None or not chosen.certifiable:
        return f"No bound up to {estimates[-1].bound:.0%} can be certified at any client: too few certification rows."
    count = len(chosen.certifiable)
    scope = "all clients" if count == len(chosen.names) else f"{count} of {len(chosen.names)} clients"
    if proposal is not None:
        few = [name for name in chosen.names if name not in chosen.certifiable]
        too_few = f" Too few certification rows: {join_first(few)}." if few else ""
        return f"Proposed bound: {bound:.0%}, the smallest useful one that {scope} can certify.{too_few}"
    if math.isnan(chosen.cost):
        return (
            f"The {cost} cannot be estimated: too few rows. The smallest bound that {scope} can certify: {bound:.0%}."
        )
    return (
        f"No bound is both certifiable and useful: the estimated {cost} at the worst client are 90% or more. The "
        f"smallest bound that {scope} can certify: {bound:.0%}."
    )


def _parse_bound(text: str, *, is_share: bool) -> float:
    """Return a bound from an answer such as "0.05" or, for a share, "5%"."""
    number = text.strip()
    scale = 0.01 if is_share and number.endswith("%") else 1.0
    try:
        value = float(number.removesuffix("%") if scale < 1 else number)
    except ValueError:
        value = math.nan
    limits: dict[str, float] = {"below": 1} if is_share else {}
    return checks.check_real("the bound", scale * value, above=0, **limits)
