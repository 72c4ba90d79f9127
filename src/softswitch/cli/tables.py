"""The commands around a table of one's own: init, train, resume, predict, runs, compare."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.tree import Tree

from softswitch.method.rules import Rule
from softswitch.runs.folder import Run, find_runs, open_run
from softswitch.runs.report import write_report
from softswitch.tables import training
from softswitch.tables.model import load
from softswitch.tables.settings import SECTIONS, TASKS, Config, Data, Task, write_config
from softswitch.tables.table import read_table

RunFolder = Annotated[Path, typer.Argument(help="The folder of a run.")]


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (init, train, resume, predict, runs, compare, report):
        app.command()(command)


def init(
    data: Annotated[str, typer.Option(help="Your table: CSV or Parquet.")] = "data.csv",
    label: Annotated[str, typer.Option(help="The column to predict.")] = "label",
    client: Annotated[str, typer.Option(help="The column that says whose row it is.")] = "client",
    kind: Annotated[str, typer.Option(help=f"What must hold at every client: {', '.join(TASKS)}.")] = TASKS[0],
    at_most: Annotated[float, typer.Option(help="Its bound.")] = 0.1,
    sensitive: Annotated[str | None, typer.Option(help="The column with the group, where there are groups.")] = None,
    protected: Annotated[str | None, typer.Option(help="The protected group's value.")] = None,
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("softswitch.toml"),
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
) -> None:
    """Write a file of settings with comments, ready for softswitch train."""
    if out.exists() and not force:
        raise typer.BadParameter(f"{out} is there already; give another --out, or --force")
    if kind not in TASKS:
        raise typer.BadParameter(f"--kind must be one of {', '.join(TASKS)}, but is {kind!r}")
    task = Task(kind=kind, at_most=at_most, sensitive=sensitive, protected=protected)
    _or_refuse(lambda: out.write_text(write_config(Config(Data(data, label, client), task)), encoding="utf-8"))
    Console().print(f"Wrote {out}. Next: softswitch train {out}", highlight=False, markup=False)


def train(
    settings: Annotated[Path, typer.Argument(help="The file of settings; softswitch init writes one.")],
) -> None:
    """Train by a file of settings, certify on held-out rows, and write a run folder.

    Ends with exit code 1 where the answer does not meet the constraint at every client.
    """
    console = Console()
    _tell(console, _or_refuse(lambda: training.train(settings, watch=lambda *seen: console.print(_tree(*seen)))))


def resume(run: RunFolder) -> None:
    """Go on with a run that was interrupted or killed, to exactly what it would have been."""
    _tell(Console(), _or_refuse(lambda: training.resume(run)))


def predict(
    run: RunFolder,
    data: Annotated[Path, typer.Argument(help="A table with the columns of the training data.")],
    out: Annotated[Path | None, typer.Option(help="The CSV to write; by default beside the table.")] = None,
) -> None:
    """Predict a table's rows by a run's model: a copy of the table with two more columns."""

    def work() -> tuple[Path, int]:
        model, table = load(run), read_table(data)
        file = out or data.with_name(re.sub(r"\.(csv(\.\w+)?|parquet|pq)$", "", data.name) + "-predicted.csv")
        if file.exists():
            raise ValueError(f"{file} is there already; give another --out")
        found = {
            f"{model.label}_probability": model.probability(table),
            f"{model.label}_predicted": model.predict(table),
        }
        read_table(data, as_text=True).assign(**found).to_csv(file, index=False)
        return file, len(table)

    file, rows = _or_refuse(work)
    Console().print(f"Predicted {rows:,} rows → {file}", highlight=False, markup=False)


def runs(folder: Annotated[Path, typer.Argument(help="Where to look.")] = Path("runs")) -> None:
    """List the runs below a folder."""
    console = Console()
    found = _or_refuse(lambda: find_runs(folder))
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
    opened = _or_refuse(lambda: [open_run(run) for run in runs])
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
    file = _or_refuse(lambda: write_report(runs, out))
    Console().print(f"Report: {file}", highlight=False, markup=False, soft_wrap=True)


def _or_refuse(work: Any) -> Any:
    """What ``work`` gives; its complaints about input as the command line's."""
    try:
        return work()
    except (ValueError, OSError, EOFError) as error:
        raise typer.BadParameter(str(error)) from error


def _tree(config: Config, ready: training.Prepared, rule: Rule) -> Tree:
    """The settings as a tree, before training."""
    tree = Tree("[bold]Settings")
    for section in SECTIONS:
        branch = tree.add(f"[bold]{section}")
        part = getattr(config, section)
        for entry in fields(part):
            value = getattr(part, entry.name)
            if value not in (None, ()):
                branch.add(escape(f"{entry.name} = {value}"))
    found = tree.add("[bold]found in the table")
    held = 0 if ready.held_out is None else int(ready.held_out.sizes.sum())
    found.add(
        escape(f"{len(ready.train)} clients, {ready.train.sizes.min()} to {ready.train.sizes.max()} training rows")
    )
    found.add(f"{int(ready.train.sizes.sum()):,} rows to train on, {held:,} held out")
    found.add(f"{len(ready.encoding.features)} features from {len(ready.encoding.columns)} columns")
    found.add(
        escape(
            f"positive: {ready.classes[1]!r}, {float(ready.train.rows.columns['y'].mean()):.1%} of the training rows"
        )
    )
    found.add(escape(f"method: {rule}"))
    return tree


def _tell(console: Console, trained: training.Trained) -> None:
    if trained.certificate is not None:
        console.print(trained.certificate.table())
    console.print(trained.result.explain(), highlight=False, markup=False)
    console.print(f"Run: {trained.folder}", highlight=False, markup=False, soft_wrap=True)
    if trained.result.status.code == "stopped":
        console.print(f"To go on: softswitch resume {trained.folder}", highlight=False, markup=False, soft_wrap=True)
    if not trained.result.status.ok:
        raise typer.Exit(1)


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
