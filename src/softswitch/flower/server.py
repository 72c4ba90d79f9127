"""server_app(): a Flower ServerApp that runs a method, certifies the answer and writes a run folder."""

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

from softswitch.engine.request import resolve_method
from softswitch.flower.jax_client import flatten_params, initial_arrays
from softswitch.flower.membership import confusable_key, find_keys, normalize_name
from softswitch.flower.settings import StrategySettings, with_changes
from softswitch.flower.strategy import SwitchingStrategy
from softswitch.methods.automatic import Automatic, as_method
from softswitch.methods.base import Method
from softswitch.problem.parameters import Params
from softswitch.problem.ranges import Range
from softswitch.results import folder as folders
from softswitch.results.checkpoints import Checkpoints
from softswitch.results.events import EVENTS
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
    """Return a ServerApp that runs a method, certifies the answer and writes a run folder.

    It runs the rounds, saves checkpoints, evaluates the answer at all clients, and certifies it on the rows that they
    held out. It writes the same folder as ``softswitch train``, with a report if Jinja is installed.

    The run's config may contain ``rounds``, ``seed``, ``out``, ``resume``, ``clients`` and ``exclude``, as in ``flwr
    run --run-config 'rounds=50'``:

    - ``resume=true`` resumes the newest unfinished run of this name below ``out``, with its ``rounds`` and ``seed``. At
      most one round is lost. ``resume="FOLDER"`` resumes the run in that folder.
    - ``clients="FOLDER"`` is a folder with the public key of every client that may take part, in files NAME.pub.
    - ``exclude="NAME, NAME"`` excludes these clients. They stay excluded in a resumed run.

    Args:
        method: The method, or a function of the run's config that returns it.
        start: The first parameters w_0, a pytree of arrays such as ``problem.start`` or ``parameters(module)`` of a
            PyTorch module; or a function of the run's config that returns them.
        rounds: Number of rounds K.
        out: Folder for run folders. Use an absolute path in a deployment: relative ones start at the ServerApp's
            working directory.
        name: Prefix of the run folder's name.
        confidence: Confidence of the certificate; None for no certificate.
        objective_range: Range of the objective on a single row, as for ``certify``; reports outside are rejected.
        constraint_range: Range of the constraint on a single row.
        settings: Settings of ``SwitchingStrategy``.
        changes: Single settings by name.
    """
    rounds = checks.check_integer("rounds", rounds, minimum=1)
    if confidence is not None:
        checks.check_probability("confidence", confidence)
    ranges = {"objective_range": objective_range, "constraint_range": constraint_range}
    changes |= {argument: bounds for argument, bounds in ranges.items() if bounds is not None}
    base = with_changes(settings, changes)
    if base.checkpoints is not None:
        raise ValueError("checkpoints must be None: they are in the run folder; otherwise use SwitchingStrategy")
    if isinstance(method, Method | Automatic):
        SwitchingStrategy(method, base)  # raises now if it is invalid, not on the server
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        config: dict[str, Any] = dict(context.run_config)
        active = resolve_method(method if isinstance(method, Method | Automatic) else method(config))
        first = start(config) if callable(start) else start
        request = {"rounds": int(config.get("rounds", rounds)), "seed": int(config.get("seed", base.seed))}
        folder, about = _open_folder(Path(str(config.get("out") or out)).expanduser(), name, config, request)
        request = about["asked"]  # a resumed run keeps its own
        active_settings = _with_members(base, config, about.get("excluded", ()))
        if active_settings.exclude:
            about = about | {"excluded": list(active_settings.exclude)}
        strategy = SwitchingStrategy(
            as_method(active),
            active_settings,
            seed=request["seed"],
            checkpoints=Checkpoints(folder / folders.CHECKPOINTS, every=0),
            events=active_settings.events or folder / EVENTS,
        )
        write_json(folder / folders.ABOUT, about)
        toml = _settings_toml(active, first, request, active_settings)
        write_atomically(folder / folders.CONFIG, toml.encode(), durable=False)
        strategy.start(grid, initial_arrays(first), request["rounds"])
        result, clients = strategy.result, strategy.clients
        assert result is not None
        assert clients is not None
        rows = {"rows": [clients.rows(i) for i in range(len(result.names))]}
        folders.write_result(folder, result, about=about, clients=rows)  # before the certificate, which may fail
        certificate = None
        if confidence is not None and result.status.code is not StatusCode.DIVERGED:
            certificate = clients.certify(result.params, float(active.tolerance), confidence)
            folders.write_result(folder, result, about=about, clients=rows, certificate=certificate)
        console = Console(stderr=True, width=110)
        console.print(result.explain(), markup=False)
        if certificate is not None:
            console.print(certificate.table())
        if find_spec("jinja2") is not None:
            from softswitch.results.report import write_report

            console.print(f"Report: {write_report([folder])}", markup=False)
        console.print(f"Run folder: {folder.resolve()}", markup=False)

    return app


