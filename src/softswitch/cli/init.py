"""The command init: looks at a table, proposes what to make of it, and writes a file of settings."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.console import Console

from softswitch.cli.errors import or_refuse
from softswitch.cli.init_output import LookedAt, Roles, header, overview, used_as, with_reasons, words
from softswitch.problem.choices import BINARY
from softswitch.support import checks
from softswitch.support.checks import call_all, closest_match
from softswitch.tables.constraints import KINDS
from softswitch.tables.settings import INCOMPLETE, Config, DataSection, TaskSection, write_config

if TYPE_CHECKING:
    from softswitch.tables.proposal import Candidate, PositiveClass

Found = TypeVar("Found")

WIDEST = 80


@dataclass(frozen=True)
class Wishes:
    """What the command line says; None where it says nothing."""

    label: str | None
    client: str | None
    positive: str | None
    kind: str | None
    bound: float | None
    sensitive: str | None
    protected: str | None
    ignore: tuple[str, ...]
    keep: tuple[str, ...]


def init(
    table: Annotated[str | None, typer.Argument(help="Your table: CSV (also packed), Parquet or Excel.")] = None,
    data: Annotated[str | None, typer.Option(help="The table, where it is not named as an argument.")] = None,
    label: Annotated[str | None, typer.Option(help="The column to predict; by default proposed.")] = None,
    client: Annotated[
        str | None, typer.Option(help="The column that says whose row it is; by default proposed.")
    ] = None,
    positive: Annotated[
        str | None, typer.Option(help="The label's value that counts as positive; by default proposed.")
    ] = None,
    ignore: Annotated[list[str] | None, typer.Option(help="A column to leave out; may be given several times.")] = None,
    keep: Annotated[
        list[str] | None, typer.Option(help="A column to keep though it is proposed to leave it out; several times.")
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(help=f"What must hold at every client: {', '.join(KINDS)}. By default by the label."),
    ] = None,
    bound: Annotated[
        float | None,
        typer.Option(help="Its bound: a rate (0.05 is 5%), a loss, or an error in the label's unit."),
    ] = None,
    sensitive: Annotated[str | None, typer.Option(help="The column with the group, where there are groups.")] = None,
    protected: Annotated[str | None, typer.Option(help="The protected group's value.")] = None,
    out: Annotated[Path | None, typer.Option(help="The file to write; by default named as the table is.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="On a terminal: take what is proposed, ask nothing.")] = False,
) -> None:
    """Look at a table, and write a file of settings for softswitch train. What is "auto" there chooses itself.

    On a terminal it asks, with what it proposes as the answer; else flags decide, and what they leave open is proposed.
    It never guesses silently: where the label or the client is in doubt, it says which columns may be meant.
    """
    console = Console(width=min(WIDEST, Console().width), highlight=False)
    wishes = Wishes(
        *(label, client, positive, kind, bound, sensitive, protected), tuple(ignore or ()), tuple(keep or ())
    )
    ask = on_terminal() and not yes

    def work() -> tuple[LookedAt, Roles, Path]:
        named = _named_once(table, data)
        file = out or Path(Path(named).name.partition(".")[0] + ".toml")
        _, looked = call_all(lambda: _check_wishes(wishes, file, force), lambda: _look(named))
        console.print(header(looked))
        if ask:
            console.print(overview(looked, {}))
        return looked, _roles(looked, wishes, ask), file

    looked, roles, file = or_refuse(work)
    if not ask:
        console.print(overview(looked, used_as(roles)))
    for part in words(looked, roles):
        console.print(part, markup=False)
    config = _config(looked, roles, file)
    or_refuse(lambda: file.write_text(with_reasons(write_config(config), roles), encoding="utf-8"))
    console.print(f"\nWrote {file}. Next: softswitch train {file}", markup=False, soft_wrap=True)


def on_terminal() -> bool:
    """Whether there is someone to ask."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def _asked(question: str, default: Any, check: Callable[[Any], Found]) -> Found:
    """What the answer stands for; asked again while it is refused."""
    while True:
        told = typer.prompt(question, default=default, type=None if default is None else type(default))
        try:
            return check(told)
        except ValueError as error:
            typer.echo(str(error))


def _named_once(table: str | None, data: str | None) -> str:
    if table is None and data is None:
        raise ValueError("name your table: softswitch init TABLE")
    if table is not None and data is not None and table != data:
        raise ValueError(f"name one table, but there are two: {table!r} and --data {data!r}")
    return str(table if data is None else data)


