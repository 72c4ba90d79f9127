"""How commands end: bad input is told in one line that begins with the error; no answer has a code."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn, TypeVar

import click
import typer
from typer.core import TyperGroup

Found = TypeVar("Found")

NO_ANSWER_CODE = 3
"""The exit code where nothing is certified that was to be."""


def or_refuse(work: Callable[[], Found]) -> Found:
    """What ``work`` gives; its complaints about input as the command line's."""
    try:
        return work()
    except (ValueError, OSError, EOFError) as error:
        raise typer.BadParameter(str(error)) from error


class ErrorFirst(TyperGroup):
    """Commands whose errors begin with the error: no usage before it, no box around it, no line broken."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **more: Any,
    ) -> Any:
        """Run a command, and tell what was wrong with its words."""
        run = partial(super().main, args, prog_name, complete_var, False, windows_expand_args, **more)
        if not standalone_mode:
            return run()
        try:
            sys.exit(run())
        except click.ClickException as error:
            _end(error)
        except click.Abort:
            typer.echo("Aborted.", err=True)
            sys.exit(1)


def _end(error: click.ClickException) -> NoReturn:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):  # the help is printed already
        sys.exit(error.exit_code)
    refused = type(error) is click.BadParameter and error.param is None  # by a command, not by the parser
    typer.echo(
        f"{typer.style('Error:', fg='red', bold=True)} {error.message if refused else error.format_message()}", err=True
    )
    context = getattr(error, "ctx", None)
    if context is not None and not refused:
        typer.echo(f"For all options: {context.command_path} --help", err=True)
    sys.exit(error.exit_code)
