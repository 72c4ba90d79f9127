"""server_app(): a Flower ServerApp that runs a rule, certifies the answer and writes a run's folder."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from rich.console import Console

from softswitch.flower.arrays import flatten_params, initial_arrays
from softswitch.flower.membership import confusable_key, find_keys, normalize_name
from softswitch.flower.settings import StrategySettings, with_changes
from softswitch.flower.strategy import SwitchingStrategy
from softswitch.methods.automatic import Automatic, as_method, resolve_method
from softswitch.methods.base import Method
from softswitch.problem.parameters import Params
from softswitch.problem.ranges import Range, checked_range, checked_ranges
from softswitch.results.certificate import Certificate
from softswitch.results.checkpoints import Checkpoints
from softswitch.results.events import EVENTS
from softswitch.results.folder import (
    ABOUT,
    CHECKPOINTS,
    CONFIG,
    FORMAT,
    Run,
    find_runs,
    new_folder,
    open_run,
    versions,
    write_result,
)
from softswitch.results.result import Result
from softswitch.results.status import StatusCode
from softswitch.support import checks
from softswitch.support.files import write_atomically, write_json

logger = logging.getLogger("softswitch.flower")


def server_app(
    method: Method | Automatic | Callable[[Mapping[str, Any]], Method | Automatic],
    start: Params | Callable[[Mapping[str, Any]], Params],
    *,
    rounds: int = 100,
    out: str | Path = "runs",
    name: str = "federated",
    confidence: float | None = 0.95,
    objective_range: Range | None = None,
    constraint_range: Range | Sequence[Range | None] | None = None,
    settings: StrategySettings | None = None,
    **changes: Any,
) -> ServerApp:
    """A ServerApp for people who just want it to run.

    It runs the rounds, keeps checkpoints, asks all clients how good the answer is, certifies it on the rows that they
    held out, and writes the same folder as ``softswitch train``, with a report where Jinja is installed.

    The run's own config may hold ``rounds``, ``seed``, ``out``, ``resume``, ``clients`` and ``exclude``, so that ``flwr
    run --run-config 'rounds=50'`` changes them. ``resume=true`` goes on with the newest run of this name below ``out``
    that was not finished, or ended before its time, with its own ``rounds`` and ``seed``, after at most one lost round;
    ``resume="FOLDER"`` with that one. ``clients="FOLDER"`` is a folder with the public key of every client that may
    take part, in a file NAME.pub each. ``exclude="NAME, NAME"`` goes on without these; a resumed run stays without
    those that were left out before.

    Args:
        method: the method and its settings; or a function that makes it of the run's config.
        start: w_0, a pytree of arrays: ``problem.start``, or ``parameters(module)`` of a PyTorch module; or a function
            that makes it of the run's config.
        rounds: K.
        out: where run folders are made. A relative path begins where the ServerApp's process runs: in a deployment give
            an absolute one.
        name: of the run's folder, before its time.
        confidence: of the certificate; None: none is made.
        objective_range: the range of the objective on a single row, as for ``certify``; reports outside are rejected.
        constraint_range: and of the constraint.
        settings: of ``SwitchingStrategy``;
        changes: or single ones by their names.
    """
    rounds = checks.whole_number("rounds", rounds, at_least=1)
    if confidence is not None:
        checks.probability("confidence", confidence)
    checked_range("objective_range", objective_range)
    checked_ranges(constraint_range)
    chosen = with_changes(settings, changes)
    given = {"objective_range": objective_range, "constraint_range": constraint_range}
    chosen = with_changes(chosen, {name: bounds for name, bounds in given.items() if bounds is not None})
    if chosen.checkpoints is not None:
        raise ValueError("checkpoints are kept in the run's folder; use SwitchingStrategy to keep them elsewhere")
    if isinstance(method, Method | Automatic):
        SwitchingStrategy(method, chosen)  # refuses what is wrong now, not on the server
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        config: dict[str, Any] = dict(context.run_config)
        active = resolve_method(method if isinstance(method, Method | Automatic) else method(config))
        first = start(config) if callable(start) else start
        asked = {
            "rounds": int(config.get("rounds", rounds)),
            "seed": int(config.get("seed", chosen.seed)),
        }
        where = Path(str(config.get("out") or out)).expanduser()
        folder, about = _folder(where, name, config, asked)
        asked = about["asked"]  # a resumed run is what it was
        own = _members(chosen, config, about.get("excluded", ()))
        if own.exclude:
            about = about | {"excluded": list(own.exclude)}
        strategy = SwitchingStrategy(
            as_method(active),
            own,
            seed=asked["seed"],
            checkpoints=Checkpoints(folder / CHECKPOINTS, every=0),
            events=own.events or folder / EVENTS,
        )
        write_json(folder / ABOUT, about)
        write_atomically(folder / CONFIG, _settings(active, first, asked, own).encode(), durable=False)
        strategy.start(grid, initial_arrays(first), asked["rounds"])
        result, clients = strategy.result, strategy.clients
        assert result is not None
        assert clients is not None
        rows = {"rows": [clients.rows(i) for i in range(len(result.names))]}
        write_result(folder, result, about=about, clients=rows)  # whatever may go wrong with the certificate
        certificate = None
        if confidence is not None and result.status.code is not StatusCode.DIVERGED:
            certificate = clients.certify(
                result.params,
                float(active.tolerance),
                confidence,
            )
            write_result(folder, result, about=about, clients=rows, certificate=certificate)
        _say(folder, result, certificate)

    return app


def _members(settings: StrategySettings, config: Mapping[str, Any], before: Sequence[str]) -> StrategySettings:
    """Who takes part, by the settings, the run's config, and who was left out before."""
    named = [normalize_name(name) for name in str(config.get("exclude") or "").split(",") if name.strip()]
    written: dict[str, str] = {}
    for own in (*before, *settings.exclude, *named):
        written.setdefault(confusable_key(own), own)
    exclude = tuple(written.values())
    if not config.get("clients"):
        return replace(settings, exclude=exclude)
    return replace(settings, names=(), clients=find_keys(str(config["clients"])), exclude=exclude)


