"""The commands around runs that were made: runs, compare, report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from softswitch.cli.errors import or_refuse

if TYPE_CHECKING:
    from softswitch.results.folder import Run

OR_LATEST = "or latest: the newest below ./runs (FOLDER/latest: below that folder)"


def runs(folder: Annotated[Path, typer.Argument(help="Where to look.")] = Path("runs")) -> None:
    """List the runs below a folder."""
    from softswitch.results.folder import check_folder, find_runs

    console = Console()
    found = or_refuse(lambda: find_runs(check_folder(folder)))
    if not found:
        console.print(f"There are no runs below {folder}.", markup=False)
        return
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    names = [str(run.folder.relative_to(folder)) for run in found]
    table.add_column("run", overflow="fold", no_wrap=max(map(len, names)) <= WIDEST)  # to be copied
    table.add_column("status", overflow="fold")
    for name in HEAD:
        table.add_column(name, overflow="fold")
    for name, run in zip(names, found, strict=True):
        status = run.about["status"]["code"] if run.finished else "not finished"
        try:
            line = _line(run)
        except (ValueError, OSError):  # the others are listed all the same; softswitch report says what it is
            status, line = "damaged", ("",) * len(HEAD)
        table.add_row(escape(name), escape(status), *map(escape, line))
    console.print(table, NOTE)


def compare(runs: Annotated[list[Path], typer.Argument(help=f"Two or more runs' folders; {OR_LATEST}.")]) -> None:
    """Put runs side by side: what they came to, and the settings in which they differ."""
    from softswitch.results.folder import compare_settings, open_run, resolve_run

    console = Console()
    opened = or_refuse(lambda: [open_run(resolve_run(run)) for run in runs])
    lines = or_refuse(lambda: [_line(run) for run in opened])
    differing = or_refuse(lambda: compare_settings(opened))
    numbers = [str(i) for i in range(1, len(opened) + 1)]
    table = Table("", title="What they came to", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("run", overflow="fold", no_wrap=max(len(run.name) for run in opened) <= WIDEST)
    for name in (*HEAD, "rounds"):
        table.add_column(name, overflow="fold")
    for number, run, line in zip(numbers, opened, lines, strict=True):
        rounds = f"{run.about['rounds']:,}" if run.finished else ""
        table.add_row(number, escape(run.name), *map(escape, line), rounds)
    console.print(table, NOTE)
    if not differing:
        console.print("Their settings are the same.")
        return
    settings = Table("setting", title="Where their settings differ", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for number in numbers:
        settings.add_column(number, overflow="fold")
    for name, values in differing.items():
        settings.add_row(escape(name), *map(escape, values))
    console.print(settings)


def report(
    runs: Annotated[list[Path], typer.Argument(help=f"A run's folder; several, side by side; {OR_LATEST}.")],
    out: Annotated[
        Path | None, typer.Option(help="The file; by default report.html in the first run's folder.")
    ] = None,
) -> None:
    """Write a report: one HTML file with verdict, clients, charts, diagnosis and settings, which opens offline."""
    from softswitch.results.folder import resolve_run
    from softswitch.results.report import write_report

    file = or_refuse(lambda: write_report([resolve_run(run) for run in runs], out))
    Console().print(f"Report: {file}", highlight=False, markup=False, soft_wrap=True)


HEAD = ("certified", "G", "bound", "F")
WIDEST = 30
"""Names of runs up to this width are not broken."""
NOTE = "F: the worst client's objective. G: the worst client's constraint."


def _line(run: Run) -> tuple[str, ...]:
    from softswitch.results.descriptions import read_description
    from softswitch.support.text import format_number

    about = run.about
    if not run.finished:
        return ("",) * len(HEAD)
    certificate, write = run.certificate, read_description(run.about).write
    return (
        "no" if certificate is None else certificate["verdict"],
        write(about["worst_constraint"]),
        write(about["tolerance"]),
        format_number(about["worst_objective"]),
    )