def _check_wishes(wishes: Wishes, out: Path, force: bool) -> None:
    said = []
    if out.exists() and not force:
        said.append(f"{out} is there already; give another --out, or --force")
    if wishes.kind is not None and wishes.kind not in KINDS:
        said.append(f"--kind must be one of {', '.join(KINDS)}, but is {wishes.kind!r}")
    if said:
        raise ValueError("\n".join(said))


def _look(file: str) -> LookedAt:
    from softswitch.tables.inspection import inspect_column, non_numeric_cells
    from softswitch.tables.table import empty_marks, read_table, text_format

    form = text_format(file)
    told = {} if form is None else asdict(form)
    table = read_table(file, **told)
    if len(table.columns) < 3:
        found = "" if form is None else f" {form}"
        raise ValueError(
            f"{file} must have a label, a client and something to learn from, but read{found} it has "
            f"{len(table.columns)} columns: {', '.join(map(repr, table.columns[:3]))}"
        )
    odd = {str(name): cells for name in table.columns if (cells := non_numeric_cells(table[name]))}
    if odd:
        table = read_table(file, empty=_marks(odd), **told)
    survey = tuple(inspect_column(table[name]) for name in table.columns)
    return LookedAt(Path(file), form, table, survey, odd, empty_marks(file))


def _marks(odd: dict[str, dict[str, float]]) -> tuple[str, ...]:
    """Words that count as empty, each once."""
    return tuple(dict.fromkeys(word for cells in odd.values() for word in cells))


def _roles(looked: LookedAt, wishes: Wishes, ask: bool) -> Roles:
    """What the columns are for: as the flags say, as answered, or as proposed; all complaints at once."""
    from softswitch.tables.inspection import infer_label_type
    from softswitch.tables.proposal import client_candidates, label_candidates, reasons_to_ignore

    labels = label_candidates(looked.survey)
    likely = wishes.label or (labels[0].name if labels else None)
    clients = client_candidates(looked.survey, len(looked.table), likely)
    label, client, *_ = call_all(
        lambda: _which(looked, wishes.label, labels, "label", "The column to predict", ask),
        lambda: _which(looked, wishes.client, clients, "client", "The column that says whose row it is", ask),
        lambda: _check_named(looked, wishes),
        lambda: _check_group(looked, wishes),
    )
    if label == client:
        raise ValueError(f"--label and --client must be two columns, but both are {label!r}")
    what = infer_label_type(looked.table[label])
    positive, task = call_all(
        lambda: _positive(looked, label, what, wishes.positive, ask), lambda: _task(looked, label, wishes, what, ask)
    )
    ignore = dict.fromkeys(wishes.ignore, "as you said")
    group = (task.sensitive,) if task.sensitive is not None else ()
    proposed = reasons_to_ignore(looked.table, looked.survey, label, client, what, (*wishes.keep, *group))
    for name, reason in proposed.items():
        if name not in ignore and (not ask or typer.confirm(f"Leave out {name}? It is {reason}", default=True)):
            ignore[name] = reason
    return Roles(label, client, what, positive, ignore, task)


def _which(
    looked: LookedAt, named: str | None, candidates: Sequence[Candidate], flag: str, meaning: str, ask: bool
) -> str:
    """A column by its flag, by its answer, or by the proposal where that is beyond doubt."""
    from softswitch.tables.proposal import clear_choice, summarize_values

    if named is not None:
        return _column(looked, named, f"--{flag}")
    sure = clear_choice(candidates)
    if ask:
        likely = sure or (candidates[0].name if candidates else None)
        return _asked(meaning, likely, lambda told: _column(looked, told, "the answer"))
    if sure is not None:
        return sure
    if not candidates:
        raise ValueError(f"{meaning}: no column can be it; name one all the same with --{flag}")
    said = [f"{meaning} is in doubt: name it with --{flag}. It may be"]
    said += [
        f"  {one.name}: {summarize_values(looked.table[one.name])}; {one.why or 'nothing speaks for it'}"
        for one in ([one for one in candidates if one.points >= 0] or candidates)[:6]
    ]
    raise ValueError("\n".join(said))


def _column(looked: LookedAt, name: str, flag: str) -> str:
    columns = [str(one) for one in looked.table.columns]
    if name not in columns:
        near = closest_match(name, columns)
        hint = f"did you mean {near!r}?" if near else f"there are {', '.join(map(repr, columns[:30]))}"
        raise ValueError(f"{flag} must name a column of the table, but is {name!r}; {hint}")
    if looked.table[name].nunique() < 2:
        raise ValueError(f"{flag} must name a column of several values, but {name!r} has one")
    return name


