"""How near our method comes to the optimum of every case: ``python -m benchmarks.tables``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
from rich.console import Console
from rich.table import Table

from benchmarks.tables import networks, results
from benchmarks.tables.cases import chosen
from benchmarks.tables.ours import RECIPES


def arguments() -> argparse.Namespace:
    """What is asked for on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--half", choices=("tuned", "held-out", "all"), default="tuned")
    parser.add_argument("--only", nargs="+", default=(), help="cases whose name has one of these words")
    parser.add_argument("--participation", nargs="*", type=float, default=(1.0, 0.1), help="none: ours is not run")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--recipe", choices=RECIPES, default="defaults")
    parser.add_argument("--references", action="store_true", help="what is known of the cases")
    parser.add_argument("--margins", action="store_true", help="what keeping a smaller bound would cost at best")
    parser.add_argument("--opponents", action="store_true", help="scikit-learn, Fairlearn, tuned baselines")
    parser.add_argument("--networks", action="store_true", help="three cases with a network, against a grid")
    parser.add_argument("--figure", default="")
    parser.add_argument("--save", type=Path, default=None, help="a JSON file for everything found")
    return parser.parse_args()


def main() -> None:
    """Run what is asked for; every row is printed when it is found, and all of them at the end of their kind."""
    asked = arguments()
    console = Console(width=150)
    cases = chosen(asked.half, tuple(asked.only))
    found: dict[str, list[dict[str, Any]]] = {}

    def each(name: str, printed: Callable[[list[dict[str, Any]]], Table], makers: Sequence[Callable[[], Any]]) -> None:
        rows: list[dict[str, Any]] = []
        for make in makers:
            made = make()
            jax.clear_caches()  # a process may hold only so many compiled programs
            new = made if isinstance(made, list) else [made]
            console.print(printed(new))
            rows += new
            found[name] = rows
            if asked.save:
                asked.save.write_text(json.dumps(found, indent=2), encoding="utf-8")
        if len(makers) > 1:
            console.print(printed(rows))

    if asked.references:
        each("references", results.references, [partial(results.reference_row, case) for case in cases])
    if asked.margins:
        each("margins", results.margins_table, [partial(results.margin_row, case) for case in cases])
    if asked.participation:
        makers = [
            partial(results.row_of, case, share, asked.seeds, asked.recipe)
            for share in asked.participation
            for case in cases
        ]
        each("ours", results.printed, makers)
    if asked.opponents:
        each("opponents", results.opponents_table, [partial(results.opponent_rows, case) for case in cases])
    if asked.networks:
        own = [case for case in cases if case.name in networks.NETWORKS]
        each("networks", networks.printed, [partial(networks.row_of, case, asked.recipe) for case in own])
    if asked.figure:
        results.draw(found, asked.figure)


if __name__ == "__main__":
    main()
