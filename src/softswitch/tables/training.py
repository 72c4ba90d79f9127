"""Training from a file of settings: read, encode, split, solve, certify, and write the run's folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from softswitch.certification.certify import certify
from softswitch.certification.client_optimum import with_regret
from softswitch.data.client_data import ClientData
from softswitch.engine.baselines import add_baselines
from softswitch.engine.certified import Certified, solve_certified
from softswitch.engine.defaults import resolve_options, resolve_sampling
from softswitch.engine.private import check_private_run, solve_privately
from softswitch.engine.request import RunSettings, request
from softswitch.engine.solve import solve
from softswitch.methods.automatic import as_method
from softswitch.methods.base import Method
from softswitch.oracles.options import Compute, Logging, Output, Sampling
from softswitch.privacy.settings import RecordPrivacy
from softswitch.results.callbacks import Callback
from softswitch.results.certificate import Certificate, ending, is_certified
from softswitch.results.checkpoints import Checkpoints
from softswitch.results.descriptions import bounded_in_words
from softswitch.results.folder import (
    ABOUT,
    CHECKPOINTS,
    CONFIG,
    FORMAT,
    find_runs,
    flat_settings,
    new_folder,
    open_run,
    versions,
    write_result,
)
from softswitch.results.result import Result
from softswitch.results.status import StatusCode
from softswitch.support import checks
from softswitch.support.checks import all_at_once
from softswitch.support.files import write_atomically, write_json
from softswitch.tables.constraints import GROUPED, check_regret
from softswitch.tables.labels import Label, MulticlassLabel
from softswitch.tables.metrics import client_metrics, group_metrics
from softswitch.tables.model import write_encoding
from softswitch.tables.preparation import CERTIFIED, PreparedTable, build_memory, build_method, prepare_table
from softswitch.tables.private import (
    NOISE_KEY,
    NOT_TOLD,
    certificate_privacy,
    forget_noise_key,
    noise_key,
    training_privacy,
)
from softswitch.tables.settings import ALL, AUTO, Config, given, read_config, write_config

KEPT = ("started", "settings", "base", "data", "command")
"""What a resumed run keeps of what it is about."""


@dataclass(frozen=True, eq=False)
class Trained:
    """What training came to.

    Attributes:
        folder: the run's.
        result: of the rounds; its client values are those of the model.
        certificate: on held-out rows; None where there are none, or the run diverged.
        aim: where a certified model was the aim: whether there is one ("answered"), what is to be said of it
            ("words"), and how it was chosen; else None.
    """

    folder: Path
    result: Result
    certificate: Certificate | None
    aim: dict[str, Any] | None = None

    @property
    def answered(self) -> bool:
        """Whether there is an answer: a certified model, where that was the aim."""
        return self.aim is None or bool(self.aim["answered"])


def train(
    file: str | Path,
    *,
    watch: Callable[[Config, PreparedTable, Method], None] | None = None,
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
    ready, method, *_ = all_at_once(
        lambda: prepare_table(config, base),
        lambda: build_method(config),
        lambda: training_privacy(config),
        lambda: config.privacy.certificate_epsilon is None or certificate_privacy(config),
        lambda: build_memory(config.method),
        lambda: check_regret(config.task.kind, config.task.regret),
        lambda: checks.seed("run.seed", config.run.seed),
        lambda: checks.probability("run.confidence", config.run.confidence),
    )
    if watch is not None:
        watch(config, ready, method)
    _check(config, ready, method)
    folder = new_folder(base / config.run.folder, path.stem)
    write_atomically(folder / CONFIG, write_config(config).encode())
    about = {
        "format": FORMAT,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "settings": str(path.resolve()),
        "base": os.path.relpath(base, folder),
        "data": {
            "file": config.data.file,
            "sha256": NOT_TOLD if config.privacy.asked else ready.fingerprint,
            "rows": int(ready.train.sizes.sum()),
        },
        "command": " ".join(["softswitch", *sys.argv[1:]]) if sys.argv else "",
        "versions": versions(),
    }
    write_json(folder / ABOUT, about)
    return _run(folder, config, ready, method, about, callbacks, progress)


def resume(
    folder: str | Path,
    *,
    rounds: int | None = None,
    seconds: float | None = None,
    trust: bool = False,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
) -> Trained:
    """Go on with a run that was interrupted or killed, to exactly what it would have been; or make it longer.

    Args:
        folder: the run's.
        rounds: how many rounds it is to have in all; by default as many as it was to have. A run that chooses for
            itself keeps what it chose, and goes on with more cycles.
        seconds: how long it is to take in all; by default as long as it was to take.
        trust: import the Python functions that settings of the kind "custom" name. Without it a folder
            can be opened from anyone.
        callbacks: as for ``solve``.
        progress: show a progress bar; by default on a terminal only.
    """
    run = open_run(folder)
    if "base" not in run.about:
        raise ValueError(f"{run.folder} was not made by softswitch train, and cannot be resumed")
    config, base = read_config(run.folder / CONFIG), run.folder / run.about["base"]
    if config.task.kind == "custom" and not trust:
        named = (config.task.objective, config.task.constraint, config.task.constraint_surrogate)
        functions = " and ".join(name for name in named if name is not None)
        raise ValueError(
            f"{run.folder} wants to import {functions} from {base.resolve()}, "
            "which can do anything on this machine; if you trust whoever wrote them: --trust (trust=True)"
        )
    if "run.aim" not in run.settings:  # a run of before there was a choice
        config = replace(config, run=replace(config.run, aim="bare"))
    longer = _longer(config, rounds, seconds)
    ready = prepare_table(longer, base)
    if config.privacy.asked and "status" in run.about and not (run.folder / CHECKPOINTS / NOISE_KEY).exists():
        raise ValueError(f"{run.folder} is finished: to judge or certify it again would tell more of its rows")
    if run.about["data"]["sha256"] not in (NOT_TOLD, ready.fingerprint):  # else its checkpoints know the rows
        raise ValueError(f"{config.data.file} has changed since {run.folder} began; train anew")
    if longer != config:  # written down once the run has gone on: it may yet be refused
        callbacks = (lambda _: write_atomically(run.folder / CONFIG, write_config(longer).encode()), *callbacks)
    kept: dict[str, Any] = {key: run.about[key] for key in KEPT if key in run.about}
    return _run(run.folder, longer, ready, build_method(longer), kept, callbacks, progress)


def _longer(config: Config, rounds: int | None, seconds: float | None) -> Config:
    """The settings of a run that is to go on for so many rounds and seconds in all, where these are given."""
    run = config.run
    if rounds is not None:
        checks.whole_number("rounds", rounds, at_least=given(run.rounds, 1))
        run = replace(run, rounds=rounds)
    if seconds is not None:
        run = replace(run, seconds=checks.real_number("seconds", seconds, at_least=run.seconds or 0))
    return replace(config, run=run)


def sampling_options(config: Config) -> Sampling:
    """Return the sampling that the settings ask for."""
    run, automatic = config.run, given(config.method.step_size) is None
    batch_sizes: dict[Any, Any] = {ALL: None, 0: None} | ({} if automatic else {AUTO: None})
    value_batch_sizes: dict[Any, Any] = {ALL: None, 0: None} | ({} if automatic else {AUTO: "same"})
    return Sampling(
        local_steps=run.local_steps,
        participation=run.participation,
        batch_size=batch_sizes.get(run.batch_size, run.batch_size),
        value_batch_size=value_batch_sizes.get(run.value_batch_size, run.value_batch_size),
        memory=build_memory(config.method),
    )


def output_options(config: Config) -> Output:
    """Return the iterate that the settings ask for."""
    return Output(iterate=config.run.answer, average_last=given(config.run.average_last))


def run_settings(config: Config) -> RunSettings:
    """Return the settings of a run."""
    logging = Logging(record_clients=True)
    sampling, output = sampling_options(config), output_options(config)
    return RunSettings.from_options(given(config.run.rounds), config.run.seconds, sampling, output, logging)


def _check(config: Config, ready: PreparedTable, method: Method) -> None:
    """Refuse what ``solve`` would refuse, before a folder is made."""
    privacy = training_privacy(config)
    if privacy is not None:
        sampling = sampling_options(config)
        check_private_run(ready.problem, ready.train, method, privacy, sampling, run_settings(config))
        if ready.held_out is not None and ready.problem.constraint_range is None:
            raise ValueError(
                f"data.held_out must be 0 with privacy where task.kind is {config.task.kind!r}: what a row tells of "
                "its constraint has no known range, without which there is no private certificate; miss-rate has one"
            )
        return
    sampling = resolve_sampling(sampling_options(config), method)
    resolved = resolve_options(ready.problem, ready.train, (method,), sampling, Compute(), run_settings(config))
    request(
        ready.problem,
        ready.train,
        resolved.methods,
        resolved.sampling,
        resolved.settings,
        compute=resolved.compute,
        held_out=_beside(ready),
        choice=resolved.choice,
    )


def _run(
    folder: Path,
    config: Config,
    ready: PreparedTable,
    method: Method,
    about: dict[str, Any],
    callbacks: Sequence[Callback],
    progress: bool | None,
) -> Trained:
    privacy = training_privacy(config)
    if privacy is not None:
        return _run_privately(folder, config, ready, method, about, callbacks, progress, privacy)
    problem, train, split, held_out = ready.problem, ready.train, ready.parts, _beside(ready)
    if config.task.regret:
        task = with_regret(problem, train if split is None else split)
        problem, held_out = task.problem, None if held_out is None else task.transform(held_out)
        train, split = (task.clients, None) if split is None else (train, task.clients)
    options: dict[str, Any] = {
        "rounds": given(config.run.rounds),
        "seconds": config.run.seconds,
        "seed": config.run.seed,
        "sampling": sampling_options(config),
        "output": output_options(config),
        "logging": Logging(callbacks=callbacks, progress=progress, held_out=held_out, record_clients=True),
    }
    found: Certified | None = None
    if split is None:
        result = solve(problem, train, as_method(method), checkpoints=Checkpoints(folder / CHECKPOINTS), **options)
    else:
        found = solve_certified(
            problem,
            split,
            as_method(method),
            confidence=config.run.confidence,
            move=None if config.task.kind == "custom" else ready.label.move,
            checkpoints=folder / CHECKPOINTS,
            **options,
        )
        result = found.result
    diverged = result.status.code is StatusCode.DIVERGED
    if not diverged:
        constants = partial(ready.label.constant, ready.problem.start)
        beside: dict[str, Any] = {"constants": constants, "held_out": _beside(ready), "cost": ready.cost}
        result = add_baselines(result, ready.problem, ready.train, **beside)
    certificate = None if found is None else found.certificate
    if found is None and ready.held_out is not None and not diverged:
        certificate = certify(result, ready.problem, ready.held_out, config.run.confidence)
    if config.run.aim == CERTIFIED and ready.held_out is not None:
        about = about | {"aim": _aim(certificate, found, count_earlier_certificates(folder, config, about))}
    about = about | describe_task(config, ready.label)
    write_encoding(folder, ready.encoding, config.data.label, ready.label, config.model.hidden)
    columns = client_metrics(ready, result)
    if config.task.kind in GROUPED and ready.held_out is not None and find_spec("fairlearn") is not None:
        others = {"protected": str(config.task.protected), "others": f"not {config.task.protected}"}
        told = group_metrics(result.params, ready.held_out)
        about = about | {"groups": {others[row.pop("group")]: row for row in told}}
    write_result(folder, result, about=about, clients=columns, certificate=certificate)
    return Trained(folder, result, certificate, about.get("aim"))


def _run_privately(
    folder: Path,
    config: Config,
    ready: PreparedTable,
    method: Method,
    about: dict[str, Any],
    callbacks: Sequence[Callback],
    progress: bool | None,
    privacy: RecordPrivacy,
) -> Trained:
    """As ``_run``, with nothing that looks at rows but private rounds, one judging and a private certificate."""
    kept = folder / CHECKPOINTS
    result, _ = solve_privately(
        ready.problem,
        ready.train,
        method,
        privacy,
        sampling_options(config),
        run_settings(config),
        config.run.seed,
        Logging(callbacks=callbacks, progress=progress),
        Checkpoints(kept),
        noise_key(kept),
    )
    certificate, stopped = None, result.status.code is StatusCode.STOPPED
    if ready.held_out is not None and not stopped and result.status.code is not StatusCode.DIVERGED:
        own = certificate_privacy(config)
        certificate = certify(result, ready.problem, ready.held_out, config.run.confidence, privacy=own)
    write_encoding(folder, ready.encoding, config.data.label, ready.label, config.model.hidden)
    told = about | describe_task(config, ready.label)
    if not stopped:  # before anything is told: a kill in between must not lead to a second certificate
        forget_noise_key(kept)
    write_result(folder, result, about=told, clients={}, certificate=certificate)
    return Trained(folder, result, certificate)


def describe_task(config: Config, label: Label) -> dict[str, Any]:
    """For a run's folder: what is bounded, in a sentence, and what each constraint is called."""
    settings, positive = flat_settings(write_config(config)), getattr(label, "positive", None)
    bounded = bounded_in_words(settings, config.task.bound, positive)
    return {"bounded": bounded, "constraints": _constraint_names(config, label)}


