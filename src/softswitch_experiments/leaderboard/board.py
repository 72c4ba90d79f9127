"""All cells, on every core: those that are in the book already are kept."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any, NamedTuple

from softswitch_experiments.leaderboard.bench_method import BenchMethod
from softswitch_experiments.leaderboard.bench_task import BenchTask
from softswitch_experiments.leaderboard.one_cell import Effort, played
from softswitch_experiments.leaderboard.scheme import MAIN, OTHERS, Scheme
from softswitch_experiments.leaderboard.score_book import ScoreBook


class Place(NamedTuple):
    """A cell by its names."""

    task: str
    method: str
    scheme: Scheme


@dataclass(frozen=True)
class Board:
    """Methods × tasks × schemes.

    Attributes:
        methods: which.
        tasks: which.
        schemes: beside the main one, for the tasks that have several.
    """

    methods: Sequence[BenchMethod]
    tasks: Sequence[BenchTask]
    schemes: Sequence[Scheme] = OTHERS

    def places(self) -> Iterator[Place]:
        """All cells, a task at a time: the main scheme of all tasks first."""
        for scheme in (MAIN, *self.schemes):
            for task in self.tasks:
                if scheme != MAIN and not task.several:
                    continue
                for method in self.methods:
                    if task.gradients or method.simulators:
                        yield Place(task.name, method.name, scheme)

    def play(self, book: ScoreBook, effort: Effort, jobs: int, tell: Callable[[Place, dict[str, Any]], None]) -> None:
        """Play what is not in the book.

        Args:
            book: where it is kept.
            effort: how much is spent on a cell.
            jobs: how many processes; 1: this one.
            tell: is told of each cell.
        """
        missing = [place for place in self.places() if book.read(place.task, place.method, place.scheme.name) is None]
        for place, found in _one_by_one(self, missing, effort) if jobs == 1 else _side_by_side(missing, effort, jobs):
            book.write(found)
            tell(place, found)


def _one_by_one(board: Board, places: Sequence[Place], effort: Effort) -> Iterator[tuple[Place, dict[str, Any]]]:
    tasks, methods = {one.name: one for one in board.tasks}, {one.name: one for one in board.methods}
    for place in places:
        yield place, played(tasks[place.task], methods[place.method], place.scheme, effort)


def _side_by_side(places: Sequence[Place], effort: Effort, jobs: int) -> Iterator[tuple[Place, dict[str, Any]]]:
    """In processes with one thread each; only tasks and methods that are the library's own can be found there."""
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_alone) as pool:
        waiting: dict[Future[dict[str, Any]], Place] = {}
        coming = iter(places)
        try:
            while True:
                for place in coming:
                    waiting[pool.submit(_by_name, place, effort)] = place
                    if len(waiting) > 2 * jobs:
                        break
                if not waiting:
                    return
                done, _ = wait(waiting, return_when=FIRST_COMPLETED)
                for future in done:
                    yield waiting.pop(future), future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _alone() -> None:
    """One thread of XLA's: the other cores have processes of their own."""
    os.environ["NPROC"] = "1"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false".strip()


def _by_name(place: Place, effort: Effort) -> dict[str, Any]:
    from softswitch_experiments.leaderboard.contestants import METHODS
    from softswitch_experiments.leaderboard.contests import TASKS

    task = next(one for one in TASKS if one.name == place.task)
    method = next(one for one in METHODS if one.name == place.method)
    return played(task, method, place.scheme, effort)
