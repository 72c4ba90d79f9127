"""server_app(): a Flower ServerApp that runs a rule, certifies the answer and writes a run's folder."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from rich.console import Console

from softswitch import checks
from softswitch.bounds import Range
from softswitch.certificate import Certificate
from softswitch.checkpoints import Checkpoints
from softswitch.flower import wire
from softswitch.flower.strategy import SwitchingStrategy
from softswitch.flower.trees import flat
from softswitch.result import Result
from softswitch.rules import Rule
from softswitch.runs import (
    ABOUT,
    CHECKPOINTS,
    FORMAT,
    find_runs,
    new_folder,
    open_run,
    versions,
    write_json,
    write_result,
)
from softswitch.status import StatusCode

logger = logging.getLogger("softswitch.flower")
KEYS = ("rounds", "seed", "out", "resume")
"""What ``flwr run --run-config`` may change."""


def server_app(
    rule: Rule | Callable[[Mapping[str, Any]], Rule],
    start: Any,
    *,
    rounds: int = 100,
    out: str | Path = "runs",
    name: str = "federated",
    confidence: float | None = 0.95,
    objective_range: Range | None = None,
    constraint_range: Any = None,
    **settings: Any,
) -> ServerApp:
    """A ServerApp for people who just want it to run.

    It runs the rounds, keeps checkpoints, asks all clients how good the answer is, certifies it on the rows that they
    held out, and writes the same folder as ``softswitch train``, with a report where plotly is installed.

    The run's own config may hold ``rounds``, ``seed``, ``out`` and ``resume``, so that ``flwr run --run-config
    'rounds=50'`` changes them: ``resume=true`` goes on with the newest run below ``out`` that was not finished, after
    at most one lost round; ``resume="FOLDER"`` with that one.

    Args:
        rule: the method and its settings; or a function that makes it of the run's config.
        start: w_0, a pytree of arrays: ``problem.start``, or ``parameters(module)`` of a PyTorch module; or a function
            that makes it of the run's config.
        rounds: K.
        out: where run folders are made. A relative path begins where the ServerApp's process runs: in a deployment give
            an absolute one.
        name: of the run's folder, before its time.
        confidence: of the certificate; None: none is made.
        objective_range: the range of the objective on a single row, as for ``certify``.
        constraint_range: and of the constraint.
        settings: of ``SwitchingStrategy``.
    """
    rounds = checks.whole_number("rounds", rounds, at_least=1)
    if confidence is not None:
        checks.probability("confidence", confidence)
    if "checkpoints" in settings:
        raise ValueError("checkpoints are kept in the run's folder; use SwitchingStrategy to keep them elsewhere")
    if isinstance(rule, Rule):
        SwitchingStrategy(rule, **settings)  # refuses what is wrong now, not on the server
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        config: dict[str, Any] = dict(context.run_config)
        method = rule if isinstance(rule, Rule) else rule(config)
        first = start(config) if callable(start) else start
        where = Path(str(config.get("out") or out)).expanduser()
        folder, about = _folder(where, name, config.get("resume", False))
        strategy = SwitchingStrategy(
            method,
            **{**settings, "seed": int(config.get("seed", settings.get("seed", 0)))},
            checkpoints=Checkpoints(folder / CHECKPOINTS, every=0),
        )
        total = int(config.get("rounds", rounds))
        write_json(folder / ABOUT, about)
        strategy.start(grid, wire.to_record(flat(first)), total)
        assert strategy.result is not None
        certificate = None
        if confidence is not None and strategy.result.status.code is not StatusCode.DIVERGED:
            assert strategy.clients is not None
            certificate = strategy.clients.certify(
                strategy.result.params,
                float(method.tolerance),
                confidence,
                objective_range=objective_range,
                constraint_range=constraint_range,
            )
        rows = {"rows": [strategy.clients.rows(i) for i in range(len(strategy.result.names))]}  # type: ignore[union-attr]
        write_result(folder, strategy.result, about=about, clients=rows, certificate=certificate)
        _say(folder, strategy.result, certificate)

    return app


def _folder(out: Path, name: str, resume: Any) -> tuple[Path, dict[str, Any]]:
    """The run's folder and what is known of it: a new one, or one to go on with."""
    if not resume:
        about = {
            "format": FORMAT,
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "engine": "flower",
            "command": " ".join(["softswitch", *sys.argv[1:]]),
            "versions": versions(),
        }
        return new_folder(out, name), about
    if isinstance(resume, str):
        run = open_run(resume)
    else:
        left = [run for run in find_runs(out) if not run.finished and run.about.get("engine") == "flower"]
        if not left:
            raise ValueError(f"resume=true needs a run below {out} that was not finished, but there is none")
        run = left[-1]
    logger.info("going on with %s", run.folder)
    return run.folder, {key: run.about[key] for key in ("format", "started", "engine", "command") if key in run.about}


def _say(folder: Path, result: Result, certificate: Certificate | None) -> None:
    """Tell how it ended, and where everything is."""
    console = Console(stderr=True, width=110)
    console.print(result.explain(), markup=False)
    if certificate is not None:
        console.print(certificate.table())
    if find_spec("plotly") is not None and find_spec("jinja2") is not None:
        from softswitch.report import write_report

        console.print(f"Report: {write_report([folder])}", markup=False)
    console.print(f"Run folder: {folder.resolve()}", markup=False)
    logger.info("status %s", json.dumps(str(result.status.code)))