def _check_named(looked: LookedAt, wishes: Wishes) -> None:
    said = [
        f"--{flag} must name a column of the table, but {name!r} is none"
        for flag, names in (("ignore", wishes.ignore), ("keep", wishes.keep))
        for name in names
        if name not in looked.table.columns
    ]
    said += [f"{name!r} is to be both kept and ignored" for name in wishes.ignore if name in wishes.keep]
    if said:
        raise ValueError("\n".join(said))


def _check_group(looked: LookedAt, wishes: Wishes) -> None:
    if wishes.sensitive is not None:
        _column(looked, wishes.sensitive, "--sensitive")


def _positive(looked: LookedAt, label: str, what: str, wished: str | None, ask: bool) -> PositiveClass | None:
    """The class that counts, of a label of two; None of any other."""
    from softswitch.tables.proposal import LABEL_DESCRIPTIONS, parse_value, positive_class

    if what != BINARY:
        if wished is not None:
            raise ValueError(f"--positive is for labels of two values, but {label!r} is {LABEL_DESCRIPTIONS[what]}")
        return None
    values = looked.table[label]
    found = positive_class(values)
    if wished is None and not ask:
        return found
    if wished is None:
        question = f"Which value of {label} counts as positive ({found.why})"
        chosen = _asked(question, str(found.value), lambda told: parse_value(values, told, "the answer"))
    else:
        chosen = parse_value(values, wished, "--positive")
    if chosen == found.value:
        return found._replace(why="as you said")
    return found._replace(value=chosen, other=found.value, share=1 - found.share, why="as you said")


def _task(looked: LookedAt, label: str, wishes: Wishes, what: str, ask: bool) -> TaskSection:
    from softswitch.tables.proposal import (
        DEFAULT_KIND,
        LABEL_DESCRIPTIONS,
        parse_value,
        suitable_kinds,
        summarize_values,
    )

    kind = wishes.kind or DEFAULT_KIND[what]
    labels = looked.table[label].dropna()
    suitable = suitable_kinds(labels, what)
    if ask and wishes.kind is None:
        question = f"What must hold at every client ({', '.join(suitable)})"
        kind = _asked(question, kind, lambda told: checks.check_choice("the answer", told, suitable))
    if kind not in suitable:
        raise ValueError(
            f"--kind must be one of {', '.join(suitable)}, since {label!r} is {LABEL_DESCRIPTIONS[what]} "
            f"({labels.nunique():,} values, {summarize_values(labels)}), but is {kind!r}"
        )
    bound = KINDS[kind].propose_bound(labels) if wishes.bound is None else wishes.bound
    if ask and wishes.bound is None:
        bound = typer.prompt(f"The bound of {kind}: at most", default=bound, type=float)
    sensitive, protected = wishes.sensitive, None
    if KINDS[kind].uses_groups:
        if ask and sensitive is None:
            sensitive = _asked("The column with the group", None, lambda told: _column(looked, told, "the answer"))
        if sensitive is None or (wishes.protected is None and not ask):
            raise ValueError(f"--kind {kind} needs --sensitive and --protected: a column and its value")
        values = looked.table[sensitive]
        if wishes.protected is None:
            question = f"The protected value of {sensitive}"
            protected = _asked(question, None, lambda told: parse_value(values, told, "the answer"))
        else:
            protected = parse_value(values, wishes.protected, "--protected")
    elif wishes.protected is not None:
        protected = wishes.protected
    return TaskSection(kind=kind, bound=bound, sensitive=sensitive, protected=protected)


def _config(looked: LookedAt, roles: Roles, out: Path) -> Config:
    """The settings; a relative path is one from the folder of the settings."""
    file = looked.file
    if not file.is_absolute() and out.resolve().parent != Path.cwd():
        file = Path(os.path.relpath(file.resolve(), out.resolve().parent))
    needed = [roles.label, roles.client, *((roles.task.sensitive,) if roles.task.sensitive else ())]
    gaps = bool(looked.table[needed].isna().any().any())
    form: dict[str, Any] = {} if looked.form is None else asdict(looked.form)
    data = DataSection(
        file.as_posix(),
        roles.label,
        roles.client,
        None if roles.positive is None else roles.positive.value,
        ignore=tuple(roles.ignore),
        empty=_marks(looked.odd),
        incomplete=INCOMPLETE[1] if gaps else INCOMPLETE[0],
        **form,
    )
    return Config(data, roles.task)
