"""A run's numbers for Prometheus: a file that the node exporter's textfile collector reads, so that no port is open."""

from __future__ import annotations

import math
import time
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import numpy as np

from softswitch.results.callbacks import Chunk
from softswitch.results.history import ClientOutcome
from softswitch.support.files import write_atomically

ENDING = ".prom"
"""The collector reads files of this ending only."""


class Metric(NamedTuple):
    """A number that is told.

    Attributes:
        kind: gauge, which goes up and down, or counter, which only goes up.
        help: what it is.
    """

    kind: str
    help: str


METRICS = {
    "round": Metric("gauge", "Rounds done."),
    "rounds": Metric("gauge", "Rounds that there will be."),
    "objective": Metric("gauge", "The worst participant's objective in the last round, as reported."),
    "constraint": Metric("gauge", "The worst participant's constraint in the last round, as reported."),
    "feasible_share": Metric("gauge", "The share of all rounds so far that were feasible, void ones left out."),
    "void_rounds_total": Metric("counter", "Rounds that changed nothing, since too few clients did their part."),
    "clients_counted": Metric("gauge", "Clients that did their part in the last round."),
    "clients_lost": Metric("gauge", "Clients that were asked in the last round and did not do their part."),
    "clients_lost_total": Metric("counter", "The same, over all rounds."),
    "epsilon": Metric("gauge", "The most ε that any client says it has spent, where clients keep their rows private."),
    "run_seconds": Metric("gauge", "Seconds since the run began."),
    "updated_timestamp_seconds": Metric("gauge", "When this was written, in seconds since 1970."),
    "running": Metric("gauge", "1 while the run is under way, 0 once it has ended."),
}
"""All of them, each with softswitch_ before its name."""


class PrometheusTracker:
    """Writes a run's numbers into a file for Prometheus after every chunk of rounds: over Flower, after every round.

    The file is whole at any time. Give it a place in the folder that the node exporter's textfile collector reads. How
    many clients were lost is told over Flower, where clients can be lost.

    Args:
        file: ends in .prom; its folder is made if need be. A file of an earlier run is written over.
        run: what the run is called, the label ``run`` of every number.
    """

    def __init__(self, file: str | Path, *, run: str = "softswitch") -> None:
        self._file = Path(file)
        if self._file.suffix != ENDING:
            raise ValueError(f"file must end in {ENDING}, which is what the collector reads, but is {str(file)!r}")
        self._run = run
        self._values: dict[str, float] = {}
        self._void = self._lost = 0
        self._epsilon = math.nan

    def __call__(self, chunk: Chunk) -> None:
        """Write where the run stands."""
        history = chunk.history
        self._void += int(history.void.sum())
        self._values = {
            "round": chunk.round,
            "rounds": chunk.rounds,
            "objective": float(history.objective[-1]),
            "constraint": float(history.constraint[-1]),
            "feasible_share": chunk.switch_share,
            "void_rounds_total": self._void,
            **self._fates(chunk),
            **self._spent(chunk),
            "run_seconds": chunk.seconds,
            "running": 1.0,
        }
        self._write()

    def close(self) -> None:
        """Say that the run has ended."""
        self._values["running"] = 0.0
        self._write()

    def __enter__(self) -> PrometheusTracker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _fates(self, chunk: Chunk) -> dict[str, float]:
        """How many clients did their part, and how many did not, where clients can be lost."""
        told = chunk.history.per_client
        if told is None or told.outcomes is None:
            return {}
        good = np.isin(told.outcomes, (ClientOutcome.COUNTED, ClientOutcome.VOID))
        lost = (told.outcomes != ClientOutcome.EMPTY) & ~good
        self._lost += int(lost.sum())
        return {
            "clients_counted": int(good[-1].sum()),
            "clients_lost": int(lost[-1].sum()),
            "clients_lost_total": self._lost,
        }

    def _spent(self, chunk: Chunk) -> dict[str, float]:
        """The largest ε that was told so far, where any was."""
        told = chunk.history.per_client
        if told is not None and told.epsilon is not None:
            self._epsilon = float(np.fmax(self._epsilon, np.nanmax(told.epsilon)))
        return {} if math.isnan(self._epsilon) else {"epsilon": self._epsilon}

    def _write(self) -> None:
        told = {**self._values, "updated_timestamp_seconds": time.time()}
        label = self._run.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
        lines = []
        for name, metric in METRICS.items():
            if name in told:
                lines.append(f"# HELP softswitch_{name} {metric.help}")
                lines.append(f"# TYPE softswitch_{name} {metric.kind}")
                lines.append(f'softswitch_{name}{{run="{label}"}} {_number(told[name])}')
        self._file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self._file, ("\n".join(lines) + "\n").encode(), durable=False)


def _number(value: float) -> str:
    """As Prometheus writes it."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)