def _with_members(settings: StrategySettings, config: Mapping[str, Any], excluded: Sequence[str]) -> StrategySettings:
    """Return the settings with the clients and exclusions of the run's config and of the run before."""
    named = [normalize_name(name) for name in str(config.get("exclude") or "").split(",") if name.strip()]
    exclude: dict[str, str] = {}
    for client in (*excluded, *settings.exclude, *named):
        exclude.setdefault(confusable_key(client), client)
    settings = replace(settings, exclude=tuple(exclude.values()))
    return replace(settings, names=(), clients=find_keys(str(config["clients"]))) if config.get("clients") else settings


def _open_folder(out: Path, name: str, config: dict[str, Any], request: dict[str, int]) -> tuple[Path, dict[str, Any]]:
    """Return the run folder and its metadata: a new one, or one to resume."""
    resume, versions = config.get("resume", False), {"versions": folders.read_versions()}
    if not resume:
        changes = " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
        about = {
            "format": folders.FORMAT,
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "engine": "flower",
            "command": f"flwr run . --run-config '{changes}'",
            "asked": request,
        }
        return folders.create_folder(out, name), about | versions
    if isinstance(resume, str):
        run = folders.open_run(resume)
        if run.about.get("engine") != "flower":
            raise ValueError(f"resume must be the folder of a run over Flower, but is {resume!r}")
    else:
        runs = [run for run in folders.find_runs(out) if run.name.startswith(f"{name}-") and _can_resume(run)]
        if not runs:
            raise ValueError(f"resume=true needs an unfinished run of {name!r} below {out}, but there is none")
        run = max(runs, key=lambda run: str(run.about.get("started", "")))
    logger.info("resuming %s", run.folder)
    kept = ("format", "started", "engine", "command", "asked", "excluded")
    return run.folder, {key: run.about[key] for key in kept if key in run.about} | versions


def _can_resume(run: folders.Run) -> bool:
    ended_early = run.about.get("status", {}).get("code") == StatusCode.STOPPED
    return run.about.get("engine") == "flower" and (not run.finished or ended_early)


def _settings_toml(method: Method, start: Any, request: dict[str, int], settings: StrategySettings) -> str:
    """Return the settings that differ from the defaults as TOML."""
    values = {entry.name: getattr(settings, entry.name) for entry in fields(settings)}
    changed = {key: v for key, v in values.items() if v is not None and v != getattr(StrategySettings(), key)}
    strategy = {key: v if isinstance(v, bool | int | float | str | list) else str(v) for key, v in changed.items()}
    if settings.clients:
        strategy["clients"] = ", ".join(settings.clients)
    size = sum(np.size(leaf) for leaf in flatten_params(start).values())
    sections: dict[str, dict[str, Any]] = {
        "run": request,
        "strategy": strategy,
        "method": {"method": str(method), "parameters": size},
    }
    return "\n".join(
        f"[{name}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in section.items())
        for name, section in sections.items()
    )
