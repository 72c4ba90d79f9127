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
from rich.console import JustifyMethod
from rich.table import Table
from rich.text import Text

from softswitch.cli.terminal import ask, is_interactive
from softswitch.problem.choices import BINARY, MULTICLASS, NUMBER
from softswitch.support import checks
from softswitch.support.console import SafeConsole
from softswitch.tables.constraints import KINDS, kind_names
from softswitch.tables.settings import Config, DataSection, TaskSection, write_config

if TYPE_CHECKING:
    import pandas as pd

    from softswitch.tables.bounds import BoundEstimate
    from softswitch.tables.inspection import Candidate, ColumnSummary, PositiveClass
    from softswitch.tables.table import TextFormat

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
    console = SafeConsole(highlight=False)
    size = f"{len(found.table):,} rows, {len(found.table.columns)} columns"
    console.print(f"{table}: {size}{f' ({found.form})' if found.form else ''}", markup=False)
    labels = inspection.label_candidates(found.summaries)
    choose_label = partial(found.choose_column, labels, "label", "column to predict")
    if label is None and has_questions:
        label = choose_label(None, has_questions=True)
    likely = label or (labels[0].name if labels else None)
    clients = inspection.client_candidates(found.summaries, len(found.table), likely)
    choose_client = partial(found.choose_column, clients, "client", "column that identifies the client")
    if client is None and has_questions:
        client = choose_client(None, has_questions=True)
    lists = {"--ignore": ignore or [], "--keep": keep or [], "--category": category or []}
    flags = {"--sensitive": [sensitive] if sensitive else []} | lists
    target, owner, *_ = checks.call_all(
        lambda: choose_label(label),
        lambda: choose_client(client),
        *(partial(find_column, found.table, name, flag) for flag, names in flags.items() for name in names),
    )
    if target == owner:
        raise ValueError(f"--label and --client must be two columns, but both are {target!r}")
    if (values := found.table[target]).nunique() < 2:
        raise ValueError(f"--label must name a column of several values, but {target!r} has one")
    chosen, task = checks.call_all(
        lambda: _choose_positive(values, positive, has_questions=has_questions),
        lambda: _choose_task(found.table, values, kind, bound, sensitive, protected, has_questions=has_questions),
    )
    config, roles, lines = found.propose(target, owner, chosen, task, lists, file)
    console.print(found.overview(roles))
    for line in lines:
        console.print(line, markup=False)
    if bound is None:
        config = _choose_bound(found.table, config, console, has_questions=has_questions)
    console.print(f"\nAt every client: {config.task.kind} at most {config.task.bound:g}. To change it: --kind, --bound")
    file.write_text(write_config(config), encoding="utf-8")
    console.print(f"Wrote {file}. Next: softswitch train {file}", markup=False, soft_wrap=True)


