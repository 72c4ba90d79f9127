"""Exit codes, questions and error handling that commands share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from enum import IntEnum
from functools import wraps
from typing import Any

import click
import typer

from softswitch.results.certificate import Outcome
from softswitch.support.console import show_control_characters


class ExitCode(IntEnum):
    """Exit codes of train, resume and frontier."""

    OK = 0  # certified and useful; or certification was not requested, and no client violates the constraint
    INFEASIBLE = 1  # without certification: a client violates the constraint on its training rows; or not finished
    BAD_INPUT = 2  # an argument, a setting or a file cannot be used
    NOT_CERTIFIED = 3  # not certified: too few rows; in frontier: no bound is certified
    CONSTANT = 4  # certified, but no better than a constant prediction
    PARTLY = 5  # certified at some clients only: the others have too few rows
    VIOLATES = 6  # not certified: some client likely violates the bound


OUTCOME_CODES = {  # by the outcome of certification in run.json; a stopped run has the code of its status
    Outcome.CERTIFIED: ExitCode.OK,
    Outcome.PARTLY: ExitCode.PARTLY,
    Outcome.CONSTANT: ExitCode.CONSTANT,
    Outcome.TOO_FEW_ROWS: ExitCode.NOT_CERTIFIED,
    Outcome.VIOLATES: ExitCode.VIOLATES,
    Outcome.INCOMPLETE: ExitCode.INFEASIBLE,
}


def refuse_bad_input(command: Callable[..., None]) -> Callable[..., None]:
    """Wrap a command so that errors of input, files and missing packages are printed in one line, with exit code 2."""

    @wraps(command)
    def run(*args: Any, **options: Any) -> None:
        try:
            command(*args, **options)
        except BrokenPipeError:
            raise
        except (ValueError, OSError, EOFError, ImportError) as error:
            typer.echo(f"{typer.style('Error:', fg='red', bold=True)} {show_control_characters(str(error))}", err=True)
            raise typer.Exit(ExitCode.BAD_INPUT) from error

    return run


def is_interactive() -> bool:
    """Return whether input and output are a terminal, so that questions can be answered."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def ask(question: str, default: str | None, parse: Callable[[str], Any]) -> Any:
    """Ask on the terminal until ``parse`` accepts the answer, and return its result. Enter accepts the default."""

    def check(answer: str) -> Any:
        try:
            return parse(answer)
        except ValueError as error:
            raise click.UsageError(str(error)) from error

    return typer.prompt(question, default=default, value_proc=check)
