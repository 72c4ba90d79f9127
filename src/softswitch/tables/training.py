"""Training from a settings file: prepare the table, solve, certify, and write the run folder."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, cast

from softswitch.certification.certify import certify
from softswitch.certification.client_optimum import with_regret
from softswitch.engine.baselines import add_baselines
from softswitch.engine.certified import Certified, solve_certified
from softswitch.engine.private import solve_privately
from softswitch.engine.request import RunOptions
from softswitch.engine.solve import solve
from softswitch.methods.automatic import as_method
from softswitch.methods.base import Method
from softswitch.oracles.options import Logging, Output, Sampling
from softswitch.privacy.ledger import ReleaseLedger
from softswitch.privacy.settings import RecordPrivacy
from softswitch.results import folder as run_folder
from softswitch.results.baseline import Usefulness
from softswitch.results.callbacks import Callback
from softswitch.results.certificate import Certificate, describe_certification, judge_certificate
from softswitch.results.checkpoints import Checkpoints
from softswitch.results.folder import ABOUT, CHECKPOINTS, CONFIG, ENCODING, find_runs, open_run, write_result
from softswitch.results.result import Result
from softswitch.results.status import StatusCode
from softswitch.support import checks
from softswitch.support.files import write_atomically, write_json
from softswitch.tables.constraints import KINDS
from softswitch.tables.labels import Label
from softswitch.tables.metrics import assess_model, group_metrics
from softswitch.tables.model import ModelFile
from softswitch.tables.preparation import CERTIFIED, MEMORY, PreparedTable, build_method, fill_alpha, uses_score
from softswitch.tables.preparation import prepare_table as prepare_table
from softswitch.tables.private import WITHHELD, certificate_privacy, training_privacy
from softswitch.tables.settings import ALL, AUTO, Config, read_config, replace_auto, write_config
from softswitch.tables.thresholds import ScoredModel, ThresholdPath, train_score

KEPT = ("started", "settings", "base", "data", "command")  # entries of run.json that a resumed run keeps


@dataclass(frozen=True, eq=False)
class TrainedRun:
    """The outcome of ``train`` or ``resume``.

    Attributes:
        folder: The run folder.
        result: The result of the run, with the trained model as its answer.
        certificate: The certificate on held-out rows; None without such rows, or if the run diverged.
        aim: Outcome of certification: whether the model is certified ("certified"), the verdict ("message"), and how
            the model was selected. None if certification was not requested.
    """

    folder: Path
    result: Result
    certificate: Certificate | None
    aim: dict[str, Any] | None = None

    @property
    def is_usable(self) -> bool:
        """Whether the model is certified, or certification was not requested."""
        return self.aim is None or bool(self.aim["certified"])


def train(
    file: str | Path,
    *,
    watch: Callable[[Config, PreparedTable, Method], None] | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
) -> TrainedRun:
    """Train a model from a settings file, certify it, and write a new run folder.

    Args:
        file: The settings file, in TOML.
        watch: Function that is called with the settings, the prepared table and the method before training.
        callbacks: Functions that are called after each chunk of rounds, as for ``solve``. Default: none.
        progress: Whether to show a progress bar. Default: on a terminal only.
    """
    path = Path(file)
    config, base = read_config(path.resolve()), path.resolve().parent
    table, method, *_ = checks.call_all(
        lambda: prepare_table(config, base),
        lambda: build_method(config),
        lambda: training_privacy(config),
        lambda: config.privacy.certificate_epsilon is None or certificate_privacy(config),
        lambda: checks.check_seed("run.seed", config.run.seed),
        lambda: checks.check_probability("run.confidence", config.run.confidence),
    )
    method = fill_alpha(method, len(table.train))
    if uses_score(config):
        method = ThresholdPath(
            tolerance=config.task.bound, score=config.model.score, thresholds=config.model.thresholds
        )
    if watch is not None:
        watch(config, table, method)
    if config.privacy.epsilon is not None and table.held_out is not None and table.problem.constraint_range is None:
        raise ValueError(
            f"data.held_out must be 0 with privacy if task.kind is {config.task.kind!r}: a private certificate needs a "
            "constraint with a known range per row, such as miss-rate"
        )
    folder = run_folder.create_folder(base / config.run.folder, path.stem)
    write_atomically(folder / CONFIG, write_config(config).encode())
    about = {"format": run_folder.FORMAT, "settings": str(path.resolve()), "base": os.path.relpath(base, folder)}
    about |= describe_origin(config, table)
    write_json(folder / ABOUT, about)
    try:
        return _run(folder, config, table, method, about, callbacks=callbacks, progress=progress)
    except ValueError:
        if {file.name for file in folder.rglob("*") if file.is_file()} <= {CONFIG, ABOUT}:  # nothing was run
            shutil.rmtree(folder)
        raise


def describe_origin(config: Config, table: PreparedTable) -> dict[str, Any]:
    """Return the entries of run.json on the origin of a run: time, data file, command and package versions."""
    digest = WITHHELD if config.privacy.epsilon is not None else table.fingerprint
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "data": {"file": config.data.file, "sha256": digest, "rows": int(table.train.sizes.sum())},
        "command": " ".join(["softswitch", *sys.argv[1:]]) if sys.argv else "",
        "versions": run_folder.read_versions(),
    }


def resume(
    folder: str | Path,
    *,
    rounds: int | None = None,
    seconds: float | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
) -> TrainedRun:
    """Resume an interrupted run with the same result as without the interruption, or extend a run in rounds.

    Args:
        folder: The run folder.
        rounds: Maximum number of rounds in total. Default: as in the settings. An auto-tuned run keeps its choices and
            adds restarts. Not accepted if the model is a score with a threshold.
        seconds: Time limit in seconds, in total. Default: as in the settings. Not accepted for a score either.
        callbacks: Functions that are called after each chunk of rounds, as for ``solve``. Default: none.
        progress: Whether to show a progress bar. Default: on a terminal only.
    """
    run = open_run(folder)
    if "base" not in run.about:
        raise ValueError(f"{run.folder} was not created by softswitch train, and cannot be resumed")
    config, base = read_config(run.folder / CONFIG), run.folder / run.about["base"]
    extended = config.run
    if uses_score(config) and (rounds is not None or seconds is not None):
        problem = "its model is a score with a threshold, which is not trained in rounds"
        raise ValueError(f"{run.folder} cannot be extended by rounds or seconds: {problem}")
    if rounds is not None:
        checks.check_integer("rounds", rounds, minimum=replace_auto(extended.rounds, 1))
        extended = replace(extended, rounds=rounds)
    if seconds is not None:
        seconds = checks.check_real("seconds", seconds, minimum=extended.seconds or 0)
        extended = replace(extended, seconds=seconds)
    config, old = replace(config, run=extended), config
    table = prepare_table(config, base)
    is_evaluated = ReleaseLedger(run.folder / CHECKPOINTS).is_evaluated
    if config.privacy.epsilon is not None and "status" in run.about and is_evaluated:
        raise ValueError(f"{run.folder} is finished: evaluating it again would exceed its privacy budget")
    if run.about["data"]["sha256"] not in (WITHHELD, table.fingerprint):
        raise ValueError(f"{config.data.file} has changed since {run.folder} started; start a new run")
    if config != old:  # written once the run continues, because it may still be refused
        callbacks = (lambda _: write_atomically(run.folder / CONFIG, write_config(config).encode()), *callbacks)
    kept: dict[str, Any] = {key: run.about[key] for key in KEPT if key in run.about}
    method = fill_alpha(build_method(config), len(table.train))
    return _run(run.folder, config, table, method, kept, callbacks=callbacks, progress=progress)


def solve_options(config: Config, **logging: Any) -> dict[str, Any]:
    """Return the keyword arguments of ``solve``, without the time limit; ``logging`` has those of ``Logging``."""
    run, is_automatic = config.run, replace_auto(config.method.step_size) is None
    batch_sizes: dict[Any, Any] = {ALL: None, 0: None} | ({} if is_automatic else {AUTO: None})
    value_batch_sizes = batch_sizes | ({} if is_automatic else {AUTO: "same"})
    sampling = Sampling(
        local_steps=run.local_steps,
        participation=run.participation,
        batch_size=batch_sizes.get(run.batch_size, run.batch_size),
        value_batch_size=value_batch_sizes.get(run.value_batch_size, run.value_batch_size),
        memory=MEMORY[config.method.memory],
    )
    output = Output(iterate=run.answer, average_last=replace_auto(run.average_last))
    options = {"rounds": replace_auto(run.rounds), "seed": run.seed, "sampling": sampling, "output": output}
    return options | {"logging": Logging(**{"record_clients": True, **logging})}


def _run(
    folder: Path, config: Config, table: PreparedTable, method: Method, about: dict[str, Any], **logging: Any
) -> TrainedRun:
    privacy = training_privacy(config)
    saved = folder / CHECKPOINTS
    about = about | describe_task(config, table.label)
    columns: dict[str, list[float]] = {}
    scored = usefulness = None
    if privacy is not None:
        trained = _solve_privately(saved, config, table, method, privacy, Logging(**logging))
    elif uses_score(config):
        given: dict[str, Any] = {"bound": config.task.bound, "score": config.model.score, "seed": config.run.seed}
        given |= shift_options(config) | {"select": config.run.aim == CERTIFIED}
        trained = scored = train_score(config.task.kind, table.label, table.learning, table.held_out, **given)
        table = with_score(table, scored)
    else:
        trained = _solve(saved, config, table, method, **logging)
    result, certificate = trained.result, trained.certificate
    if privacy is None:
        if result.status.code is not StatusCode.DIVERGED:
            threshold = None if scored is None else scored.threshold
            assessed = assess_model(config, table, result, certificate, threshold)
            result, columns, usefulness = assessed.result, assessed.columns, assessed.usefulness
            about |= assessed.about
        if config.run.aim == CERTIFIED and table.held_out is not None:
            about["certification"] = _describe_certification(folder, config, trained, about, usefulness)
        if KINDS[config.task.kind].uses_groups and table.held_out is not None:
            names = {"protected": str(config.task.protected), "others": f"not {config.task.protected}"}
            groups = group_metrics(result.params, table.held_out)
            about["groups"] = {names[row.pop("group")]: row for row in groups}
    write_encoding(folder, config, table, scored)
    write_result(folder, result, about=about, clients=columns, certificate=certificate)
    return TrainedRun(folder, result, certificate, about.get("certification"))


def write_encoding(folder: Path, config: Config, table: PreparedTable, scored: ScoredModel | None) -> None:
    """Write to a run folder how its model reads a table, encoding.json, and the score if the model has one."""
    file = ModelFile(config.data.label, cast(Any, table.label), config.model.hidden, table.encoding)
    if scored is not None:
        scored.score.save(folder)
        clients = tuple(map(str, scored.clients))
        file = replace(file, client=config.data.client, clients=clients, threshold=scored.threshold, has_score=True)
    write_json(folder / ENCODING, asdict(file))


def _describe_certification(
    folder: Path, config: Config, trained: Certified, about: dict[str, Any], usefulness: Usefulness | None
) -> dict[str, Any]:
    """Return the entry of run.json on certification; without ``usefulness`` it is not known to beat a constant."""
    certificate, write = trained.certificate, KINDS[config.task.kind].description.write
    is_useful = None if usefulness is None else usefulness.is_useful
    judged = judge_certificate(certificate, is_useful=is_useful)
    return {
        "outcome": str(judged),
        "certified": judged.is_certified,
        "message": describe_certification(certificate, is_useful=is_useful, write=write),
        "earlier_certificates": count_earlier_certificates(folder, config, about),
        **({"models": trained.models, "model": trained.description} if trained.models else {}),
    }


def shift_options(config: Config) -> dict[str, Any]:
    """Return the keyword arguments of ``FittedScore.choose_shift`` from the settings."""
    loss = {name: replace_auto(getattr(config.task, name)) for name in ("loss", "quantile")}
    return {"thresholds": config.model.thresholds, "confidence": config.run.confidence, **loss}


def with_score(table: PreparedTable, scored: ScoredModel) -> PreparedTable:
    """Return the table with the outputs of a score as features, and the validation rows as training rows."""
    return replace(table, problem=scored.problem, train=scored.learning, validation=None, held_out=scored.calibration)


def _solve(checkpoints: Path, config: Config, table: PreparedTable, method: Method, **logging: Any) -> Certified:
    """Train in rounds with the constraint and, if requested, certify on the held-out rows."""
    problem, train, split = table.problem, table.train, table.split
    held_out = table.held_out if split is None else table.validation  # rows to monitor in training
    if config.task.regret:
        task = with_regret(problem, train if split is None else split)
        problem, held_out = task.problem, None if held_out is None else task.transform(held_out)
        train, split = (task.clients, None) if split is None else (train, task.clients)
    options = solve_options(config, held_out=held_out, **logging)
    options |= {"seconds": config.run.seconds, "checkpoints": Checkpoints(checkpoints)}
    if split is None:
        trained = Certified(solve(problem, train, as_method(method), **options), None, None)
    else:
        options |= {"confidence": config.run.confidence, "move": table.label.move}
        trained = solve_certified(problem, split, as_method(method), **options)
    result = trained.result
    if result.status.code is StatusCode.DIVERGED:
        return trained
    constants = partial(table.label.constant, table.problem.start)
    result = add_baselines(result, table.problem, table.train, constants=constants)
    certificate = trained.certificate
    if split is None and table.held_out is not None:
        certificate = certify(result, table.problem, table.held_out, config.run.confidence)
    return replace(trained, result=result, certificate=certificate)


def _solve_privately(
    checkpoints: Path, config: Config, table: PreparedTable, method: Method, privacy: RecordPrivacy, logging: Logging
) -> Certified:
    """Return a private result and, if rows are held out, its private certificate. Nothing else uses rows."""
    given = solve_options(config) | {"logging": logging, "checkpoints": Checkpoints(checkpoints)}
    options = RunOptions(**given, seconds=config.run.seconds, privacy=privacy)
    result = solve_privately(table.problem, table.train, method, options)
    if table.held_out is None or result.status.code in (StatusCode.STOPPED, StatusCode.DIVERGED):
        return Certified(result, None, None)
    if not ReleaseLedger(checkpoints).claim_certificate():
        return Certified(result, None, None)
    budget = certificate_privacy(config)
    certificate = certify(result, table.problem, table.held_out, config.run.confidence, privacy=budget)
    return Certified(result, certificate, None)


def describe_task(config: Config, label: Label) -> dict[str, Any]:
    """Return the entries of run.json on the task: the requirement as a sentence, names and units of the functions."""
    kind, task, data = KINDS[config.task.kind], config.task, config.data
    positive = getattr(label, "positive", None) if data.positive is None else data.positive
    names = {"client": data.client, "label": data.label, "group": f"{task.sensitive} = {task.protected}"}
    description = kind.description
    if uses_score(config) and kind.objective:
        description = replace(description, objective=kind.objective)
    sentence = kind.describe_bound(task.bound, positive=positive, **names)
    constraints = [] if kind.constraint_names is None else kind.constraint_names(label, task.protected)
    return {"requirement": sentence, "constraints": constraints, "description": asdict(description)}


def count_earlier_certificates(folder: Path, config: Config, about: dict[str, Any]) -> int:
    """Count the runs next to or in ``folder`` with a certificate on the same rows: same file, share and seed."""
    split = {"data.held_out": config.data.held_out, "run.seed": config.run.seed}
    count = 0
    for run in find_runs(folder.parent):
        with suppress(ValueError, OSError):  # a damaged folder
            same = run.about.get("data", {}).get("sha256") == about["data"]["sha256"] and run.certificate is not None
            count += same and all(run.settings.get(name) == value for name, value in split.items())
    return count