@dataclass(frozen=True, eq=False)
class InspectedTable:
    """A table with summaries of its columns."""

    file: Path
    form: TextFormat | None  # format of a text file; None for other files
    table: pd.DataFrame
    summaries: tuple[ColumnSummary, ...]  # one per column, in their order
    empty: tuple[str, ...]  # texts in columns of numbers or dates, which count as empty cells

    def overview(self, roles: dict[str, str]) -> Table:
        """Return a rich table with the content and the role of each column."""
        grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        is_short = max(len(one.name) for one in self.summaries) <= MAX_NAME_WIDTH
        for heading in ("column", "content", "empty", "values", "role"):
            can_wrap = heading == "role" or (heading == "column" and not is_short)
            justify: JustifyMethod = "right" if heading in ("empty", "values") else "left"
            grid.add_column(heading, overflow="fold", justify=justify, no_wrap=not can_wrap)
        for one in self.summaries:
            empty = "" if not one.empty else "<1%" if one.empty < 0.01 else f"{one.empty:.0%}"
            grid.add_row(Text(one.name), one.content, empty, f"{one.values:,}", Text(roles[one.name]))
        return grid

    def choose_column(
        self, candidates: Sequence[Candidate], role: str, meaning: str, name: str | None, *, has_questions: bool = False
    ) -> str:
        """Return the named column of a role or, without a name, a clear choice; otherwise ask, or raise ValueError."""
        from softswitch.tables.inspection import clear_choice
        from softswitch.tables.table import find_column

        if name is not None:
            return str(find_column(self.table, name, f"--{role}").name)
        if (clear := clear_choice(candidates)) is not None:
            return clear
        likely = ([one for one in candidates if one.points >= 0] or candidates)[:6]
        lines = [f"  {one.name}: {one.why or 'no evidence'}" for one in likely]
        if not has_questions:
            problem = "candidates are" if lines else "there is no candidate"
            raise ValueError("\n".join([f"--{role} is needed ({meaning}): {problem}", *lines]))
        typer.echo("\n".join([f"The {role} ({meaning}) is not clear.{' Candidates:' * bool(lines)}", *lines]))
        default = candidates[0].name if candidates else None
        return str(ask(role.capitalize(), default, lambda name: find_column(self.table, name, role).name))

    def propose(
        self, label: str, client: str, positive: PositiveClass | None, task: TaskSection, flags: Any, out: Path
    ) -> tuple[Config, dict[str, str], list[str]]:
        """Return the proposed settings for ``out``, the role of each column, and lines on label, client and remarks.

        ``flags`` has the columns of --ignore, --keep and --category.
        """
        from softswitch.tables import inspection
        from softswitch.tables.bounds import certification_mask, complete_rows

        units = inspection.unit_columns(self.table, self.summaries, label, client)
        reasons = inspection.reasons_to_ignore(self.summaries, units, label, client)
        kept = {*flags["--ignore"], *flags["--keep"], task.sensitive}
        ignored = dict.fromkeys(flags["--ignore"], REQUESTED)
        ignored |= {name: reason for name, reason in reasons.items() if name not in kept}
        features = [one.name for one in self.summaries if one.name not in (label, client, *ignored)]
        categories = inspection.category_columns(self.table, self.summaries, reasons, [label, client, *ignored])
        categories += [name for name in flags["--category"] if name in features and name not in categories]
        file = self.file
        if not file.is_absolute() and out.resolve().parent != Path.cwd():
            file = Path(os.path.relpath(file.resolve(), out.resolve().parent))
        options: dict[str, Any] = {} if self.form is None else asdict(self.form)
        options |= {"ignore": tuple(ignored), "categories": tuple(categories), "empty": self.empty}
        value = None if positive is None else positive.value
        config = Config(DataSection(file.as_posix(), label, client, value, **options), task)
        rows = complete_rows(self.table, config)
        rows = rows[~certification_mask(rows, config)]
        flagged = inspection.leakage_remarks(rows, features, label, inspection.infer_label_type(self.table[label]))
        roles = {name: "group" if name == task.sensitive else "feature" for name in features}
        roles |= {name: f"{roles[name]}: {remark}" for name, remark in flagged.items()}
        roles |= {label: "label", client: "client"} | {name: f"ignored: {why}" for name, why in ignored.items()}
        lines = [f"\nLabel: {label}. Client: {client}."]
        if positive is not None:
            change = "" if positive.why == REQUESTED else f" To change it: --positive {str(positive.other)!r}"
            lines.append(f"Positive: {positive.value!r}, {positive.share:.1%} of the rows, {positive.why}.{change}")
        if set(ignored.values()) - {REQUESTED}:
            lines.append("To keep an ignored column: --keep COLUMN")
        notes = [
            f"{name} {remark}; is it known when a prediction is needed? To drop it: --ignore {name}"
            for name, remark in flagged.items()
        ]
        if constant := ", ".join(name for name in units if name in features):
            notes.append(
                f"the same at all rows of a client, which may identify it: {constant}. To drop: --ignore COLUMN"
            )
        notes += inspection.remarks(self.table, self.summaries, label, client, list(ignored))
        if self.empty:
            notes.append(f"cells among numbers or dates that count as empty: {', '.join(self.empty)}")
        lines += ["\nRemarks:", *(f"- {note}" for note in notes)] if notes else []
        return config, roles, lines


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


def _choose_positive(labels: pd.Series, text: str | None, *, has_questions: bool) -> PositiveClass | None:
    """Return the requested positive class, or the proposed one; ask if it is a guess. None without two values."""
    from softswitch.tables.inspection import infer_label_type, parse_value, positive_class

    if (label_type := infer_label_type(labels)) != BINARY:
        if text is not None:
            raise ValueError(f"--positive is for labels of two values, but {labels.name!r} is {label_type}")
        return None
    likely = positive_class(labels)
    if text is not None:
        value = parse_value(labels, text, "--positive")
    elif likely.is_guess and has_questions:
        question = f"Positive class, {str(likely.value)!r} ({likely.share:.1%} of the rows) or {str(likely.other)!r}"
        value = ask(question, str(likely.value), lambda text: parse_value(labels, text, "the positive class"))
    else:
        return likely
    if value != likely.value:
        likely = likely._replace(value=value, other=likely.value, share=1 - likely.share)
    return likely._replace(why=REQUESTED)


