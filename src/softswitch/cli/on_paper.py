"""The commands around the paper: its demonstration and its figures."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from softswitch.paper import Claim


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the figure and the report.")] = Path("demo"),
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds to average over.")] = 5,
    rounds: Annotated[int, typer.Option(min=10, help="Rounds of training.")] = 1000,
) -> None:
    """Show on breast cancer over 20 clients why the worst client needs a method of its own."""
    from softswitch.tasks import demo as demonstration

    console = Console()
    found = demonstration.run_demo(seeds, rounds)
    console.print(demonstration.table(found))
    figure, report = demonstration.write(found, out)
    console.print(f"{found.seconds:.1f} s. Figure: {figure}  Report: {report}")


def paper(
    name: Annotated[str | None, typer.Argument(help="Which one, or 'all'; nothing lists them.")] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="How many seeds; the experiment's own number, or 2 with --quick.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A short version; its claims need not hold.")] = False,
    out: Annotated[Path, typer.Option(help="Folder; each experiment writes into its own below it.")] = Path("results"),
) -> None:
    """Regenerate a figure of the paper: picture (PNG, SVG), numbers (CSV), and whether its claims held."""
    from softswitch.paper import EXPERIMENTS, regenerate

    console = Console()
    if name is None:
        table = Table("name", "what it shows", title="softswitch paper NAME, or all")
        for experiment in EXPERIMENTS.values():
            table.add_row(experiment.name, experiment.shows)
        console.print(table)
        return
    if name != "all" and name not in EXPERIMENTS:
        raise typer.BadParameter(f"must be 'all' or one of {', '.join(EXPERIMENTS)}, but is {name!r}")
    began = time.perf_counter()
    chosen = list(EXPERIMENTS.values()) if name == "all" else [EXPERIMENTS[name]]
    missing = [experiment.missing for experiment in chosen if experiment.missing]
    if missing:
        raise typer.BadParameter("; ".join(missing))
    claims: list[Claim] = []
    for written in regenerate(chosen, out, seeds=seeds, quick=quick):
        told = f"{written.experiment.name} ({written.seeds} seeds, {written.seconds:.1f} s) → {written.files[0]}"
        console.print(told, style="bold", markup=False, highlight=False, soft_wrap=True)
        for claim in written.outcome.claims:
            colour = "green" if claim.held else "red"
            console.print(f"  {claim}", style=colour, markup=False, highlight=False, soft_wrap=True)
        claims += written.outcome.claims
    held = sum(claim.held for claim in claims)
    console.print(f"{held} of {len(claims)} claims held; {time.perf_counter() - began:.0f} s.")
    if quick:
        console.print("Quick settings: far fewer rounds than the paper's, so a claim that fails here says nothing.")
