"""What an experiment is, and what comes out of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import count
from typing import Any

from matplotlib.figure import Figure

from softswitch.results.result import Result

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
        together: experiments with the same word here share runs, and so a process; none: it shares no runs.
    """

    name: str
    shows: str
    run: Callable[[Scale], Outcome]
    extra: str = ""
    seeds: int = 10
    together: str = ""

    def scale(self, seeds: int | None = None, quick: bool = False, progress: bool | None = None) -> Scale:
        """How much to run: with so many seeds, or its own number of them."""
        return Scale(seeds or (QUICK_SEEDS if quick else self.seeds), quick, progress)

    @property
    def missing(self) -> str:
        """What has to be installed first; nothing where all is there."""
        needed = EXTRAS.get(self.extra)
        if needed is None or find_spec(needed) is not None:
            return ""
        return f"{self.name} needs {needed}: pip install 'softswitch[{self.extra}]'"
