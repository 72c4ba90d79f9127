"""Training from a file of settings: read, encode, split, solve, certify, and write the run's folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from softswitch.clients.taking_part import TakingPart
from softswitch.engines.request import RunSettings, request
from softswitch.engines.solve import solve
from softswitch.engines.unconstrained import add_baselines
from softswitch.guarantees.certify import certify
from softswitch.method.rules import Rule
from softswitch.results.certificate import Certificate
from softswitch.results.result import Result
from softswitch.results.status import StatusCode
from softswitch.runs.checkpoints import Checkpoints
from softswitch.runs.folder import ABOUT, CHECKPOINTS, CONFIG, FORMAT, new_folder, open_run, versions, write_result
from softswitch.runs.watching import Callback
from softswitch.support import checks
from softswitch.support.files import write_atomically, write_json
from softswitch.tables.kinds import GROUPED
from softswitch.tables.model import write_encoding
from softswitch.tables.ready import ReadyTable, make_ready
from softswitch.tables.rule_choice import rule_by
from softswitch.tables.settings import Config, read_config, write_config
from softswitch.tasks.group_metrics import by_group
from softswitch.tasks.networks import constant_network

KEPT = ("started", "settings", "base", "data", "command")
"""What a resumed run keeps of what it is about."""


@dataclass(frozen=True, eq=False)
class Trained:
    """What training came to.

    Attributes:
        folder: the run's.
        result: of the rounds; its client values are those of the model.
        certificate: on held-out rows; None where there are none, or the run diverged.
    """

    folder: Path
    result: Result
    certificate: Certificate | None


def train(
    file: str | Path,
    *,
    watch: Callable[[Config, ReadyTable, Rule], None] | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
) -> Trained:
    """Train by a file of settings, in a new folder.

    Args:
        file: the settings.
        watch: called with the settings, the table made ready and the rule before training.
        callbacks: as for ``solve``.
        progress: show a progress bar; by default on a terminal only.
    """
    path = Path(file)
    config, base = read_config(path), path.resolve().parent
    ready = make_ready(config, base)
    rule = rule_by(config, len(ready.train))
    if watch is not None:
        watch(config, ready, rule)
    _check(config, ready, rule)
    folder = new_folder(base / config.run.folder, path.stem)
    write_atomically(folder / CONFIG, write_config(config).encode())
    about = {
        "format": FORMAT,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "settings": str(path.resolve()),
        "base": os.path.relpath(base, folder),
        "data": {"file": config.data.file, "sha256": ready.fingerprint, "rows": int(ready.train.sizes.sum())},
        "command": " ".join(["softswitch", *sys.argv[1:]]) if sys.argv else "",
        "versions": versions(),
    }
    write_json(folder / ABOUT, about)
    return _run(folder, config, ready, rule, about, callbacks, progress)


def resume(
    folder: str | Path,
    *,
    rounds: int | None = None,
    trust: bool = False,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
) -> Trained:
    """Go on with a run that was interrupted or killed, to exactly what it would have been; or make it longer.

    Args:
        folder: the run's.
        rounds: how many rounds it is to have in all; by default as many as it was to have.
        trust: import the Python functions that the settings name, where the task's kind is "own". Without it a folder
            can be opened from anyone.
        callbacks: as for ``solve``.
        progress: show a progress bar; by default on a terminal only.
    """
    run = open_run(folder)
    if "base" not in run.about:
        raise ValueError(f"{run.folder} was not made by softswitch train, and cannot be resumed")
    config, base = read_config(run.folder / CONFIG), run.folder / run.about["base"]
    if config.task.kind == "own" and not trust:
        raise ValueError(
            f"{run.folder} wants to import {config.task.objective} and {config.task.constraint} from {base.resolve()}, "
            "which can do anything on this machine; if you trust whoever wrote them: --trust (trust=True)"
        )
    if rounds is not None:
        checks.whole_number("rounds", rounds, at_least=config.run.rounds)
        config = replace(config, run=replace(config.run, rounds=rounds))
    ready = make_ready(config, base)
    if ready.fingerprint != run.about["data"]["sha256"]:
        raise ValueError(f"{config.data.file} has changed since {run.folder} began; train anew")
    if rounds is not None:  # written down once the run has gone on: it may yet be refused
        callbacks = (lambda _: write_atomically(run.folder / CONFIG, write_config(config).encode()), *callbacks)
    kept: dict[str, Any] = {key: run.about[key] for key in KEPT if key in run.about}
    return _run(run.folder, config, ready, rule_by(config, len(ready.train)), kept, callbacks, progress)


def _answer(config: Config) -> str:
    return config.run.answer or ("last" if config.model.hidden else "average")


def _taking_part(config: Config) -> dict[str, Any]:
    """What the settings say to ``solve`` of how clients take part."""
    run = config.run
    return {
        "local_steps": run.local_steps,
        "participation": run.participation,
        "batch_size": run.batch_size or None,
    }


def _check(config: Config, ready: ReadyTable, rule: Rule) -> None:
    """Refuse what ``solve`` would refuse, before a folder is made."""
    how = TakingPart(**_taking_part(config))
    settings = RunSettings(rounds=config.run.rounds, answer=_answer(config))
    request(ready.problem, ready.train, (rule,), how, settings, held_out=ready.held_out)
    checks.seed("run.seed", config.run.seed)
    checks.probability("run.confidence", config.run.confidence)


def _run(
    folder: Path,
    config: Config,
    ready: ReadyTable,
    rule: Rule,
    about: dict[str, Any],
    callbacks: Sequence[Callback],
    progress: bool | None,
) -> Trained:
    result = solve(
        ready.problem,
        ready.train,
        rule,
        **_taking_part(config),
        rounds=config.run.rounds,
        answer=_answer(config),
        held_out=ready.held_out,
        seed=config.run.seed,
        record_clients=True,
        callbacks=callbacks,
        checkpoints=Checkpoints(folder / CHECKPOINTS),
        progress=progress,
    )
    if result.status.code is not StatusCode.DIVERGED:
        constants = partial(constant_network, ready.problem.start)
        result = add_baselines(result, ready.problem, ready.train, constants=constants)
    certificate = None
    if ready.held_out is not None and result.status.code is not StatusCode.DIVERGED:
        certificate = certify(result, ready.problem, ready.held_out, config.run.confidence)
    write_encoding(folder, ready.encoding, config.data.label, ready.classes, config.model.hidden)
    rows = {"rows": ready.train.sizes.tolist()}
    if config.task.kind in GROUPED and ready.held_out is not None and find_spec("fairlearn") is not None:
        others = {"protected": str(config.task.protected), "others": f"not {config.task.protected}"}
        told = by_group(result.params, ready.held_out)
        about = about | {"groups": {others[row.pop("group")]: row for row in told}}
    write_result(folder, result, about=about, clients=rows, certificate=certificate)
    return Trained(folder, result, certificate)
