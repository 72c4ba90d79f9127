"""The commands that run experiments: demo, play, paper and bench."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from softswitch.support.console import SafeConsole, say

if TYPE_CHECKING:
    from softswitch_experiments.paper.batch import Batch
    from softswitch_experiments.paper.outputs import Saved


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the figure and the report.")] = Path("demo"),
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds to average over.")] = 5,
    rounds: Annotated[int, typer.Option(min=10, help="Number of rounds.")] = 1000,
) -> None:
    """Compare methods on the breast cancer data by their worst client, and certify a model on new data."""
    from softswitch_experiments.tasks import demo as demonstration

    found = demonstration.run_demo(seeds, rounds)
    SafeConsole().print(demonstration.make_table(found))
    story = demonstration.describe_certification(rounds)
    say(story, wrap=True)
    figure, report = demonstration.write_demo(found, out, story)
    say(f"{found.seconds:.1f} s. Figure: {figure}  Report: {report}")


def play(
    policy: Annotated[Path | None, typer.Option(help="File policy.npz of an earlier call. Default: train one.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Number of training rounds without --policy.")] = 300,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seed of training and of the episodes.")] = 100,
    out: Annotated[Path, typer.Option(help="Folder for the pictures and the policy.")] = Path("play"),
) -> None:
    """Train or load a policy that balances carts on three planets, and write an animated GIF of an episode on each."""
    try:
        from softswitch_experiments.tasks.safe_rl.show import show  # Gymnasium draws, and is an extra
    except ImportError as error:
        raise typer.BadParameter(f"play needs Gymnasium and pygame: pip install 'softswitch[rl]' ({error})") from error
    from softswitch_experiments.tasks.safe_rl import PLANETS, load_policy, save_policy, train_policy

    if policy is None:
        policy = out / "policy.npz"
        save_policy(train_policy(rounds, seed), policy)
        say(f"Policy: {policy}")
    loaded = load_policy(policy)
    for planet in PLANETS:
        shown = show(loaded, planet, seed, out / f"{planet}.gif")
        say(f"{planet}: {shown.steps} steps, cost {shown.cost}, discounted {shown.discounted_cost:.1f} → {shown.file}")
    say("Budgets for the mean discounted cost of many episodes: 25 to 35.")


def paper(
    name: Annotated[str | None, typer.Argument(help="Name of the experiment, or 'all'. Default: list them.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Number of seeds. With --quick, the default is 2.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A short version, whose claims need not hold.")] = False,
    out: Annotated[Path, typer.Option(help="Folder that gets one folder per experiment.")] = Path("results"),
    jobs: Annotated[int | None, typer.Option(min=1, help="Number of processes. Default: one per core.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Repeat experiments that have results of this code.")] = False,
) -> None:
    """Regenerate a figure of the paper as PNG and SVG, its numbers as CSV, and check its claims.

    If 'all' is interrupted, the same command keeps finished experiments and runs the remaining ones.
    """
    from softswitch_experiments.paper import EXPERIMENTS
    from softswitch_experiments.paper.batch import Batch, format_duration

    if name is None:
        table = Table("name", "what it shows", title="softswitch paper NAME, or all")
        for experiment in EXPERIMENTS.values():
            table.add_row(experiment.name, experiment.summary)
        SafeConsole().print(table)
        return
    if name != "all" and name not in EXPERIMENTS:
        raise typer.BadParameter(f"must be 'all' or one of {', '.join(EXPERIMENTS)}, but is {name!r}")
    start = time.perf_counter()
    chosen = list(EXPERIMENTS.values()) if name == "all" else [EXPERIMENTS[name]]
    if missing := [experiment.missing_dependency for experiment in chosen if experiment.missing_dependency]:
        raise typer.BadParameter("; ".join(missing))
    batch = Batch(chosen, out, seeds, quick, jobs, force)
    if batch.reused:
        names = ", ".join(saved.name for saved in batch.reused)
        say(f"Kept results of the same code and settings: {names} (--force repeats them).")
    if len(batch.names) > 1:
        say(f"{len(batch.names)} experiments: about {format_duration(batch.remaining())}, estimated from earlier runs.")
    try:
        saved, failed = _run_batch(batch)
    except KeyboardInterrupt:
        say("Interrupted. Finished experiments are kept; the same command runs the remaining ones.", style="bold")
        raise typer.Exit(130) from None  # the exit code of a program that Ctrl-C ended
    claims = [claim for one in (*batch.reused, *saved) for claim in one.claims]
    duration = format_duration(time.perf_counter() - start)
    say(f"{sum(claim.held for claim in claims)} of {len(claims)} claims held; {duration}.")
    if failed:
        say(f"{', '.join(failed)} failed; see above. The same command repeats only failed ones.", style="bold red")
        raise typer.Exit(1)


def _run_batch(batch: Batch) -> tuple[list[Saved], list[str]]:
    """Run a batch, print each result and the remaining time, and return the results and the names of failures."""
    from softswitch_experiments.paper.batch import format_duration
    from softswitch_experiments.paper.outputs import Saved

    count, saved, failed = len(batch.names), [], []
    for one in batch.reused if count == 0 else ():
        _print_saved(one)
    for outcome in batch.run():
        if outcome is None:
            continue
        if isinstance(outcome, Saved):
            saved.append(outcome)
            _print_saved(outcome)
        else:
            failed.append(outcome.name)
            say(f"{outcome.name} FAILED: {outcome.reason}", style="bold red")
        if (done := len(saved) + len(failed)) < count:
            say(f"  {done} of {count} done, about {format_duration(batch.remaining())} left")
    return saved, failed


def _print_saved(saved: Saved) -> None:
    kept = ", kept" if saved.reused else ""
    say(f"{saved.name} ({saved.seeds} seeds, {saved.seconds:.1f} s{kept}) → {saved.files[0]}", style="bold")
    for claim in saved.claims:
        say(f"  {claim}", style="green" if claim.held else "red")


def bench(
    out: Annotated[Path, typer.Option(help="Folder for results, figures and the page.")] = Path("bench"),
    tasks: Annotated[list[str] | None, typer.Option("--task", help="Only tasks whose name contains this.")] = None,
    methods: Annotated[
        list[str] | None, typer.Option("--method", help="Only methods whose name contains this.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Few settings, few seeds and a small budget.")] = False,
    seeds: Annotated[int | None, typer.Option(min=1, help="Number of new seeds to evaluate with.")] = None,
    one_scheme: Annotated[bool, typer.Option("--one-scheme", help="Only the main participation scheme.")] = False,
    jobs: Annotated[int | None, typer.Option(min=1, help="Number of processes. Default: one per core or GPU.")] = None,
) -> None:
    """Compare all methods on the same tasks, with the same tuning, evaluated on new seeds.

    If it is interrupted, the same command keeps finished results and computes the remaining ones.
    """
    import jax

    from softswitch.support.processes import thread_count
    from softswitch_experiments.leaderboard.board import Board, CellStore
    from softswitch_experiments.leaderboard.cell import QUICK, Effort
    from softswitch_experiments.leaderboard.methods import METHODS
    from softswitch_experiments.leaderboard.page import write_page
    from softswitch_experiments.leaderboard.tasks import MAIN, OTHERS, TASKS

    chosen = [one for one in METHODS if _matches(one.name, methods)]
    on = [one for one in TASKS if _matches(one.name, tasks)]
    for option, matches, texts, known in (("--task", on, tasks, TASKS), ("--method", chosen, methods, METHODS)):
        if not matches:
            names = "; ".join(one.name for one in known)
            raise typer.BadParameter(f"{option}: no name contains any of {texts}; there are {names}")
    effort = replace(QUICK if quick else Effort(), **({} if seeds is None else {"seeds": seeds}))
    board, store = Board(chosen, on, () if one_scheme else OTHERS), CellStore(out, effort)
    keys = list(board.keys())
    done = sum(store.read(key) is not None for key in keys)
    say(f"{len(keys)} cells, {done} of them finished; main scheme: {MAIN.name}")

    def print_cell(key: Any, cell: dict[str, Any]) -> None:
        nonlocal done
        done += 1
        best = min(run["merit"] for run in cell["runs"]["passes"])
        name = f"{done}/{len(keys)}  {key.task} · {key.scheme.name} · {key.method}"
        say(f"{name}: merit {best:.4f}, {cell['seconds']:.0f} s", wrap=True)

    try:
        board.run(store, jobs or (thread_count() if jax.default_backend() == "cpu" else 1), print_cell)
    finally:
        if cells := [cell for key in keys if (cell := store.read(key))]:
            say(f"Page: {write_page(out, cells, chosen, on)}")


def _matches(name: str, texts: list[str] | None) -> bool:
    return not texts or any(text.lower() in name.lower() for text in texts)
