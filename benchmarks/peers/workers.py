"""A script under a peer's Python that waits for orders: peers can then take turns, all of them warm."""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.peers.candidates import Candidate
from benchmarks.peers.environments import FOLDER, python_of

CORES = 2
"""For every candidate."""
HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def two_cores() -> None:
    """Keep this process and all that it starts to two cores, the first two that it may use."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])


def surroundings(threads: int, *folders: Path) -> dict[str, str]:
    """The environment's variables for a script: threads, no accelerator, and where its neighbours are."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    paths = os.pathsep.join(str(folder.resolve()) for folder in folders)
    quiet = {"JAX_PLATFORMS": "cpu", "PYTHONPATH": paths, "FLWR_TELEMETRY_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}
    return os.environ | dict.fromkeys(names, str(threads)) | quiet


class Worker:
    """A script that was started, and answers.

    Args:
        candidate: whose script.
        work: the file with the work.
        threads: for libraries that ask how many to take.
    """

    def __init__(self, candidate: Candidate, work: Path, threads: int) -> None:
        log = FOLDER / "logs" / f"{candidate.peer}-{candidate.word or 'rounds'}-{threads}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        python = python_of(candidate.environment)
        self._log_path, self._log = log, log.open("w", encoding="utf-8")
        place = HERE / "rounds"
        ours = () if candidate.environment else (ROOT / "src", ROOT)
        self._process = subprocess.Popen(
            [str(python), str(place / candidate.script), str(work), candidate.word],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=surroundings(threads, place, *ours),
        )

    def ask(self, do: str, **order: Any) -> dict[str, Any]:
        """Give an order and wait for its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps({"do": do, **order}) + "\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            last = self._log_path.read_text(encoding="utf-8").strip().splitlines()[-1:]
            raise RuntimeError(f"the script ended without an answer ({' '.join(last)}); see {self._log_path}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()
