"""The commands that train and use models of a table: train, resume, predict and frontier."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.tree import Tree

from softswitch.cli.terminal import NOT_CERTIFIED_CODE, say

if TYPE_CHECKING:
    from softswitch.methods.base import Method
    from softswitch.tables.preparation import PreparedTable
    from softswitch.tables.settings import Config
    from softswitch.tables.training import TrainedRun

RunFolder = Annotated[Path, typer.Argument(help="Run folder; 'latest' is the newest below ./runs.")]
SettingsFile = Annotated[Path, typer.Argument(help="Settings file, as softswitch init writes it.")]


def train(settings: SettingsFile) -> None:
    """Train from a settings file, certify on held-out rows, and write a run folder.

    The exit code is 1 if a client violates the constraint on its training rows, and 3 if none does, but the model is
    not certified for new data.
    """
    from softswitch.tables import training

    print_outcome(training.train(settings, watch=lambda *prepared: Console().print(_tree(*prepared))))


def resume(
    run: RunFolder,
    rounds: Annotated[int | None, typer.Option(help="Extend the run to this total number of rounds.")] = None,
    seconds: Annotated[float | None, typer.Option(help="Extend the run to this total number of seconds.")] = None,
) -> None:
    """Resume an interrupted run, or extend a finished one. A resumed run gives the result of an uninterrupted one."""
    from softswitch.results.folder import resolve_run
    from softswitch.tables import training

    print_outcome(training.resume(resolve_run(run), rounds=rounds, seconds=seconds))


def predict(
    run: RunFolder,
    data: Annotated[Path, typer.Argument(help="Table with the columns of the training data.")],
    out: Annotated[Path | None, typer.Option(help="CSV file to write. Default: next to the table.")] = None,
    uncertified: Annotated[bool, typer.Option("--uncertified", help="Predict even if certification failed.")] = False,
) -> None:
    """Write a copy of a table with the predictions of a run's model and their probabilities."""
    from softswitch.results.folder import resolve_run
    from softswitch.tables.model import load
    from softswitch.tables.table import check_file, read_table, write_table

    model = load(resolve_run(run), allow_uncertified=uncertified)
    table = read_table(data, empty=tuple(model.run.settings.get("data.empty", ())))
    _, ending = check_file(data)
    file = out or data.with_name(data.name[: data.name.lower().rindex(ending)] + "-predicted.csv")
    if file.exists():
        raise ValueError(f"{file} already exists; use another --out")
    write_table(read_table(data, as_text=True).assign(**model.columns(table)), file)
    say(f"Predicted {len(table):,} rows → {file}")


def frontier(
    settings: SettingsFile,
    bound: Annotated[list[float] | None, typer.Option(help="Bound; repeatable. Default: around task.bound.")] = None,
) -> None:
    """Train one model per bound, and show what the constraint costs and the smallest bound that is certified.

    Models are tested in a fixed order, the most promising first, until one fails, so all certificates hold jointly.
    Each model has a run folder, for softswitch predict. The exit code is 3 if no bound is certified.
    """
    from softswitch.results.certificate import warn_about_reuse
    from softswitch.tables.frontier import bound_folder, train_frontier

    folder, curve, earlier = train_frontier(settings, bound or (), say=say)
    Console().print()
    Console().print(curve.table())
    for line in (*curve.summary, *warn_about_reuse(earlier)):
        say(line)
    say(f"Frontier: {folder}")
    smallest = curve.smallest_certified
    if smallest is None:
        raise typer.Exit(NOT_CERTIFIED_CODE)
    say(f"To use the model of {smallest:g}: softswitch predict {folder / bound_folder(smallest)} TABLE")


def _tree(config: Config, table: PreparedTable, method: Method) -> Tree:
    """Return a rich tree that describes a run before training: table, constraint and certifiability."""
    from softswitch.certification.certifiability import certifiability
    from softswitch.support.text import shorten_numbers
    from softswitch.tables.labels import describe_label
    from softswitch.tables.training import describe_task

    tree = Tree("[bold]Training")
    sizes, label = table.train.sizes, describe_label(table.label, table.train.rows.columns["y"])
    validation, held_out = (0 if part is None else int(part.sizes.sum()) for part in (table.validation, table.held_out))
    contents = [
        f"{len(table.train):,} clients, {sizes.min():,} to {sizes.max():,} training rows",
        f"rows: {int(sizes.sum()):,} for training, {validation:,} for validation, {held_out:,} for the certificate",
        f"{len(table.encoding.features)} features from {len(table.encoding.columns)} columns",
        f"label: {label}",
        f"method: {shorten_numbers(str(method))}",
    ]
    if table.dropped:
        contents.append(f"{table.dropped:,} rows dropped: their label, client or group is empty")
    branch = tree.add("[bold]table")
    for line in contents:
        branch.add(escape(line))
    tree.add("[bold]constraint").add(escape(describe_task(config, table.label)["requirement"]))
    if table.split is not None:
        limits = certifiability(table.problem, table.split.calibration, config.task.bound, config.run.confidence)
        tree.add("[bold]certifiability").add(escape(str(limits)))
    return tree


def print_outcome(trained: TrainedRun) -> None:
    """Print certificate, diagnostics and verdict of a run; exit with 1 if it is not feasible, 3 if not certified."""
    from softswitch.results.certificate import warn_about_reuse

    result, aim = trained.result, trained.aim
    if trained.certificate is not None:
        Console().print(trained.certificate.table())
    say(result.explain(), wrap=True)
    if aim is not None:
        selected = [f"Selected from {aim['models']} models: {aim['model']}."] if "model" in aim else []
        say("\n".join(["", aim["message"], *selected, *warn_about_reuse(aim["earlier_certificates"])]), wrap=True)
    say(f"Run: {trained.folder}")
    if result.status.code == "stopped":
        say(f"To continue: softswitch resume {trained.folder}")
        if result.privacy is not None:
            say("Until then keep this folder secret: checkpoints/noise.key allows to remove the noise from the model.")
            say("To end the run here, delete the folder checkpoints.")
    if not result.status.ok:
        raise typer.Exit(1)
    if not trained.is_usable:
        raise typer.Exit(NOT_CERTIFIED_CODE)
