"""server_app(): a Flower ServerApp that runs a method, certifies the answer and writes a run folder."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import fields, replace
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from rich.console import Console

from softswitch.engine.request import resolve_method
from softswitch.flower.jax_client import initial_arrays
from softswitch.flower.membership import confusable_key, find_keys
from softswitch.flower.settings import StrategySettings, with_changes
from softswitch.flower.strategy import SwitchingStrategy
from softswitch.methods.automatic import Automatic, as_method
from softswitch.methods.base import Method
from softswitch.problem.parameters import Params
from softswitch.results import folder as folders
from softswitch.results.checkpoints import Checkpoints
from softswitch.results.events import EVENTS
from softswitch.results.status import StatusCode
from softswitch.support import checks
from softswitch.support.files import write_atomically, write_json

logger = logging.getLogger("softswitch.flower")


def server_app(
    method: Method | Automatic,
    start: Params,
    *,
    rounds: int = 100,
    out: str | Path = "runs",
    name: str = "federated",
    confidence: float | None = 0.95,
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
        method: The method.
        start: The first parameters w_0, a pytree of arrays such as ``problem.start`` or ``parameters(module)`` of a
            PyTorch module.
        rounds: Number of rounds K.
        out: Folder for run folders. Use an absolute path in a deployment: relative ones start at the ServerApp's
            working directory.
        name: Prefix of the run folder's name.
        confidence: Confidence of the certificate; None for no certificate.
        settings: Settings of ``SwitchingStrategy``.
        changes: Single settings by name.
    """
    rounds = checks.check_integer("rounds", rounds, minimum=1)
    if confidence is not None:
        checks.check_probability("confidence", confidence)
    base = with_changes(settings, changes)
    if base.checkpoints is not None:
        raise ValueError("checkpoints must be None: they are in the run folder; otherwise use SwitchingStrategy")
    SwitchingStrategy(method, base)  # raises now if it is invalid, not on the server
    active = resolve_method(method)
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        config: dict[str, Any] = dict(context.run_config)
        request = {"rounds": int(config.get("rounds", rounds)), "seed": int(config.get("seed", base.seed))}
        folder, about = _open_folder(Path(str(config.get("out") or out)).expanduser(), name, config, request)
        request = about["asked"]  # a resumed run keeps its own
        excluded: dict[str, str] = {}
        for client in (*about.get("excluded", ()), *base.exclude, *str(config.get("exclude") or "").split(",")):
            if client.strip():
                excluded.setdefault(confusable_key(client), client.strip())
        about["excluded"] = list(excluded.values())
        run_settings = replace(base, seed=request["seed"], exclude=about["excluded"])
        if config.get("clients"):
            run_settings = replace(run_settings, names=(), clients=find_keys(str(config["clients"])))
        strategy = SwitchingStrategy(
            as_method(active),
            run_settings,
            checkpoints=Checkpoints(folder / folders.CHECKPOINTS, every=0),
            events=base.events or folder / EVENTS,
        )
        write_json(folder / folders.ABOUT, about)
        write_atomically(folder / folders.CONFIG, _settings_toml(active, request, run_settings).encode(), durable=False)
        strategy.start(grid, initial_arrays(start), request["rounds"])
        result, clients = strategy.result, strategy.clients
        assert result is not None
        assert clients is not None
        rows = {"rows": [clients.rows(i) for i in range(len(result.names))]}
        folders.write_result(folder, result, about=about, clients=rows)  # before the certificate, which may fail
        console = Console(stderr=True, width=110)
        console.print(result.explain(), markup=False)
        if confidence is not None and result.status.code is not StatusCode.DIVERGED:
            certificate = clients.certify(result.params, float(active.tolerance), confidence)
            folders.write_result(folder, result, about=about, clients=rows, certificate=certificate)
            if certificate is not None:
                console.print(certificate.table())
        if find_spec("jinja2") is not None:
            from softswitch.results.report import write_report

            console.print(f"Report: {write_report([folder])}", markup=False)
        console.print(f"Run folder: {folder.resolve()}", markup=False)

    return app


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
    return run.folder, {key: run.about[key] for key in kept} | versions


def _can_resume(run: folders.Run) -> bool:
    ended_early = run.about.get("status", {}).get("code") == StatusCode.STOPPED
    return run.about.get("engine") == "flower" and (not run.finished or ended_early)


def _settings_toml(method: Method, request: Mapping[str, Any], settings: StrategySettings) -> str:
    """Return the settings that differ from the defaults as TOML."""
    values = {entry.name: getattr(settings, entry.name) for entry in fields(settings)}
    values["clients"] = list(settings.clients)
    defaults = vars(StrategySettings()) | {"clients": []}
    changed = {key: value for key, value in values.items() if value is not None and value != defaults[key]}
    sections: dict[str, Mapping[str, Any]] = {"run": request, "strategy": changed, "method": {"method": str(method)}}
    return "\n".join(
        f"[{name}]\n" + "".join(f"{key} = {json.dumps(value, default=str)}\n" for key, value in section.items())
        for name, section in sections.items()
    )