def _folder(out: Path, name: str, config: dict[str, Any], asked: dict[str, int]) -> tuple[Path, dict[str, Any]]:
    """The run's folder and what is known of it: a new one, or one to go on with."""
    resume = config.get("resume", False)
    if not resume:
        told = " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
        about = {
            "format": FORMAT,
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "engine": "flower",
            "command": f"flwr run . --run-config '{told}'",
            "asked": asked,
            "versions": versions(),
        }
        return new_folder(out, name), about
    if isinstance(resume, str):
        run = open_run(resume)
        if run.about.get("engine") != "flower":
            raise ValueError(f"resume must be the folder of a run over Flower, but is {resume!r}")
    else:
        found = [run for run in find_runs(out) if run.name.startswith(f"{name}-") and _can_go_on(run)]
        if not found:
            raise ValueError(f"resume=true needs a run of {name!r} below {out} that was not finished; there is none")
        run = max(found, key=lambda run: str(run.about.get("started", "")))
    logger.info("going on with %s", run.folder)
    kept = ("format", "started", "engine", "command", "asked", "excluded")
    return run.folder, {key: run.about[key] for key in kept if key in run.about} | {"versions": versions()}


def _settings(method: Method, start: Any, asked: dict[str, int], chosen: StrategySettings) -> str:
    """The settings as used, in TOML."""
    usual = StrategySettings()
    settings = {
        entry.name: getattr(chosen, entry.name)
        for entry in fields(chosen)
        if getattr(chosen, entry.name) != getattr(usual, entry.name)
    }
    plain = {key: value for key, value in settings.items() if isinstance(value, bool | int | float | str | list)}
    described = {key: str(value) for key, value in settings.items() if key not in plain and value is not None}
    if chosen.clients:
        described["clients"] = ", ".join(chosen.clients)
    entries = sum(np.size(leaf) for leaf in flatten_params(start).values())
    parts: dict[str, dict[str, Any]] = {
        "run": asked,
        "strategy": {**plain, **described},
        "method": {"method": str(method), "parameters": entries},
    }
    return "\n".join(
        f"[{section}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in part.items())
        for section, part in parts.items()
    )


def _can_go_on(run: Run) -> bool:
    """Whether a run over Flower was killed, or ended before its time."""
    ended_early = run.about.get("status", {}).get("code") == StatusCode.STOPPED
    return run.about.get("engine") == "flower" and (not run.finished or ended_early)


def _say(folder: Path, result: Result, certificate: Certificate | None) -> None:
    """Tell how it ended, and where everything is."""
    console = Console(stderr=True, width=110)
    console.print(result.explain(), markup=False)
    if certificate is not None:
        console.print(certificate.table())
    if find_spec("jinja2") is not None:
        from softswitch.results.report import write_report

        console.print(f"Report: {write_report([folder])}", markup=False)
    console.print(f"Run folder: {folder.resolve()}", markup=False)
