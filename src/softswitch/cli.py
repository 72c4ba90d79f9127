"""The command line: parses, calls, prints."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from softswitch import demo as demonstration

app = typer.Typer(
    help="Train one model over many clients: the worst-off as well as possible, every constraint met.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"softswitch {version('softswitch')}")
        raise typer.Exit


@app.callback()
def main(
    show_version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Train one model over many clients: the worst-off as well as possible, every constraint met."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the figure and the report.")] = Path("demo"),
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds to average over.")] = 5,
    rounds: Annotated[int, typer.Option(min=10, help="Rounds of training.")] = 1000,
) -> None:
    """Show on breast cancer over 20 clients why the worst client needs a method of its own."""
    console = Console()
    found = demonstration.run_demo(seeds, rounds)
    console.print(demonstration.table(found))
    figure, report = demonstration.write(found, out)
    console.print(f"{found.seconds:.1f} s. Figure: {figure}  Report: {report}")
