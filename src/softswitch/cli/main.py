"""The command line: parses, calls, prints."""

from __future__ import annotations

import json
import time
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from softswitch.cli import tables as cli_runs
from softswitch.guarantees.plan_search import plan
from softswitch.guarantees.theorems import Constants
from softswitch.paper import EXPERIMENTS, Claim, regenerate
from softswitch.tasks import demo as demonstration
from softswitch.tasks.safe_rl import PLANETS, saving, training

app = typer.Typer(
    help="Train one model over many clients: the worst-off as well as possible, every constraint met.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"softswitch {version('softswitch')}")
        raise typer.Exit


@app.callback()
def main(
    show_version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Train one model over many clients: the worst-off as well as possible, every constraint met."""


@app.command("plan")
def plan_command(
    clients: Annotated[int, typer.Option(min=1, help="n, how many clients there are.")],
    diameter: Annotated[float, typer.Option(help="D, the diameter of the domain Θ.")],
    lipschitz: Annotated[float, typer.Option(help="L, the largest gradient norm of any client's functions.")],
    epsilon: Annotated[float | None, typer.Option(help="ε, the wanted accuracy; or give --samples.")] = None,
    samples: Annotated[int | None, typer.Option(help="A budget of rows to evaluate, instead of --epsilon.")] = None,
    delta: Annotated[float, typer.Option(help="δ, the probability with which the promise may fail.")] = 0.05,
    participation: Annotated[float, typer.Option(help="m/n, the share of clients in a round.")] = 1.0,
    local_steps: Annotated[int, typer.Option(help="E, gradient steps of a client in a round.")] = 1,
    batch_size: Annotated[int, typer.Option(help="B_g, rows of a gradient.")] = 32,
    rounds: Annotated[int | None, typer.Option(help="At most so many rounds.")] = None,
    gradient_noise: Annotated[float, typer.Option(help="σ_g, the noise of one row's gradient.")] = 0.0,
    value_noise: Annotated[float, typer.Option(help="σ_ζ, the noise of one row's value.")] = 0.0,
    heterogeneity: Annotated[float, typer.Option(help="σ, how far clients lie below the worst.")] = 0.0,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Plan a run by the theorems: rounds, batches, steps and α for a wanted accuracy, or the best for a budget.

    Ends with exit code 1 where the wish cannot be met.
    """
    try:
        known = Constants(diameter, lipschitz, gradient_noise, value_noise, heterogeneity)
        planned = plan(
            known,
            clients=clients,
            participation=participation,
            local_steps=local_steps,
            batch_size=batch_size,
            delta=delta,
            epsilon=epsilon,
            samples=samples,
            rounds=rounds,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    console = Console()
    if json_output:
        typer.echo(json.dumps(planned.to_dict(), indent=2, ensure_ascii=False))
    else:
        if planned.met:
            console.print(planned.table())
        console.print(planned.advice, highlight=False)
    if not planned.met:
        raise typer.Exit(1)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the figure and the report.")] = Path("demo"),
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds to average over.")] = 5,
    rounds: Annotated[int, typer.Option(min=10, help="Rounds of training.")] = 1000,
) -> None:
    """Show on breast cancer over 20 clients why the worst client needs a method of its own."""
    console = Console()
    found = demonstration.run_demo(seeds, rounds)
    console.print(demonstration.table(found))
    figure, report = demonstration.write(found, out)
    console.print(f"{found.seconds:.1f} s. Figure: {figure}  Report: {report}")


cli_runs.add_to(app)


@app.command()
def play(
    policy: Annotated[Path | None, typer.Option(help="A policy.npz written by an earlier call; or train one.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of training, where no policy is given.")] = 300,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Of training and of the episodes shown.")] = 100,
    out: Annotated[Path, typer.Option(help="Folder for the pictures, and for the policy.")] = Path("play"),
) -> None:
    """Show a policy that was trained on carts of three planets: an animated GIF of an episode on each."""
    try:
        from softswitch.tasks.safe_rl.show import show  # Gymnasium draws, and is an extra
    except ImportError as error:
        raise typer.BadParameter(f"play needs Gymnasium and pygame: pip install 'softswitch[rl]' ({error})") from error
    console = Console()
    if policy is None:
        saved = out / "policy.npz"
        saving.save(training.train(rounds, seed), saved)
        console.print(f"Policy: {saved}", highlight=False)
    else:
        saved = policy
    try:
        loaded = saving.load(saved)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    for planet in PLANETS:
        shown = show(loaded, planet, seed, out / f"{planet}.gif")
        told = (
            f"{planet}: {shown.steps} steps, cost {shown.cost}, discounted {shown.discounted_cost:.1f} → {shown.file}"
        )
        console.print(told, highlight=False)
    console.print("Budgets, for the mean of many episodes' discounted cost: 25 to 35.", highlight=False)


@app.command()
def paper(
    name: Annotated[str | None, typer.Argument(help="Which one, or 'all'; nothing lists them.")] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="How many seeds; the experiment's own number, or 2 with --quick.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A short version; its claims need not hold.")] = False,
    out: Annotated[Path, typer.Option(help="Folder; each experiment writes into its own below it.")] = Path("results"),
) -> None:
    """Regenerate a figure of the paper: picture (PNG, SVG), numbers (CSV), and whether its claims held."""
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