def _choose_task(
    table: pd.DataFrame,
    labels: pd.Series,
    kind: str | None,
    bound: float | None,
    sensitive: str | None,
    protected: str | None,
    *,
    has_questions: bool,
) -> TaskSection:
    """Return kind and bound of the constraint by flags, an answer or defaults, and the group."""
    import pandas as pd

    from softswitch.tables.inspection import infer_label_type, parse_value

    label_type = infer_label_type(labels)
    types = [label_type, *([MULTICLASS] if label_type == BINARY else [])]
    is_numeric = label_type == MULTICLASS and pd.api.types.is_numeric_dtype(labels)
    kinds = kind_names(*types, *([NUMBER] if is_numeric else []))  # integers of few values may be numbers
    if kind is None and has_questions:
        plain = [name for name in kinds if not KINDS[name].uses_groups]  # the others need flags
        parse = partial(checks.check_choice, "the kind", choices=plain)
        kind = ask(f"Kind of constraint ({', '.join(plain)})", DEFAULT_KIND[label_type], parse)
    kind = kind or DEFAULT_KIND[label_type]
    if kind not in kinds:
        reason = f"{labels.name!r} is {label_type} ({labels.nunique():,} values)"
        raise ValueError(f"--kind must be one of {', '.join(kinds)}, because {reason}, but is {kind!r}")
    proposed = KINDS[kind].default_bound
    bound = bound if bound is not None else proposed(labels.dropna()) if callable(proposed) else proposed
    value: Any = protected
    if KINDS[kind].uses_groups:
        if sensitive is None or protected is None:
            raise ValueError(f"--kind {kind} needs --sensitive and --protected: a column and its value")
        value = parse_value(table[sensitive], protected, "--protected")
    return TaskSection(kind=kind, bound=bound, sensitive=sensitive, protected=value)


def _choose_bound(table: pd.DataFrame, config: Config, console: SafeConsole, *, has_questions: bool) -> Config:
    """Return the settings with a bound, proposed if its cost can be estimated; on a terminal the user confirms it."""
    task = config.task
    if task.kind in COSTS:
        from softswitch.tables.bounds import estimate_bounds, propose_bound

        try:
            estimates = estimate_bounds(table, config)
        except ValueError as error:
            console.print(f"\nNo estimates of bounds: {error}", markup=False)
        else:
            proposal = propose_bound(estimates)
            task = task if proposal is None else replace(task, bound=proposal.bound)
            console.print(f"\nBounds on the {KINDS[task.kind].description.constraint}, estimated with a quick model:")
            console.print(bounds_table(estimates, COSTS[task.kind]))
            console.print(describe_proposal(proposal, COSTS[task.kind]), markup=False)
    if has_questions:
        parse = partial(_parse_bound, is_share=KINDS[task.kind].description.is_share)
        task = replace(task, bound=ask("Bound", f"{task.bound:g}", parse))
    return replace(config, task=task)


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


def describe_proposal(proposal: BoundEstimate | None, cost: str) -> str:
    """Return the reason for a proposed bound, or that no bound is certifiable and useful."""
    from softswitch.support.text import join_first  # NumPy would slow down the command line
    from softswitch.tables.bounds import BOUNDS, USEFUL_COST

    if proposal is None:
        return f"No bound up to {BOUNDS[-1]:.0%} can be certified at any client: too few certification rows."
    few = [name for name in proposal.names if name not in proposal.certifiable]
    scope = f"{len(proposal.certifiable)} of {len(proposal.names)} clients" if few else "all clients"
    if proposal.is_useful:
        too_few = f" Too few certification rows: {join_first(few)}." if few else ""
        return f"Proposed bound: {proposal.bound:.0%}, the smallest useful one that {scope} can certify.{too_few}"
    reason = f"No bound is both certifiable and useful: the estimated {cost} at the worst client are "
    reason += f"{USEFUL_COST:.0%} or more."
    if math.isnan(proposal.cost):
        reason = f"The {cost} cannot be estimated: too few rows."
    return f"{reason} The least costly bound that {scope} can certify: {proposal.bound:.0%}."


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
