"""The commands that train and use models of a table: train, resume, predict and frontier."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.tree import Tree

from softswitch.cli.terminal import OUTCOME_CODES, ExitCode
from softswitch.results.certificate import Outcome, warn_about_reuse
from softswitch.support.console import SafeConsole, say

if TYPE_CHECKING:
    from softswitch.methods.base import Method
    from softswitch.results.folder import Run
    from softswitch.tables.preparation import PreparedTable
    from softswitch.tables.settings import Config
    from softswitch.tables.training import TrainedRun

RunFolder = Annotated[Path, typer.Argument(help="Run folder; 'latest' is the newest below ./runs.")]
LEVELS = {"good": ("✔", "bold green"), "unsure": ("?", "bold yellow"), "bad": ("✘", "bold red")}  # of a verdict
SettingsFile = Annotated[Path, typer.Argument(help="Settings file, as softswitch init writes it.")]


def train(settings: SettingsFile) -> None:
    """Train from a settings file, certify on held-out rows, and write a run folder.

    Exit codes: 0 certified and useful; 3 not certified, too few rows; 4 certified, but no better than a constant
    prediction; 5 certified at some clients only; 6 not certified, a client likely violates the bound. Without
    certification: 0 no client violates the bound on its training rows; 1 a client does, or the run was stopped.
    """
    from softswitch.tables import training

    print_outcome(training.train(settings, watch=lambda *prepared: SafeConsole().print(_tree(*prepared))))


def resume(
    run: RunFolder,
    rounds: Annotated[int | None, typer.Option(help="Extend the run to this total number of rounds.")] = None,
    seconds: Annotated[float | None, typer.Option(help="Extend the run to this total number of seconds.")] = None,
) -> None:
    """Resume an interrupted run, or extend a finished one. A resumed run gives the result of an uninterrupted one.

    The exit codes are those of softswitch train.
    """
    from softswitch.results.folder import resolve_run
    from softswitch.tables import training

    print_outcome(training.resume(resolve_run(run), rounds=rounds, seconds=seconds))


def predict(
    run: RunFolder,
    data: Annotated[Path, typer.Argument(help="Table with the columns of the training data.")],
    out: Annotated[Path | None, typer.Option(help="CSV file to write. Default: next to the table.")] = None,
    uncertified: Annotated[bool, typer.Option("--uncertified", help="Predict even if certification failed.")] = False,
) -> None:
    """Write a copy of a table with the predictions of a run's model and their probabilities.

    A model that is not certified is refused without --uncertified. A warning is printed if the model is no better than
    a constant prediction, or not certified at every client.
    """
    from softswitch.results.folder import CONFIG, resolve_run
    from softswitch.tables.model import load
    from softswitch.tables.settings import read_config
    from softswitch.tables.table import TextFormat, check_file, read_table, text_format, write_table

    model = load(resolve_run(run), allow_uncertified=uncertified)
    for warning in certification_warnings(model.run):
        say(f"Warning: {warning}", style="yellow", error=True)
    trained = read_config(model.run.folder / CONFIG).data
    columns = [column.name for column in model.file.encoding.columns]
    form = text_format(data, TextFormat(trained.encoding, trained.separator, trained.decimal), columns)
    if form is not None:
        say(f"{data}: {form}")
    options = {} if form is None else asdict(form)
    table = read_table(data, empty=trained.empty, **options)
    _, ending = check_file(data)
    file = out or data.with_name(data.name[: data.name.lower().rindex(ending)] + "-predicted.csv")
    if file.exists():
        raise ValueError(f"{file} already exists; use another --out")
    write_table(read_table(data, as_text=True, **options).assign(**model.columns(table)), file)
    say(f"Predicted {len(table):,} rows → {file}")


def frontier(
    settings: SettingsFile,
    bound: Annotated[list[float] | None, typer.Option(help="Bound; repeatable. Default: around task.bound.")] = None,
) -> None:
    """Train one model per bound, and show what the constraint costs and the smallest bound that is certified.

    Models are tested in a fixed order, the most promising first, until one fails, so all certificates hold jointly.
    Each model has a run folder, for softswitch predict. The exit code is 3 if no bound is certified.
    """
    from softswitch.tables.frontier import bound_folder, train_frontier

    folder, curve, earlier = train_frontier(settings, bound or (), say=say)
    SafeConsole().print()
    SafeConsole().print(curve.table())
    for line in (*curve.summary, *warn_about_reuse(earlier)):
        say(line)
    say(f"Frontier: {folder}")
    smallest = curve.smallest_certified
    if smallest is None:
        raise typer.Exit(ExitCode.NOT_CERTIFIED)
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
    branches = {"table": contents, "constraint": [describe_task(config, table.label)["requirement"]]}
    if table.split is not None:
        limits = certifiability(table.problem, table.split.calibration, config.task.bound, config.run.confidence)
        branches["certifiability"] = [str(limits)]
    for name, lines in branches.items():
        branch = tree.add(f"[bold]{name}")
        for line in lines:
            branch.add(escape(line))
    return tree


def print_outcome(trained: TrainedRun) -> None:
    """Print verdict, certificate and diagnostics of a run and what to do next; exit with its ``ExitCode``."""
    from softswitch.results.baseline import Usefulness
    from softswitch.results.folder import open_run
    from softswitch.results.report.clients import judge_run
    from softswitch.results.status import StatusCode

    result, aim, run = trained.result, trained.aim, open_run(trained.folder)
    verdict = judge_run(run)
    mark, style = LEVELS[verdict.level]
    say("")
    say(f"{mark} {verdict.headline}", style=style, wrap=True)
    say(" ".join(filter(None, [run.about.get("requirement"), verdict.new_data, verdict.details])), wrap=True)
    if (compared := run.about.get("usefulness")) is not None:
        say(Usefulness.from_dict(compared).describe(run.client_noun), wrap=True)
    for warning in warn_about_reuse(aim["earlier_certificates"]) if aim else ():
        say(warning, wrap=True)
    if trained.certificate is not None:
        SafeConsole().print(trained.certificate.table())
    say(result.explain(), wrap=True)
    if aim is not None and "model" in aim:
        say(f"Model: {aim['model']}, from a path of {aim['models']:,}.", wrap=True)
    say(f"Run: {trained.folder}")
    if result.status.code is StatusCode.STOPPED:
        say(f"To continue: softswitch resume {trained.folder}")
    else:
        say(f"Report: softswitch report {trained.folder}")
        if trained.is_usable:
            say(f"Predict: softswitch predict {trained.folder} TABLE")
    if aim is not None:
        raise typer.Exit(OUTCOME_CODES[aim["outcome"]])
    if not result.status.ok:
        raise typer.Exit(ExitCode.INFEASIBLE)


def certification_warnings(run: Run) -> list[str]:
    """Return the verdict on a model that is certified, but not at every client or no better than a constant."""
    certification = run.about.get("certification") or {}
    is_limited = certification.get("outcome") in (Outcome.PARTLY, Outcome.CONSTANT)
    return [" ".join(certification["message"].split())] if is_limited else []
