"""The command that shows what a constraint costs: frontier."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from softswitch.cli.errors import NO_ANSWER_CODE, or_refuse

if TYPE_CHECKING:
    from softswitch.results.frontier import FrontierPoint
    from softswitch.tables.frontier import FrontierPlan


def frontier(
    settings: Annotated[Path, typer.Argument(help="The file of settings; softswitch init writes one.")],
    bound: Annotated[
        list[float] | None,
        typer.Option(help="A bound to try, instead of task.bound; give several. By default some about task.bound."),
    ] = None,
    run: Annotated[
        Path | None, typer.Option(help="A run's folder to put it into, for its report; by default a folder of its own.")
    ] = None,
) -> None:
    """Show what the constraint costs: a model for each of several bounds, and how far down they are certified.

    Bounds are certified from the loosest on until one is not, so that all that are hold together. Each bound's model is
    in a folder of its own, for softswitch predict. Ends with exit code 3 where no bound is certified.
    """
    from softswitch.results.certificate import warn_about_reuse
    from softswitch.results.folder import resolve_run
    from softswitch.tables.frontier import bound_folder, train_frontier

    console = Console()

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    def before(intended: FrontierPlan) -> None:
        learn, choose, keep = intended.rows
        say(f"{intended.config.task.kind} at most {', '.join(f'{bound:g}' for bound in intended.bounds)}.")
        say(f"{learn:,} rows to learn from, {choose:,} to choose by, {keep:,} to certify with.")
        say(f"{intended.certifiability}\n")

    def watch(point: FrontierPoint) -> None:
        kept = f"least F {point.objective:.4f}" if point.reached else f"not reached, G is {point.constraint:.4g}"
        say(f"trained for {point.bound:g}: {kept}")

    found = or_refuse(
        lambda: train_frontier(settings, bound or (), run and resolve_run(run), before=before, watch=watch)
    )
    console.print()
    console.print(found.frontier.table())
    for sentence in found.frontier.summary:
        say(sentence)
    for warning in warn_about_reuse(found.earlier_certificates):
        say(warning)
    say(f"Frontier: {found.folder}")
    least = found.frontier.smallest_certified
    if least is None:
        raise typer.Exit(NO_ANSWER_CODE)
    say(f"To use the model of {least:g}: softswitch predict {found.folder / bound_folder(least)} TABLE")
