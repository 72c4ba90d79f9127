"""The leaderboard: runs all cells on every core, and stores each in a file."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from softswitch.support.files import make_folder, read_text, write_atomically
from softswitch_experiments.leaderboard.cell import Effort, run_cell
from softswitch_experiments.leaderboard.methods import BenchMethod
from softswitch_experiments.leaderboard.tasks import MAIN, OTHERS, BenchTask, Scheme


class CellKey(NamedTuple):
    """Names that identify a cell."""

    task: str
    method: str
    scheme: Scheme


class CellStore:
    """A folder with one file per cell. Cells of another effort are ignored.

    Args:
        folder: The folder; it is created.
        effort: Computation per cell.
    """

    def __init__(self, folder: Path, effort: Effort) -> None:
        self.folder, self.effort = folder, effort
        make_folder(folder / "cells")

    def path(self, task: str, method: str, scheme: str) -> Path:
        """Return the file of a cell."""
        name = "--".join(re.sub(r"\W+", "-", part).strip("-").lower() for part in (task, scheme, method))
        return self.folder / "cells" / f"{name}.json"

    def read(self, key: CellKey) -> dict[str, Any] | None:
        """Return the content of a cell, or None if it has not been run."""
        path = self.path(key.task, key.method, key.scheme.name)
        if not path.exists():
            return None
        cell: dict[str, Any] = json.loads(read_text(path))
        return cell if cell["effort"] == asdict(self.effort) else None

    def write(self, cell: dict[str, Any]) -> None:
        """Write a cell."""
        path = self.path(cell["task"], cell["method"], cell["scheme"])
        write_atomically(path, json.dumps(cell, indent=1, ensure_ascii=False).encode(), durable=False)


@dataclass(frozen=True)
class Board:
    """Methods × tasks × schemes."""

    methods: Sequence[BenchMethod]
    tasks: Sequence[BenchTask]
    schemes: Sequence[Scheme] = OTHERS  # schemes in addition to the main one, for the tasks with several

    def keys(self) -> Iterator[CellKey]:
        """Yield all cells by task, with the main scheme of all tasks first."""
        for scheme in (MAIN, *self.schemes):
            for task in self.tasks:
                if scheme != MAIN and not task.several:
                    continue
                for method in self.methods:
                    if task.gradients or method.simulators:
                        yield CellKey(task.name, method.name, scheme)

    def run(self, store: CellStore, jobs: int, report: Callable[[CellKey, dict[str, Any]], None]) -> None:
        """Run the cells that are not stored.

        Args:
            store: Where cells are kept.
            jobs: Number of processes. With 1, cells run in this process.
            report: Function that is called with each finished cell.
        """
        missing = [key for key in self.keys() if store.read(key) is None]
        cells = self._run_here(missing, store.effort) if jobs == 1 else _run_in_processes(missing, store.effort, jobs)
        for key, cell in cells:
            store.write(cell)
            report(key, cell)

    def _run_here(self, keys: Sequence[CellKey], effort: Effort) -> Iterator[tuple[CellKey, dict[str, Any]]]:
        tasks, methods = {task.name: task for task in self.tasks}, {method.name: method for method in self.methods}
        for key in keys:
            yield key, run_cell(tasks[key.task], methods[key.method], key.scheme, effort)


def _run_in_processes(keys: Sequence[CellKey], effort: Effort, jobs: int) -> Iterator[tuple[CellKey, dict[str, Any]]]:
    """Run cells of the built-in tasks and methods in processes with one thread each."""
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_use_one_thread) as pool:
        running: dict[Future[dict[str, Any]], CellKey] = {}
        waiting = iter(keys)
        try:
            while True:
                for key in waiting:
                    running[pool.submit(_run_by_name, key, effort)] = key
                    if len(running) > 2 * jobs:
                        break
                if not running:
                    return
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    yield running.pop(future), future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _use_one_thread() -> None:
    os.environ["NPROC"] = "1"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false".strip()


def _run_by_name(key: CellKey, effort: Effort) -> dict[str, Any]:
    from softswitch_experiments.leaderboard.methods import METHODS
    from softswitch_experiments.leaderboard.tasks import TASKS

    task = next(task for task in TASKS if task.name == key.task)
    method = next(method for method in METHODS if method.name == key.method)
    return run_cell(task, method, key.scheme, effort)
