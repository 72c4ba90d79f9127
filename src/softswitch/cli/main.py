"""The command line's app: its version, and the commands put together."""

from __future__ import annotations

from typing import Annotated

import typer

# A command imports what it works with in its body, not above: to print a help text, and to complete a word, JAX,
# pandas and matplotlib are not needed, and they take seconds.
from softswitch.cli.bench import bench
from softswitch.cli.errors import ErrorFirst
from softswitch.cli.frontier import frontier
from softswitch.cli.init import init
from softswitch.cli.paper import demo, paper
from softswitch.cli.plan import plan
from softswitch.cli.play import play
from softswitch.cli.runs import compare, report, runs
from softswitch.cli.train import predict, resume, train
from softswitch.support.startup import enable_compilation_cache

app = typer.Typer(
    cls=ErrorFirst,
    help="Train one model over many clients: the worst-off as well as possible, every constraint met.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

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
    enable_compilation_cache()


for command in (
    plan,
    demo,
    init,
    train,
    resume,
    predict,
    frontier,
    runs,
    compare,
    report,
    play,
    paper,
    bench,
):  # as --help lists them
    app.command()(command)
