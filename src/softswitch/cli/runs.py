"""The commands that read run folders: runs, compare and report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.table import Table

from softswitch.support.console import SafeConsole, plain_cell, say

if TYPE_CHECKING:
    from softswitch.results.folder import Run

LATEST = "'latest' is the newest run below ./runs, 'FOLDER/latest' the newest below that folder"
HEAD = ("outcome", "G", "bound", "F")  # columns of ``_line``
NOTE = "F: the worst client's objective. G: the worst client's constraint."


def runs(folder: Annotated[Path, typer.Argument(help="Folder with runs.")] = Path("runs")) -> None:
    """List the runs below a folder with their status, certificate and worst client's values."""
    from softswitch.results.folder import check_folder, find_runs

    if not (found := find_runs(check_folder(folder))):
        say(f"There are no runs below {folder}.")
        return
    table = _table("run", "status", *HEAD)
    for run in found:
        status = run.about["status"]["code"] if run.finished else "not finished"
        try:
            line = _line(run)
        except (ValueError, OSError):  # softswitch report prints what is wrong
            status, line = "damaged", ("",) * len(HEAD)
        table.add_row(*map(plain_cell, (str(run.folder.relative_to(folder)), status, *line)))
    SafeConsole().print(table, NOTE)


def compare(runs: Annotated[list[Path], typer.Argument(help=f"Two or more run folders; {LATEST}.")]) -> None:
    """Compare the results of runs, and list the settings in which they differ."""
    from softswitch.results.folder import compare_settings, open_run, resolve_run

    opened = [open_run(resolve_run(run)) for run in runs]
    lines, differing = [_line(run) for run in opened], compare_settings(opened)
    numbers = [str(i) for i in range(1, len(opened) + 1)]
    table = _table("", "run", *HEAD, "rounds", title="Results")
    for number, run, line in zip(numbers, opened, lines, strict=True):
        table.add_row(number, *map(plain_cell, (run.name, *line)), f"{run.about['rounds']:,}" if run.finished else "")
    SafeConsole().print(table, NOTE)
    if not differing:
        say("All settings are the same.")
        return
    settings = _table("setting", *numbers, title="Settings that differ")
    for name, values in differing.items():
        settings.add_row(*map(plain_cell, (name, *values)))
    SafeConsole().print(settings)


def report(
    runs: Annotated[list[Path], typer.Argument(help=f"Run folder, or several to compare; {LATEST}.")],
    out: Annotated[Path | None, typer.Option(help="HTML file. Default: report.html in the first folder.")] = None,
) -> None:
    """Write an HTML report with verdict, clients, charts, diagnostics and settings; it opens offline."""
    from softswitch.results.folder import resolve_run
    from softswitch.results.report.page import write_report

    say(f"Report: {write_report([resolve_run(run) for run in runs], out)}")


def _table(*columns: str, title: str | None = None) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold", min_width=29 if column == "run" else None)
    return table


def _line(run: Run) -> tuple[str, ...]:
    from softswitch.results.descriptions import read_description
    from softswitch.support.text import format_number

    if not run.finished:
        return ("",) * len(HEAD)
    about, write = run.about, read_description(run.about).write
    certification, certificate = about.get("certification"), run.certificate
    verdict = "not certified" if certificate is None else certificate["verdict"]
    values = map(write, (about["worst_constraint"], about["tolerance"]))
    return (certification["outcome"] if certification else verdict, *values, format_number(about["worst_objective"]))
