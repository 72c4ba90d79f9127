"""The command line's start against that of a bare Typer app: python -m benchmarks.startup."""

from __future__ import annotations

import statistics
import subprocess
import sys
from functools import partial
from pathlib import Path

from benchmarks.timing import seconds_in_turns

BARE = '''
import typer

app = typer.Typer()


@app.command()
def greet(name: str) -> None:
    """Greet somebody."""
    typer.echo(f"Hello, {name}.")


app()
'''
COMMANDS = {
    "softswitch": [str(Path(sys.executable).with_name("softswitch")), "--help"],
    "bare": [sys.executable, "-c", BARE, "--help"],
}


def help_against_bare(repeats: int = 11) -> None:
    """Print how much longer softswitch --help takes than the help of a Typer app with one command."""
    candidates = {
        name: partial(subprocess.run, command, check=True, stdout=subprocess.DEVNULL)
        for name, command in COMMANDS.items()
    }
    turns = [seconds_in_turns(candidates, 1) for _ in range(repeats)]
    ratio = statistics.median(turn["softswitch"] / turn["bare"] for turn in turns)
    ours, bare = (statistics.median(turn[name] for turn in turns) * 1e3 for name in ("softswitch", "bare"))
    print(f"Start: softswitch --help {ours:.0f} ms; a bare Typer app's --help {bare:.0f} ms; {ratio:.2f}×")


if __name__ == "__main__":
    help_against_bare()
