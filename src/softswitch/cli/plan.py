"""The command that needs no data: plan."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console


def plan(
    clients: Annotated[int, typer.Option(min=1, help="n, how many clients there are.")],
    diameter: Annotated[float, typer.Option(help="D, the diameter of the domain Θ.")],
    lipschitz: Annotated[float, typer.Option(help="L, the largest gradient norm of any client's functions.")],
    epsilon: Annotated[float | None, typer.Option(help="ε, the wanted accuracy; or give --samples.")] = None,
    samples: Annotated[int | None, typer.Option(help="A budget of rows to evaluate, instead of --epsilon.")] = None,
    delta: Annotated[float, typer.Option(help="δ, the probability with which the promise may fail.")] = 0.05,
    participation: Annotated[float, typer.Option(help="m/n, the share of clients in a round.")] = 1.0,
    local_steps: Annotated[int, typer.Option(min=0, help="E, gradient steps of a client in a round; 0: chosen.")] = 1,
    batch_size: Annotated[int, typer.Option(min=0, help="B_g, rows of a gradient; 0: chosen.")] = 32,
    rounds: Annotated[int | None, typer.Option(help="At most so many rounds.")] = None,
    gradient_noise: Annotated[float, typer.Option(help="σ_g, the noise of one row's gradient.")] = 0.0,
    value_noise: Annotated[float, typer.Option(help="σ_ζ, the noise of one row's value.")] = 0.0,
    heterogeneity: Annotated[float, typer.Option(help="σ, how far clients lie below the worst.")] = 0.0,
    gap: Annotated[
        str,
        typer.Option(
            help="What bounds how far clients lie below the worst, times σ: uniform, half-normal, "
            "exponential, half-cauchy, chi-square or beta."
        ),
    ] = "uniform",
    gap_shape: Annotated[
        list[float] | None, typer.Option(help="Its shape: once for chi-square, twice for beta.")
    ] = None,
    switch_share: Annotated[
        float | None,
        typer.Option(
            help="κ, the smallest share of feasible rounds to reckon with, where m < n. "
            "By default 0.05, or what --slater assures."
        ),
    ] = None,
    slater: Annotated[
        float | None, typer.Option(help="ν, where some w meets every constraint by ν: it bounds κ from below.")
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Plan a run by the theorems: rounds, batches, steps and α for a wanted accuracy, or the best for a budget.

    Ends with exit code 1 where the wish cannot be met.
    """
    from softswitch.theory.plan import plan as find_plan
    from softswitch.theory.theorems import Constants

    try:
        known = Constants(diameter, lipschitz, gradient_noise, value_noise, heterogeneity, gap, tuple(gap_shape or ()))
        planned = find_plan(
            known,
            clients=clients,
            participation=participation,
            local_steps=local_steps or None,
            batch_size=batch_size or None,
            delta=delta,
            epsilon=epsilon,
            samples=samples,
            rounds=rounds,
            switch_share=switch_share,
            slater=slater,
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
        for warning in planned.warnings:
            console.print(f"Warning: {warning}", highlight=False)
    if not planned.met:
        raise typer.Exit(1)
