"""The command that compares methods."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console


def bench(
    out: Annotated[Path, typer.Option(help="Folder for results, figures and the page; a second call goes on.")] = Path(
        "bench"
    ),
    tasks: Annotated[list[str] | None, typer.Option("--task", help="Tasks whose name has this word; all.")] = None,
    methods: Annotated[
        list[str] | None, typer.Option("--method", help="Methods whose name has this word; all.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A look: few settings, few seeds, a small budget.")] = False,
    seeds: Annotated[int | None, typer.Option(min=1, help="Fresh seeds to judge by.")] = None,
    one_scheme: Annotated[bool, typer.Option("--one-scheme", help="Only the main scheme of participation.")] = False,
    jobs: Annotated[int | None, typer.Option(min=1, help="How many processes; one a core, on a GPU one.")] = None,
    listed: Annotated[bool, typer.Option("--list", help="List tasks and methods, and end.")] = False,
) -> None:
    """Compare every method for this problem on the same tasks, all tuned alike and judged on fresh seeds.

    It can be interrupted: called again with the same folder, it keeps what is finished and goes on with the rest.
    """
    from dataclasses import replace

    from softswitch_experiments.leaderboard.board import Board, CellKey, CellStore
    from softswitch_experiments.leaderboard.cell import QUICK, Effort
    from softswitch_experiments.leaderboard.methods import METHODS
    from softswitch_experiments.leaderboard.page import write_page
    from softswitch_experiments.leaderboard.tasks import MAIN, OTHERS, TASKS

    console = Console()
    chosen = [one for one in METHODS if _wanted(one.name, methods)]
    on = [one for one in TASKS if _wanted(one.name, tasks)]
    if listed:
        for title, some in (("Tasks", on), ("Methods", chosen)):
            console.print(f"{title}: " + "; ".join(one.name for one in some), highlight=False, markup=False)
        return
    for name, some, asked in (("--task", on, tasks), ("--method", chosen, methods)):
        if not some:
            raise typer.BadParameter(f"{name}: nothing has any of the words {asked}; see softswitch bench --list")
    effort = QUICK if quick else Effort()
    effort = effort if seeds is None else replace(effort, seeds=seeds)
    board, store = Board(chosen, on, () if one_scheme else OTHERS), CellStore(out, effort)
    keys = list(board.keys())
    there = sum(store.read(key) is not None for key in keys)
    console.print(f"{len(keys)} cells, {there} there already; main scheme: {MAIN.name}", highlight=False)
    done, began = there, time.perf_counter()

    def tell(key: CellKey, cell: dict[str, Any]) -> None:
        nonlocal done
        done += 1
        left = (time.perf_counter() - began) / (done - there) * (len(keys) - done)
        best = min(run["merit"] for run in cell["runs"]["passes"])
        console.print(
            f"{done}/{len(keys)}  {key.task} · {key.scheme.name} · {key.method}: merit {best:.4f}, "
            f"{cell['seconds']:.0f} s; about {left / 60:.0f} min left",
            highlight=False,
            markup=False,
        )

    try:
        board.run(store, jobs or _processes(), tell)
    finally:
        cells = [cell for key in keys if (cell := store.read(key))]
        if cells:
            console.print(f"Page: {write_page(out, cells, chosen, on)}")


def _wanted(name: str, words: list[str] | None) -> bool:
    return not words or any(word.lower() in name.lower() for word in words)


def _processes() -> int:
    """One a core; a GPU is filled by one."""
    import jax

    from softswitch.support.processes import thread_count

    return thread_count() if jax.default_backend() == "cpu" else 1
