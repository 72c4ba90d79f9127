"""The Typer app of the command line, with all commands."""

from __future__ import annotations

from typing import Annotated

import typer

# Commands import JAX, pandas and matplotlib when they run, because help and completion should be fast.
from softswitch.cli.init import init
from softswitch.cli.plan import plan
from softswitch.cli.runs import compare, report, runs
from softswitch.cli.terminal import refuse_bad_input
from softswitch.cli.train import frontier, predict, resume, train
from softswitch.support.startup import enable_compilation_cache
from softswitch_experiments.commands import bench, demo, paper, play

SUMMARY = "Train one model over many clients: minimise the loss of the worst client, and keep a bound at every client."
app = typer.Typer(help=SUMMARY, no_args_is_help=True, pretty_exceptions_show_locals=False)


def _print_version(is_requested: bool) -> None:
    if is_requested:
        from importlib.metadata import version

        typer.echo(f"softswitch {version('softswitch')}")
        raise typer.Exit


@app.callback(help=SUMMARY)
def main(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Enable the compilation cache before every command."""
    enable_compilation_cache()


for command in (plan, demo, init, train, resume, predict, frontier, runs, compare, report, play, paper, bench):
    app.command()(command if command in (demo, paper, bench) else refuse_bad_input(command))
