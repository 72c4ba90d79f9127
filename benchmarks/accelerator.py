"""Milliseconds a round with many clients, beside a round written by hand: ``python -m benchmarks.accelerator``.

``--profile FOLDER`` also writes what the device did in each round, and prints where the time went.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

import softswitch as ss
from benchmarks import flat
from benchmarks.large_cases import CASES, LOGISTIC, Case
from benchmarks.many_clients import peak_bytes
from benchmarks.probe import probe
from benchmarks.timing import seconds_in_turns

BANDWIDTH = 4.8e12
"""Bytes a second that an H200 reads or writes."""


def engine(case: Case, clients: ss.ClientData, **more: Any) -> Callable[[int], ss.Result]:
    """A function that plays so many rounds by the library."""
    problem, method = case.problem(), case.method()

    def run(rounds: int) -> ss.Result:
        return flat.solve(
            problem,
            clients,
            method,
            rounds=rounds,
            participation=case.asked / case.clients,
            local_steps=case.local_steps,
            batch_size=case.batch,
            replace=True,
            eval_every=0,
            memory=None,
            lower_bound=False,
            progress=False,
            **more,
        )

    return run


def a_round(candidates: dict[str, Callable[[int], Any]], few: int, many: int, repeats: int) -> dict[str, float]:
    """Milliseconds a round of each: of many rounds less few, so that what is done once a run does not count."""
    turns = {
        f"{name} {rounds}": (lambda run=run, rounds=rounds: run(rounds))
        for name, run in candidates.items()
        for rounds in (few, many)
    }
    taken = seconds_in_turns(turns, repeats)
    return {name: 1e3 * (taken[f"{name} {many}"] - taken[f"{name} {few}"]) / (many - few) for name in candidates}


def kernels(run: Callable[[int], Any], rounds: int, folder: Path) -> None:
    """Print where the device's time went, a round."""
    run(rounds)
    with jax.profiler.trace(str(folder)):
        run(rounds)
    file = max(folder.rglob("*.trace.json.gz"), key=lambda one: one.stat().st_mtime)
    events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e.get("name") == "process_name"}
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e.get("name") == "thread_name"}
    spent: Counter[str] = Counter()
    often: Counter[str] = Counter()
    for event in events:
        if event.get("ph") != "X" or "GPU" not in names.get(event["pid"], ""):
            continue
        if not threads.get((event["pid"], event["tid"]), "").startswith("Stream"):
            continue
        spent[event["name"]] += event["dur"]
        often[event["name"]] += 1
    print(
        f"  device busy {sum(spent.values()) / 1e3 / rounds:.3f} ms a round, {sum(often.values()) / rounds:.0f} kernels"
    )
    for name, micro in spent.most_common(30):
        print(f"    {micro / 1e3 / rounds:8.4f} ms {often[name] / rounds:7.1f}×  {name[:110]}")


def very_many(clients: int, rounds: int, repeats: int) -> None:
    """Logistic regression with that many clients resident: what the host needs, and client updates a second."""
    case = Case(**{**LOGISTIC.__dict__, "clients": clients, "asked": min(LOGISTIC.asked, clients)})
    # On a processor JAX arrays, which are taken as they are; to an accelerator what the host has is sent.
    columns: dict[str, Any] = case.jax_columns() if jax.default_backend() == "cpu" else case.columns()
    owners = case.owners()
    size = sum(column.nbytes for column in columns.values())
    began = time.perf_counter()
    data = ss.ClientData.from_arrays(columns, client=owners)
    made, peak = time.perf_counter() - began, peak_bytes()
    del columns, owners
    at: list[tuple[int, float]] = []
    run = engine(case, data, callbacks=[lambda chunk: at.append((chunk.round, time.perf_counter()))])
    rates = []
    for _ in range(1 + repeats):  # the first compiles
        at.clear()
        run(rounds)
        rates.append(1e3 * (at[-1][1] - at[0][1]) / (at[-1][0] - at[0][0]))
    found = statistics.median(rates[1:])
    print(
        f"{clients:,} clients × {case.rows} rows × {case.features} features, {size / 1e9:.1f} GB: taken in within "
        f"{made:.0f} s, the host's peak {peak / 1e9:.1f} GB, {peak / size:.2f}× the data; m = {case.asked:,}, "
        f"{found:.3f} ms a round, {1e-3 * case.asked / found:.1f} million client updates a second; "
        f"peak of the whole run {peak_bytes() / 1e9:.1f} GB"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", type=int, nargs="*", help="lines of the table, from 0")
    parser.add_argument("--scale", type=int, default=1, help="that many times fewer clients, to try it")
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--profile", type=Path)
    parser.add_argument("--clients", type=int, help="instead: logistic regression with so many clients")
    asked = parser.parse_args()
    print(f"{jax.devices()[0].device_kind}, JAX {jax.__version__}; ms a round", flush=True)
    if asked.clients is not None:
        very_many(asked.clients, asked.rounds, asked.repeats)
        return
    for number in asked.only if asked.only is not None else range(len(CASES)):
        big = CASES[number]
        part = {"clients": big.clients // asked.scale, "asked": max(1, big.asked // asked.scale)}
        case = Case(**{**big.__dict__, **part})
        began = time.perf_counter()
        clients = ss.ClientData.from_arrays(case.columns(), client=case.owners())
        made = time.perf_counter() - began
        runs: dict[str, Callable[[int], Any]] = {
            "engine": engine(case, clients),
            "probe": probe(case, clients.rows.columns, case.start()),
        }
        if asked.profile is not None:
            for name, run in runs.items():
                print(name, case.name, flush=True)
                kernels(run, 20, asked.profile / f"{number}-{name}")
        found = a_round(runs, max(1, asked.rounds // 10), asked.rounds, asked.repeats)
        floor = 1e3 * case.least_bytes / BANDWIDTH
        print(
            f"| {case.name} | {found['engine']:.3f} | {found['probe']:.3f} | {found['engine'] / found['probe']:.2f} | "
            f"{floor:.3f} | data in {made:.1f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
