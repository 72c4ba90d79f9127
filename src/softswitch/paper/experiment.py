"""What an experiment is, what comes out of it, and how that is written down."""

from __future__ import annotations

import csv
import json
import re
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from softswitch.results.result import Result
from softswitch.runs.folder import write_result

Row = dict[str, Any]
QUICK_SEEDS = 2
EXTRAS = {"fairness": "fairlearn"}
"""The module by which an extra is known to be there."""


@dataclass(frozen=True)
class Scale:
    """How much of an experiment to run.

    Attributes:
        seeds: how many seeds.
        quick: a short version that shows that everything works; its claims need not hold.
        progress: show progress bars; None: on a terminal only.
        runs: the experiment's runs by name, to be written down.
    """

    seeds: int = 5
    quick: bool = False
    progress: bool | None = None
    runs: dict[str, Result] = field(default_factory=dict, compare=False, repr=False)

    def pick(self, full: Any, quick: Any) -> Any:
        """One value for the full experiment, another for the quick one."""
        return quick if self.quick else full

    def keep(self, name: str, results: Sequence[Result]) -> None:
        """Keep runs to be written down: one a seed, under a name made fit for a folder."""
        for result in results:
            base = re.sub(r"[^\w.=]+", "-", f"{name} seed {result.seed}").strip("-")
            free = (base if i == 1 else f"{base}-{i}" for i in count(1))
            self.runs[next(name for name in free if name not in self.runs)] = result


@dataclass(frozen=True)
class Claim:
    """A statement that an experiment puts to the test.

    Attributes:
        statement: what is claimed.
        held: whether it held.
        measured: the figures that decide.
    """

    statement: str
    held: bool
    measured: str

    def __str__(self) -> str:
        return f"{'held' if self.held else 'did NOT hold'}: {self.statement} — {self.measured}"


@dataclass(frozen=True)
class Outcome:
    """What an experiment found.

    Attributes:
        figure: the picture.
        tables: the numbers behind it, by name; each a list of rows.
        claims: what was put to the test.
    """

    figure: Figure
    tables: Mapping[str, Sequence[Row]]
    claims: tuple[Claim, ...]


@dataclass(frozen=True)
class Experiment:
    """A figure or table of the paper.

    Attributes:
        name: what it is called on the command line.
        shows: one line on what it shows.
        run: runs it.
        extra: the extra of the package that it needs, if any.
        seeds: how many seeds the full version has.
    """

    name: str
    shows: str
    run: Callable[[Scale], Outcome]
    extra: str = ""
    seeds: int = 10

    @property
    def missing(self) -> str:
        """What has to be installed first; nothing where all is there."""
        needed = EXTRAS.get(self.extra)
        if needed is None or find_spec(needed) is not None:
            return ""
        return f"{self.name} needs {needed}: pip install 'softswitch[{self.extra}]'"


@dataclass(frozen=True)
class Written:
    """An experiment that was run and written down; ``seconds`` is what its runs took."""

    experiment: Experiment
    outcome: Outcome
    files: tuple[Path, ...]
    seeds: int
    seconds: float


def regenerate(
    experiments: Iterable[Experiment], out: Path, *, seeds: int | None = None, quick: bool = False
) -> Iterator[Written]:
    """Run experiments one after another, and write each into ``out/<name>/``; by default with its own number of seeds.

    An experiment's figure is drawn while the next ones run: drawing is Python's work, the rest mostly XLA's.
    """
    waiting: deque[Future[Written]] = deque()
    with ThreadPoolExecutor(1) as writer:
        for experiment in experiments:
            scale = Scale(seeds or (QUICK_SEEDS if quick else experiment.seeds), quick)
            began = time.perf_counter()
            outcome = experiment.run(scale)
            seconds = time.perf_counter() - began
            waiting.append(writer.submit(write, experiment, scale, outcome, seconds, out))
            while waiting and waiting[0].done():
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def write(experiment: Experiment, scale: Scale, outcome: Outcome, seconds: float, out: Path) -> Written:
    """Write figure (PNG, SVG), numbers (CSV), claims (JSON) and every run's folder into ``out/<name>/``."""
    folder = out / experiment.name
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{experiment.name}.{kind}" for kind in ("png", "svg")]
    for file in files:
        outcome.figure.savefig(file, dpi=150)
        outcome.figure.set_layout_engine("none")  # laid out once, not once a file
    for name, rows in outcome.tables.items():
        files.append(folder / f"{name}.csv")
        _write_table(files[-1], rows)
    files.append(folder / "claims.json")
    told = {
        "experiment": experiment.name,
        "shows": experiment.shows,
        "seeds": scale.seeds,
        "quick": scale.quick,
        "seconds": round(seconds, 1),
        "claims": [{"statement": c.statement, "held": bool(c.held), "measured": c.measured} for c in outcome.claims],
    }
    files[-1].write_text(json.dumps(told, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    quick = " --quick" if scale.quick else ""
    command = f"softswitch paper {experiment.name} --seeds {scale.seeds}{quick}"
    shutil.rmtree(folder / "runs", ignore_errors=True)  # of an earlier call with more seeds, say
    for name, result in scale.runs.items():
        write_result(folder / "runs" / name, result, about={"command": command})
    return Written(experiment, outcome, tuple(files), scale.seeds, seconds)


def _write_table(file: Path, rows: Sequence[Row]) -> None:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, columns)
        writer.writeheader()
        writer.writerows(rows)
