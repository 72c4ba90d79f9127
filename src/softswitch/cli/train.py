"""The commands around a table of one's own: train, resume, predict."""

from __future__ import annotations

import re
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.tree import Tree

from softswitch.cli.errors import NO_ANSWER_CODE, or_refuse
from softswitch.tables.settings import AUTO, SECTIONS, Config, PrivacySection

if TYPE_CHECKING:
    from softswitch.methods.base import Method
    from softswitch.tables.preparation import PreparedTable
    from softswitch.tables.training import TrainedRun

RunFolder = Annotated[Path, typer.Argument(help="The folder of a run; or latest, the newest below ./runs.")]


def train(
    settings: Annotated[Path, typer.Argument(help="The file of settings; softswitch init writes one.")],
) -> None:
    """Train by a file of settings, certify on held-out rows, and write a run folder.

    Ends with exit code 1 where the model does not meet the constraint at every client on its training rows, and with 3
    where it does, but is not certified for new data.
    """
    from softswitch.tables import training

    console = Console()
    _tell(console, or_refuse(lambda: training.train(settings, watch=lambda *seen: console.print(_tree(*seen)))))


def resume(
    run: RunFolder,
    rounds: Annotated[int | None, typer.Option(help="Make the run longer: so many rounds in all.")] = None,
    seconds: Annotated[float | None, typer.Option(help="Make the run longer: so many seconds in all.")] = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Import the Python functions that the run's settings name (kind 'custom').")
    ] = False,
) -> None:
    """Go on with a run that was interrupted or killed, to exactly what it would have been; or make it longer."""
    from softswitch.results.folder import resolve_run
    from softswitch.tables import training

    _tell(Console(), or_refuse(lambda: training.resume(resolve_run(run), rounds=rounds, seconds=seconds, trust=trust)))


def predict(
    run: RunFolder,
    data: Annotated[Path, typer.Argument(help="A table with the columns of the training data.")],
    out: Annotated[Path | None, typer.Option(help="The CSV to write; by default beside the table.")] = None,
    uncertified: Annotated[
        bool, typer.Option("--uncertified", help="Predict though the model was to be certified, and is not.")
    ] = False,
) -> None:
    """Predict a table's rows by a run's model: a copy of the table with what is predicted, and how probable it is."""
    from softswitch.results.folder import resolve_run
    from softswitch.tables.model import load
    from softswitch.tables.table import read_table, text_format, write_table

    def work() -> tuple[Path, int]:
        model = load(resolve_run(run), allow_uncertified=uncertified)
        form = text_format(data)  # the table is given back as it was written
        how = {} if form is None else asdict(form)
        table = read_table(data, empty=tuple(model.run.settings.get("data.empty", ())), **how)
        file = out or data.with_name(re.sub(r"\.(\w+)(\.(gz|xz|bz2|zip))?$", "", data.name) + "-predicted.csv")
        if file.exists():
            raise ValueError(f"{file} is there already; give another --out")
        predicted = read_table(data, as_text=True, **how).assign(**model.columns(table))
        write_table(predicted, file, form)
        return file, len(table)

    file, rows = or_refuse(work)
    Console().print(f"Predicted {rows:,} rows → {file}", highlight=False, markup=False)


def _tree(config: Config, ready: PreparedTable, method: Method) -> Tree:
    """The settings as a tree, before training."""
    from softswitch.support.text import shorten_numbers
    from softswitch.tables.training import describe_task

    tree = Tree("[bold]Settings")
    for section in SECTIONS:
        part = getattr(config, section)
        if part == PrivacySection():
            continue
        branch = tree.add(f"[bold]{section}")
        told = {entry.name: getattr(part, entry.name) for entry in fields(part)}
        for name, value in told.items():
            if value not in (None, (), AUTO):
                branch.add(escape(f"{name} = {value}"))
        if AUTO in told.values():
            branch.add(f"{AUTO}: {', '.join(name for name, value in told.items() if value == AUTO)}")
    found = tree.add("[bold]found in the table")
    held, validation = (0 if part is None else int(part.sizes.sum()) for part in (ready.held_out, ready.validation))
    found.add(
        escape(
            f"{len(ready.train):,} clients, {ready.train.sizes.min():,} to {ready.train.sizes.max():,} training rows"
        )
    )
    found.add(
        f"{int(ready.train.sizes.sum()):,} rows to train on, {validation:,} to choose by, {held:,} to certify with"
    )
    if ready.dropped:
        found.add(f"{ready.dropped:,} rows dropped: their label, client or group is empty")
    found.add(f"{len(ready.encoding.features)} features from {len(ready.encoding.columns)} columns")
    found.add(escape(f"label: {ready.label.describe(ready.train.rows.columns['y'])}"))
    found.add(escape(f"method: {shorten_numbers(str(method))}"))
    tree.add("[bold]what must hold").add(escape(describe_task(config, ready.label)["requirement"]))
    if ready.split is not None:
        from softswitch.certification.certifiability import certifiability

        could = certifiability(ready.problem, ready.split.calibration, config.task.bound, config.run.confidence)
        tree.add("[bold]what can be certified").add(escape(str(could)))
    return tree


def _aim_in_words(aim: dict[str, Any]) -> str:
    """Certified or not, and how the model was chosen."""
    from softswitch.results.certificate import warn_about_reuse

    said = [aim["message"]]
    if "model" in aim:
        said.append(f"Of {aim['looked_at']} models looked at, the one chosen is {aim['model']}.")
    return "\n".join([*said, *warn_about_reuse(aim["earlier_certificates"])])


def _tell(console: Console, trained: TrainedRun) -> None:
    if trained.certificate is not None:
        console.print(trained.certificate.table())
    console.print(trained.result.explain(), highlight=False, markup=False)
    if trained.aim is not None:
        console.print(f"\n{_aim_in_words(trained.aim)}", highlight=False, markup=False)
    console.print(f"Run: {trained.folder}", highlight=False, markup=False, soft_wrap=True)
    if trained.result.status.code == "stopped":
        console.print(f"To go on: softswitch resume {trained.folder}", highlight=False, markup=False, soft_wrap=True)
        if trained.result.privacy is not None:
            console.print(
                "Until then keep this folder to yourself: checkpoints/noise.key takes the noise off the model. To end "
                "here for good, delete its folder checkpoints.",
                highlight=False,
                markup=False,
                soft_wrap=True,
            )
    if not trained.result.status.ok:
        raise typer.Exit(1)
    if not trained.is_usable:
        raise typer.Exit(NO_ANSWER_CODE)
