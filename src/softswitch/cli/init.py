"""The command init: inspect a table, propose the roles of its columns, and write a settings file."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated

import typer
from rich.console import Console

from softswitch.support import checks
from softswitch.tables.constraints import KINDS

WIDTH = 80


def init(
    table: Annotated[str | None, typer.Argument(help="Table: CSV (also compressed), Parquet or Excel.")] = None,
    data: Annotated[str | None, typer.Option(help="Table, instead of the argument.")] = None,
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
    yes: Annotated[bool, typer.Option("--yes", help="Accept all proposals without questions.")] = False,
) -> None:
    """Inspect a table, and write a settings file for softswitch train, in which "auto" values need no tuning.

    On a terminal it asks, with proposals as defaults. Otherwise flags decide, and the rest is proposed. If the label or
    the client is not clear, it lists the candidates and exits.
    """
    from softswitch.cli.proposal import Proposer, annotate, inspect_table
    from softswitch.tables.settings import write_config

    if table is None and data is None:
        raise ValueError("a table is missing: softswitch init TABLE")
    if table is not None and data is not None and table != data:
        raise ValueError(f"give one table, but there are two: {table!r} and --data {data!r}")
    name = str(table if data is None else data)
    file = out or Path(Path(name).name.partition(".")[0] + ".toml")

    def check() -> None:
        if file.exists() and not force:
            raise ValueError(f"{file} already exists; use another --out, or --force")

    *_, inspected = checks.call_all(
        check, lambda: kind is None or checks.check_choice("--kind", kind, list(KINDS)), lambda: inspect_table(name)
    )
    console = Console(width=min(WIDTH, Console().width), highlight=False)
    console.print(inspected.header(), markup=False)
    flags = SimpleNamespace(label=label, client=client, positive=positive, kind=kind, bound=bound, sensitive=sensitive)
    flags.protected, flags.ignore, flags.keep = protected, ignore or (), keep or ()
    ask = on_terminal() and not yes
    if ask:
        console.print(inspected.overview({}))
    roles = Proposer(inspected, flags, ask).roles()
    if not ask:
        console.print(inspected.overview(roles.by_column()))
    for line in roles.describe(inspected):
        console.print(line, markup=False)
    file.write_text(annotate(write_config(roles.config(inspected, file)), roles), encoding="utf-8")
    console.print(f"\nWrote {file}. Next: softswitch train {file}", markup=False, soft_wrap=True)


def on_terminal() -> bool:
    """Return whether there is someone to ask."""
    return sys.stdin.isatty() and sys.stdout.isatty()
