"""The command around the carts of the safe reinforcement-learning task: play."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console


def play(
    policy: Annotated[Path | None, typer.Option(help="A policy.npz written by an earlier call; or train one.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of training, where no policy is given.")] = 300,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Of training and of the episodes shown.")] = 100,
    out: Annotated[Path, typer.Option(help="Folder for the pictures, and for the policy.")] = Path("play"),
) -> None:
    """Show a policy that was trained on carts of three planets: an animated GIF of an episode on each."""
    try:
        from softswitch_experiments.tasks.safe_rl.show import show  # Gymnasium draws, and is an extra
    except ImportError as error:
        raise typer.BadParameter(f"play needs Gymnasium and pygame: pip install 'softswitch[rl]' ({error})") from error
    from softswitch_experiments.tasks.safe_rl import PLANETS, load_policy, save_policy, train_policy

    console = Console()
    if policy is None:
        saved = out / "policy.npz"
        save_policy(train_policy(rounds, seed), saved)
        console.print(f"Policy: {saved}", highlight=False)
    else:
        saved = policy
    try:
        loaded = load_policy(saved)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    for planet in PLANETS:
        shown = show(loaded, planet, seed, out / f"{planet}.gif")
        told = (
            f"{planet}: {shown.steps} steps, cost {shown.cost}, discounted {shown.discounted_cost:.1f} → {shown.file}"
        )
        console.print(told, highlight=False)
    console.print("Budgets, for the mean of many episodes' discounted cost: 25 to 35.", highlight=False)
