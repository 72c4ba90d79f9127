"""The command plan, which computes settings from the convergence theorems."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from softswitch.support.console import SafeConsole


def plan(
    clients: Annotated[int, typer.Option(min=1, help="Number of clients n.")],
    diameter: Annotated[float, typer.Option(help="Diameter D of the domain Θ.")],
    lipschitz: Annotated[float, typer.Option(help="L, the largest gradient norm of any client's functions.")],
    epsilon: Annotated[float, typer.Option(help="Accuracy ε to reach.")],
    delta: Annotated[float, typer.Option(help="Failure probability δ of the guarantee.")] = 0.05,
    participation: Annotated[float, typer.Option(help="Share m/n of the clients per round.")] = 1.0,
    local_steps: Annotated[int, typer.Option(min=1, help="Local steps E per round.")] = 1,
    batch_size: Annotated[int, typer.Option(min=1, help="Rows B_g per gradient.")] = 32,
    rounds: Annotated[int | None, typer.Option(help="Maximum number of rounds.")] = None,
    gradient_noise: Annotated[float, typer.Option(help="Standard deviation σ_g of one row's gradient.")] = 0.0,
    value_noise: Annotated[float, typer.Option(help="Standard deviation σ_ζ of one row's value.")] = 0.0,
    heterogeneity: Annotated[float, typer.Option(help="σ, the scale of the gap to the worst client.")] = 0.0,
    switch_share: Annotated[
        float, typer.Option(help="Lower bound κ on the share of feasible rounds; needed if m < n.")
    ] = 0.05,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compute the settings that guarantee an accuracy: rounds, batch sizes, step size and softmax sharpness α.

    They come from the convergence theorems of the paper. The exit code is 1 if the accuracy cannot be reached.
    """
    from softswitch.theory.plan import plan as make_plan
    from softswitch.theory.theorems import Constants

    known = Constants(diameter, lipschitz, gradient_noise, value_noise, heterogeneity)
    sampling: dict[str, Any] = {"clients": clients, "participation": participation, "batch_size": batch_size}
    goal: dict[str, Any] = {"delta": delta, "epsilon": epsilon, "rounds": rounds, "switch_share": switch_share}
    planned = make_plan(known, **sampling, local_steps=local_steps, **goal)
    console = SafeConsole()
    if json_output:
        typer.echo(json.dumps(planned.to_dict(), indent=2, ensure_ascii=False))
    else:
        if planned.met:
            console.print(planned.table())
        for line in (planned.advice, *(f"Warning: {warning}" for warning in planned.warnings)):
            console.print(line, highlight=False)
    if not planned.met:
        raise typer.Exit(1)
