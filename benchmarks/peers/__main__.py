"""Compare softswitch with its peers: ``python -m benchmarks.peers``; prints the tables of docs/peers.md."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.peers import accuracy, same_steps, solutions, updates
from benchmarks.peers.candidates import CANDIDATES, Candidate, chosen
from benchmarks.peers.environments import python_of
from benchmarks.peers.workers import CORES, two_cores
from benchmarks.peers.workloads import WORKLOADS

PARTS = ("methods", "updates", "accuracy", "solutions")


def arguments() -> argparse.Namespace:
    """What is asked for on the command line."""
    peers = sorted({one.peer for one in CANDIDATES} | set(solutions.SOLVERS))
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--only", nargs="+", default=(), choices=peers, help="these peers beside softswitch")
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS)
    parser.add_argument("--work", nargs="+", default=(), help="work and tables whose name has one of these words")
    parser.add_argument("--quick", action="store_true", help="a look: short turns, small tables")
    parser.add_argument("--turns", type=int, default=5, help="how often each candidate is timed")
    parser.add_argument("--seconds", type=float, default=1.0, help="of a turn, about")
    parser.add_argument("--threads", type=int, default=2, choices=(1, 2), help="for PyTorch's networks, at most")
    parser.add_argument("--accuracy", type=float, default=0.95, help="what the race is to")
    parser.add_argument("--save", type=Path, default=None, help="a JSON file for everything found")
    return parser.parse_args()


def installed(candidates: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
    """Those whose environment is there or can be made; of the others it is said."""
    kept = []
    for one in candidates:
        try:
            python_of(one.environment)
        except subprocess.CalledProcessError as error:
            print(f"{one.name} could not be installed: {error}", file=sys.stderr)
        else:
            kept.append(one)
    return tuple(kept)


def main() -> None:
    """Run what is asked for; every table is printed when it is found."""
    asked = arguments()
    two_cores()
    found: dict[str, Any] = {"load before": os.getloadavg()}
    print(f"{CORES} cores; load of the machine before: {os.getloadavg()[0]:.1f}\n", flush=True)

    def keep(part: str, rows: Any) -> None:
        found.setdefault(part, []).extend(rows)
        if asked.save:
            asked.save.parent.mkdir(parents=True, exist_ok=True)
            asked.save.write_text(json.dumps(found, indent=2), encoding="utf-8")

    def wanted(name: str) -> bool:
        return not asked.work or any(word in name for word in asked.work)

    candidates = installed(tuple(replace(one, most_threads=asked.threads) for one in chosen(asked.only)))
    if "methods" in asked.parts:
        rows = same_steps.compared(asked.only)
        keep("methods", rows)
        print("\n".join(same_steps.table(rows)), flush=True)
    works = [work for work in WORKLOADS if wanted(work.name)]
    if "updates" in asked.parts:
        for model in dict.fromkeys(work.model for work in works):
            apart = updates.disagreement(next(work for work in works if work.model == model), candidates)
            print(f"{model}: after a round all agree to {max(apart.values()):.0e}", flush=True)
        print()
        for work in works:
            rows = updates.measured(work, candidates, *((2, 0.1) if asked.quick else (asked.turns, asked.seconds)))
            keep("updates", rows)
            print("\n".join(updates.table(rows)), flush=True)
    if "accuracy" in asked.parts:
        for work in works:
            if work.model == "cnn":
                goal, turns, rounds = (0.5, 1, 20) if asked.quick else (asked.accuracy, min(3, asked.turns), 400)
                shortened = replace(work, rows=40) if asked.quick else work
                rows = accuracy.raced(shortened, candidates, turns, goal, rounds, 5)
                keep("accuracy", rows)
                print("\n".join(accuracy.table(rows, goal)), flush=True)
    if "solutions" in asked.parts:
        for case in solutions.cases(asked.quick):
            if wanted(case.name):
                rows = solutions.solved(case, asked.only, quick=asked.quick, turns=min(3, asked.turns))
                keep("solutions", rows)
                print("\n".join(solutions.table(case, rows)), flush=True)


if __name__ == "__main__":
    main()
