"""The commands around the paper: its demonstration and its figures."""

from __future__ import annotations

import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from softswitch_experiments.paper.batch import Batch
    from softswitch_experiments.paper.outputs import Saved


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the figure and the report.")] = Path("demo"),
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds to average over.")] = 5,
    rounds: Annotated[int, typer.Option(min=10, help="Rounds of training.")] = 1000,
) -> None:
    """Show on breast cancer why the worst client needs a method of its own, and what can be said of unseen rows."""
    from softswitch_experiments.tasks import demo as demonstration

    console = Console()
    found = demonstration.run_demo(seeds, rounds)
    console.print(demonstration.make_table(found))
    story = demonstration.describe_certification(rounds)
    console.print(story, highlight=False, markup=False)
    figure, report = demonstration.write_demo(found, out, story)
    console.print(f"{found.seconds:.1f} s. Figure: {figure}  Report: {report}")


def paper(
    name: Annotated[str | None, typer.Argument(help="Which one, or 'all'; nothing lists them.")] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="How many seeds; the experiment's own number, or 2 with --quick.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A short version; its claims need not hold.")] = False,
    out: Annotated[Path, typer.Option(help="Folder; each experiment writes into its own below it.")] = Path("results"),
    jobs: Annotated[int | None, typer.Option(min=1, help="How many processes; as many as there are cores.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Run also what is there already, from the same code.")] = False,
) -> None:
    """Regenerate a figure of the paper: picture (PNG, SVG), numbers (CSV), and whether its claims held.

    'all' can be interrupted: called again, it keeps what is finished and goes on with the rest.
    """
    from softswitch_experiments.paper import EXPERIMENTS
    from softswitch_experiments.paper.batch import Batch, format_duration

    console = Console()
    if name is None:
        table = Table("name", "what it shows", title="softswitch paper NAME, or all")
        for experiment in EXPERIMENTS.values():
            table.add_row(experiment.name, experiment.summary)
        console.print(table)
        return
    if name != "all" and name not in EXPERIMENTS:
        raise typer.BadParameter(f"must be 'all' or one of {', '.join(EXPERIMENTS)}, but is {name!r}")
    began = time.perf_counter()
    chosen = list(EXPERIMENTS.values()) if name == "all" else [EXPERIMENTS[name]]
    missing = [experiment.missing_dependency for experiment in chosen if experiment.missing_dependency]
    if missing:
        raise typer.BadParameter("; ".join(missing))
    batch = Batch(chosen, out, seeds, quick, jobs, force)
    for line in _plan_lines(batch):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    try:
        written, failed = _follow(batch, console)
    except KeyboardInterrupt:
        told = "Interrupted. What is finished is kept: the same command goes on with the rest."
        console.print(told, style="bold", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(INTERRUPTED) from None
    claims = [claim for one in (*batch.reused, *written) for claim in one.claims]
    held = sum(claim.held for claim in claims)
    console.print(
        f"{held} of {len(claims)} claims held; {format_duration(time.perf_counter() - began)}.", highlight=False
    )
    if quick:
        console.print("Quick settings: far fewer rounds than the paper's, so a claim that fails here says nothing.")
    if failed:
        told = f"{', '.join(failed)} failed, as said above. The same command tries again, and keeps the others."
        console.print(told, style="bold red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(1)


INTERRUPTED = 130
"""What a shell says of a program that Ctrl-C ended."""


def _plan_lines(batch: Batch) -> list[str]:
    """What is there, what is to be run, and for how long."""
    from softswitch_experiments.paper.batch import format_duration

    lines = []
    if batch.reused:
        names = ", ".join(written.name for written in batch.reused)
        lines.append(f"Kept, from the same code and settings: {names} (--force runs them again).")
    if len(batch.names) > 1:
        processes = "1 process" if batch.jobs == 1 else f"{batch.jobs} processes"
        took = format_duration(batch.remaining())
        lines.append(f"{len(batch.names)} experiments in {processes}: about {took}, judged by what they took before.")
    return lines


def _follow(batch: Batch, console: Console) -> tuple[list[Saved], list[str]]:
    """Run what is to be run, tell of each as it is done, and how long the rest will take."""
    from softswitch_experiments.paper.batch import format_duration
    from softswitch_experiments.paper.outputs import Saved

    count, written, failed = len(batch.names), [], []
    for one in batch.reused if count == 0 else ():
        _tell(one, console)
    with console.status("") if console.is_terminal and count > 1 else nullcontext() as status:
        for outcome in batch.run():
            if isinstance(outcome, Saved):
                written.append(outcome)
                _tell(outcome, console)
            elif outcome is not None:
                failed.append(outcome.name)
                told = f"{outcome.name} FAILED: {outcome.reason}"
                console.print(told, style="bold red", markup=False, highlight=False, soft_wrap=True)
            done = len(written) + len(failed)
            left = f"{done} of {count} done, about {format_duration(batch.remaining())} left"
            if status is not None:
                status.update(f"{left}; running {', '.join(batch.running)}")
            elif outcome is not None and done < count:
                console.print(f"  {left}", highlight=False)
    return written, failed


def _tell(written: Saved, console: Console) -> None:
    kept = ", kept" if written.reused else ""
    told = f"{written.name} ({written.seeds} seeds, {written.seconds:.1f} s{kept}) → {written.files[0]}"
    console.print(told, style="bold", markup=False, highlight=False, soft_wrap=True)
    for claim in written.claims:
        colour = "green" if claim.held else "red"
        console.print(f"  {claim}", style=colour, markup=False, highlight=False, soft_wrap=True)
