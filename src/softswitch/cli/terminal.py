"""Output and error handling that all commands share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import click
import typer
from rich.console import Console

NOT_CERTIFIED_CODE = 3  # exit code if certification was requested and failed


def say(text: str, *, style: str | None = None, wrap: bool = False) -> None:
    """Print plain text. Lines are broken only with ``wrap``, so that paths can be copied."""
    Console().print(text, style=style, highlight=False, markup=False, soft_wrap=not wrap)


def refuse_bad_input(command: Callable[..., None]) -> Callable[..., None]:
    """Wrap a command so that ValueError, OSError and EOFError are printed without a traceback, with exit code 2."""

    @wraps(command)
    def run(*args: Any, **options: Any) -> None:
        try:
            command(*args, **options)
        except BrokenPipeError:
            raise
        except (ValueError, OSError, EOFError) as error:
            typer.echo(f"{typer.style('Error:', fg='red', bold=True)} {error}", err=True)
            raise typer.Exit(2) from error

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