def _constraint_names(config: Config, label: Label) -> list[str]:
    """What each constraint is called, where a kind has several."""
    if config.task.kind == "class-miss-rate" and isinstance(label, MulticlassLabel):
        return [f"{value} missed" for value in label.values]
    several = {
        "mean-error": ["too high on average", "too low on average"],
        "group-loss": [f"log loss of {config.task.protected}", "log loss of others"],
    }
    return several.get(config.task.kind, [])


def _beside(ready: PreparedTable) -> ClientData | None:
    """The rows that are looked at while training: never those of a certificate that is the aim."""
    return ready.held_out if ready.parts is None else ready.validation


def _aim(certificate: Certificate | None, found: Certified | None, looks: int) -> dict[str, Any]:
    """What came of training for a certificate, for the run's folder."""
    told: dict[str, Any] = {
        "answered": is_certified(certificate),
        "words": ending(certificate),
        "earlier_certificates": looks,
    }
    if found is None or found.model is None:
        return told
    return told | {
        "certifiability": str(found.certifiability),
        "model": str(found.model),
        "pass_probability": found.model.forecast.pass_probability,
        "looked_at": found.looked_at,
        "tested": [str(candidate) for candidate in found.tested],
    }


def count_earlier_certificates(folder: Path, config: Config, about: dict[str, Any]) -> int:
    """How many models the same rows have certified before, by the runs beside this one; and this one, where it did."""
    data, many = about["data"]["sha256"], 0
    for run in find_runs(folder.parent):
        split = {"data.held_out": config.data.held_out, "run.seed": config.run.seed}
        with suppress(ValueError, OSError):  # a folder that is damaged says nothing
            same = run.about.get("data", {}).get("sha256") == data and run.certificate is not None
            many += same and all(run.settings.get(name) == value for name, value in split.items())
    return many
