"""Experiments and their outcomes."""

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
"""Module that each extra installs."""


@dataclass(frozen=True)
class Scale:
    """Size of an experiment.

    Attributes:
        runs: Results to be written, by the name of the run.
    """

    seeds: int = 5  # number of seeds
    quick: bool = False  # run a short version, whose claims need not hold
    progress: bool | None = None  # show progress bars. Default: on a terminal only
    runs: dict[str, Result] = field(default_factory=dict, compare=False, repr=False)

    def pick(self, full: Any, quick: Any) -> Any:
        """Return the first value for a full experiment, the second for a quick one."""
        return quick if self.quick else full

    def add_runs(self, name: str, results: Sequence[Result]) -> None:
        """Add one run per seed to those to be written, under a name that is valid for a folder."""
        for result in results:
            base = re.sub(r"[^\w.=]+", "-", f"{name} seed {result.seed}").strip("-")
            candidates = (base if i == 1 else f"{base}-{i}" for i in count(1))
            self.runs[next(name for name in candidates if name not in self.runs)] = result


@dataclass(frozen=True)
class Claim:
    """A statement that an experiment tests, whether it held, and the measured values."""

    statement: str
    held: bool
    measured: str

    def __str__(self) -> str:
        return f"{'held' if self.held else 'did NOT hold'}: {self.statement} — {self.measured}"


@dataclass(frozen=True)
class Outcome:
    """The figure of an experiment, the tables behind it, and its claims."""

    figure: Figure
    tables: Mapping[str, Sequence[Row]]
    claims: tuple[Claim, ...]


@dataclass(frozen=True)
class Experiment:
    """A figure or table of the paper."""

    name: str  # name on the command line
    summary: str  # description on one line
    run: Callable[[Scale], Outcome]  # function that runs it
    extra: str = ""  # extra of the package that it needs, if any
    seeds: int = 10  # number of seeds of the full version
    group: str = ""  # experiments of the same group share runs and therefore a process. Default: no shared runs

    def scale(self, seeds: int | None = None, quick: bool = False, progress: bool | None = None) -> Scale:
        """Return the size to run, with the default number of seeds if none is given."""
        return Scale(seeds or (QUICK_SEEDS if quick else self.seeds), quick, progress)

    @property
    def missing_dependency(self) -> str:
        """A message if a required extra is not installed; otherwise empty."""
        module = EXTRAS.get(self.extra)
        if module is None or find_spec(module) is not None:
            return ""
        return f"{self.name} needs {module}: pip install 'softswitch[{self.extra}]'"
