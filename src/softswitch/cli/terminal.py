"""Output and errors of all commands."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, NoReturn

import click
import typer
from rich.console import Console
from typer.core import TyperGroup

NOT_CERTIFIED_CODE = 3  # exit code if certification was requested and failed


def say(text: str, *, style: str | None = None, wrap: bool = False) -> None:
    """Print plain text; lines are not broken by default, such that paths can be copied."""
    Console().print(text, style=style, highlight=False, markup=False, soft_wrap=not wrap)


def refuse_bad_input(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command such that errors of its input are errors of the command line."""

    @wraps(command)
    def run(*args: Any, **options: Any) -> None:
        try:
            command(*args, **options)
        except BrokenPipeError:
            raise
        except (ValueError, OSError, EOFError) as error:
            raise typer.BadParameter(str(error)) from error

    return run


class ErrorFirst(TyperGroup):
    """Commands whose error messages begin with the error, without usage, boxes or line breaks."""

    def main(self, *args: Any, **options: Any) -> Any:
        """Run a command, and print what is wrong with its arguments."""
        run: Any = partial(super().main, *args, **options | {"standalone_mode": False})
        if not options.get("standalone_mode", True):
            return run()
        try:
            sys.exit(run())
        except click.ClickException as error:
            _exit(error)
        except click.Abort:
            typer.echo("Aborted.", err=True)
            sys.exit(1)


def _exit(error: click.ClickException) -> NoReturn:
    if not isinstance(error, click.exceptions.NoArgsIsHelpError):  # for which the help is printed already
        is_from_command = type(error) is click.BadParameter and error.param is None
        message = error.message if is_from_command else error.format_message()
        typer.echo(f"{typer.style('Error:', fg='red', bold=True)} {message}", err=True)
        context = getattr(error, "ctx", None)
        if context is not None and not is_from_command:
            typer.echo(f"For all options: {context.command_path} --help", err=True)
    sys.exit(error.exit_code)
