"""The SPIDER penalty against switching subgradients, on the kind of task that "466 times fewer data passes" is said of.

``python -m benchmarks.spider_claim [--quick] [--untuned] [--rows 2000 32561] [--seeds 5] [--save FILE]``
prints the tables of docs/spider-claim.md. One owner of all rows, non-convex losses, one expectation as the constraint.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.spider_claim.finite_sums import FiniteSum, of_adult
from benchmarks.spider_claim.loops import LOOPS
from benchmarks.spider_claim.trial import GOALS, ROUGH, Aim, Effort, Found, by_default, times, tried, with_one_batch

ALL_ROWS = 32_561
QUICK = Effort(points=1, seeds=1, rows=30_000, rounds=10)
BATCH = 128
UNTUNED = (2, 8, 32, 128, 512)


def compared(task: FiniteSum, effort: Effort) -> list[Found]:
    """Every method on one task."""
    aim = Aim.of(task)
    ours = [by_default(aim, batch, effort) for batch in (None, BATCH)]
    return [*(tried(aim, loop, effort) for loop in LOOPS), *ours]


def table(task: FiniteSum, found: Sequence[Found]) -> Iterator[str]:
    """Passes and ratios to the first method in Markdown, line by line."""
    spider = found[0]
    heads = [f"to {goal:.0%}" for goal in GOALS]
    yield f"**{task.name}, {task.count:,} rows**"
    yield ""
    ratios = " | ".join(f"{head}, times SPIDER's" for head in heads)
    yield f"| method | {' | '.join(heads)} | {ratios} | {ROUGH:.0%}-KKT |"
    yield "|---" * (3 + 2 * len(GOALS) - 1) + "|"
    for one in found:
        passes = [_passes(one.passes[goal], one.most) for goal in GOALS]
        against = [_times(one, spider, goal) if one is not spider else "1" for goal in GOALS]
        yield f"| {one.name} | {' | '.join(passes + against)} | {_passes(one.stationary, one.most)} |"
    yield ""


def untuned(task: FiniteSum, effort: Effort) -> Iterator[str]:
    """SPIDER penalty and switching by all rows with one step and one batch, in Markdown, line by line."""
    aim = Aim.of(task)
    most = effort.rows / task.count, float(effort.rounds)
    yield f"**{task.name}, {task.count:,} rows, nothing tuned, to {ROUGH:.0%}**"
    yield ""
    yield "| batch | SPIDER penalty | switching, g on all rows | times | a round costs |"
    yield "|---|---|---|---|---|"
    for batch in UNTUNED:
        spider, switching, cost = with_one_batch(aim, batch, effort)
        each = [one / other for one, other in zip(switching, spider, strict=True) if math.isfinite(one + other)]
        ratio = f"{np.median(each):.3g} ({min(each):.3g}–{max(each):.3g})" if each else "–"
        yield f"| {batch} | {_passes(spider, most[0])} | {_passes(switching, most[1])} | {ratio} | {cost:.0f} times |"
    yield ""


def _passes(each: Sequence[float], most: float) -> str:
    """The median, and from where to where; and how many of the seeds, where some did not arrive."""
    if not each:
        return "–"
    there = [one for one in each if math.isfinite(one)]
    if not there:
        return f"not in {most:,.0f}"
    middle = float(np.median(each))
    told = f"{middle:.3g}" if math.isfinite(middle) else f"> {most:,.0f}"
    told += f" ({min(there):.3g}–{max(there):.3g})"
    return told if len(there) == len(each) else f"{told}, {len(there)} of {len(each)}"


def _times(one: Found, spider: Found, goal: float) -> str:
    found = times(one, spider, goal)
    if found is None:
        return "–"
    return f"{'> ' if found.beyond else ''}{found.median:.2g} ({found.least:.2g}–{found.most:.2g})"


def main() -> None:
    """Print a table for every task and number of rows."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spider_claim", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a look: few rows, short runs, nothing to conclude from")
    parser.add_argument("--rows", type=int, nargs="+", default=[ALL_ROWS], help="how many of Adult's training rows")
    parser.add_argument("--untuned", action="store_true", help="one step and one batch for both methods instead")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--save", type=Path, default=None, help="a JSON file for everything found")
    asked = parser.parse_args()
    effort = QUICK if asked.quick else Effort(seeds=asked.seeds)
    kept = []
    for rows in [500] if asked.quick else asked.rows:
        for task in of_adult(None if rows >= ALL_ROWS else rows)[: 1 if asked.quick else None]:
            if asked.untuned:
                print("\n".join(untuned(task, replace(effort, rounds=4000))), flush=True)
                continue
            begin = time.process_time()
            found = compared(task, effort)
            print("\n".join(table(task, found)), flush=True)
            print(f"{time.process_time() - begin:.0f} seconds of a core\n", flush=True)
            kept.append({"task": task.name, "rows": task.count, "found": [vars(one) for one in found]})
            if asked.save:
                asked.save.parent.mkdir(parents=True, exist_ok=True)
                asked.save.write_text(json.dumps(kept, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
