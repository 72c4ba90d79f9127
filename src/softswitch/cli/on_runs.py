"""The commands around runs that were made: runs, compare, report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from softswitch.cli.refusing import or_refuse

if TYPE_CHECKING:
    from softswitch.runs.folder import Run


def runs(folder: Annotated[Path, typer.Argument(help="Where to look.")] = Path("runs")) -> None:
    """List the runs below a folder."""
    from softswitch.runs.folder import find_runs

    console = Console()
    found = or_refuse(lambda: find_runs(folder))
    if not found:
        console.print(f"There are no runs below {folder}.", markup=False)
        return
    table = Table()
    table.add_column("run", no_wrap=True)  # to be copied
    for name in ("status", "F", "G", "bound", "certificate"):
        table.add_column(name, overflow="fold")
    for run in found:
        table.add_row(escape(str(run.folder.relative_to(folder))), *map(escape, _line(run)[:5]))
    console.print(table, "F: the worst client's objective. G: the worst client's constraint.")


def compare(runs: Annotated[list[Path], typer.Argument(help="Two or more runs' folders.")]) -> None:
    """Put runs side by side: what they came to, and the settings in which they differ."""
    from softswitch.runs.folder import open_run

    opened = or_refuse(lambda: [open_run(run) for run in runs])
    table = Table("", *(escape(run.name) for run in opened))
    names = ("status", "worst objective", "worst constraint", "bound", "certificate", "rounds", "method")
    for name, cells in zip(names, zip(*map(_line, opened), strict=True), strict=True):
        table.add_row(name, *map(escape, cells))
    table.add_section()
    for name, values in _differences(opened).items():
        table.add_row(escape(name), *map(escape, values))
    Console().print(table)


def report(
    runs: Annotated[list[Path], typer.Argument(help="A run's folder; or several, side by side.")],
    out: Annotated[
        Path | None, typer.Option(help="The file; by default report.html in the first run's folder.")
    ] = None,
) -> None:
    """Write a report: one HTML file with verdict, charts, clients, diagnosis and settings, which opens offline."""
    from softswitch.runs.report import write_report

    file = or_refuse(lambda: write_report(runs, out))
    Console().print(f"Report: {file}", highlight=False, markup=False, soft_wrap=True)


def _line(run: Run) -> tuple[str, ...]:
    about = run.about
    if not run.finished:
        return ("not finished", "", "", "", "", "", "")
    certificate = run.certificate
    return (
        about["status"]["code"],
        _number(about["worst_objective"]),
        _number(about["worst_constraint"]),
        _number(about["tolerance"]),
        "" if certificate is None else certificate["verdict"],
        f"{about['rounds']:,}",
        about["rule"],
    )


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4g}"


def _differences(runs: list[Run]) -> dict[str, tuple[str, ...]]:
    """The settings in which runs differ, and the data where that does."""
    every = [run.settings for run in runs]
    names = list(dict.fromkeys(name for settings in every for name in settings))
    found = {name: tuple(str(settings.get(name, "")) for settings in every) for name in names}
    return {name: values for name, values in found.items() if len(set(values)) > 1}
