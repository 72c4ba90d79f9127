"""SwitchingStrategy, a method as a strategy for Flower, and server_app(), a ServerApp that writes a run folder."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Result as FlowerResult
from flwr.serverapp.strategy import Strategy
from rich.console import Console

from softswitch.engine.request import is_automatic, resolve_method
from softswitch.engine.second_order import describe_failure
from softswitch.flower import messages as wire
from softswitch.flower.jax_client import initial_arrays
from softswitch.flower.membership import confusable_key, find_keys
from softswitch.flower.remote import RemoteClients, RemoteTask
from softswitch.flower.roster import Roster
from softswitch.flower.run import EXCHANGES, FlowerRun, check_run, parse_start
from softswitch.flower.second_order import FOLDER, find_obstacle, run_second_order
from softswitch.flower.settings import StrategySettings, with_changes
from softswitch.methods import robust
from softswitch.methods.automatic import Automatic, as_method, to_first_order
from softswitch.methods.base import Method
from softswitch.methods.sqp import SQP
from softswitch.oracles.derivatives import UnavailableError
from softswitch.problem.domains import check_domain
from softswitch.problem.parameters import Params
from softswitch.results import folder as folders
from softswitch.results.checkpoints import Checkpoints
from softswitch.results.events import EVENTS
from softswitch.results.history import Record
from softswitch.results.result import Result
from softswitch.results.status import StatusCode
from softswitch.support import checks
from softswitch.support.files import write_atomically, write_json

logger = logging.getLogger("softswitch.flower")


class SwitchingStrategy(Strategy):
    """A softswitch method as a Flower strategy, for use in any ServerApp.

        strategy = SwitchingStrategy(Automatic(tolerance=0.1))
        strategy.start(grid, initial_arrays(parameters(module)), num_rounds=100)
        strategy.result        # softswitch's Result: status, history, diagnostics, values at every client

    The settings of an ``Automatic`` method are chosen during the run, as by ``solve``. The choices are logged, and they
    are in ``result.restarts`` and in checkpoints. If all clients allow second derivatives and the model is small,
    ``SQP`` runs in place of a first-order method; ``result.auto_settings`` says which ran and why.

    The clients must use ``client_app``. ``start`` returns the arrays of the answer, not of the last iterate. A round
    has two exchanges, or one with ``SQP``. Flower's hooks, such as ``configure_train``, raise NotImplementedError.

    Args:
        method: The method and its settings.
        settings: All further settings.
        changes: Single settings by name, such as ``SwitchingStrategy(method, local_steps=5, min_clients=3)``.

    Attributes:
        settings: The settings.
        result: The result; None before the end of the run.
        clients: All clients, for a certificate for example; None before the start.
    """

    def __init__(self, method: Method | Automatic, settings: StrategySettings | None = None, **changes: Any) -> None:
        self.method = resolve_method(method)
        is_automatic([self.method])  # raises if it is invalid
        self.settings = with_changes(settings, changes)
        if self.method.switches_on == "pooled" and self.settings.pooled is None:
            raise ValueError("criterion='pooled' needs pooled, the value function of the clients' PooledConstraint")
        self.result: Result | None = None
        self.clients: RemoteClients | None = None

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 100,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> FlowerResult:
        """Run the rounds, evaluate the answer, and set ``self.result``.

        Args:
            grid: Flower's grid.
            initial_arrays: The first parameters w_0.
            num_rounds: Maximum number of rounds K. Exchanges with ``SQP`` count as rounds.
            timeout: Timeout in seconds of each of a round's two exchanges, reports and updates. Default: those of the
                settings.
            train_config: Must be empty: settings are arguments of the strategy.
            evaluate_config: Must be empty.
            evaluate_fn: Called with the number of rounds so far and the arrays, before the first round and after each.

        Returns:
            The arrays of the answer and the metrics of each round, in Flower's form. ``self.result`` has the rest.

        Raises:
            TimeoutError: No client connected within the setting ``wait``.
            UnavailableError: The method is ``SQP``, and a client sends no second derivatives.
            ValueError: An argument is invalid, ``clients`` is missing, or the checkpoint is of another run.
        """
        rounds = checks.check_integer("num_rounds", num_rounds, minimum=1)
        for name, config in (("train_config", train_config), ("evaluate_config", evaluate_config)):
            if config:
                raise ValueError(f"{name} must be empty: settings are arguments of SwitchingStrategy; but is {config}")
        self._check_membership()
        settings = self._with_min_clients()
        if timeout is not None:
            limit = checks.check_real("timeout", timeout, above=0)
            settings = replace(settings, report_timeout=limit, update_timeout=limit)
        self.summary()
        params = parse_start(initial_arrays)
        check_domain(settings.domain, params)
        obstacle = find_obstacle(self.method, settings, params)
        if not isinstance(self.method, SQP):
            check_run(self.method, settings, params, rounds)
        elif obstacle:
            raise ValueError(f"{obstacle}, which SQP cannot use over Flower: use Automatic or SoftmaxSGM")
        roster = Roster(grid, settings)
        roster.refresh(settings.min_clients, settings.wait, all_expected=True)
        if roster.constraints is None:
            which = "client of the list" if settings.clients else "client"
            raise TimeoutError(f"no {which} connected within wait={settings.wait:g} s")
        if settings.secure is not None and not roster.reports_all_rows:
            reason = "with weights that vary by chance, many sums reveal single directions"
            raise ValueError(f"secure needs clients that report on all rows (value_batch_size=None): {reason}")
        self.clients = RemoteClients(roster, settings)
        flower_result = FlowerResult()

        def after_round(done: int, params: Params, record: Any = None) -> None:
            if record is not None:
                numbers = {"objective": float(record.objective[0]), "constraint": float(record.constraint[0])}
                flower_result.train_metrics_clientapp[done] = MetricRecord({**numbers})
            metrics = None if evaluate_fn is None else evaluate_fn(done, wire.to_record(params))
            if metrics is not None:
                flower_result.evaluate_metrics_serverapp[done] = metrics

        task = RemoteTask(self.clients, params, rounds, after_round)
        if isinstance(self.method, SQP):
            self.result = run_second_order(self.method, task, settings.checkpoints)
        elif is_automatic([self.method]):
            self.result = self._run_automatic(task, obstacle)
        else:
            self.result = self._run_rounds(task)
        flower_result.arrays = wire.to_record(self.result.params)
        return flower_result

    def _run_automatic(self, task: RemoteTask, obstacle: str) -> Result:
        """Run ``SQP`` if it is possible; otherwise, and if it fails, run the rounds of the method that are left."""
        clients, checkpoints = task.clients, task.clients.settings.checkpoints
        attempt: Result | None = None
        exchanges = 0
        obstacle = obstacle or find_obstacle(self.method, clients.settings, task.start, clients.roster)
        if checkpoints is not None and checkpoints.saved_identity("method") is not None:
            obstacle = obstacle or "the run has gone on with it before"
            exchanges = int(checkpoints.saved_identity(EXCHANGES) or 0)
            if exchanges >= task.rounds:
                minimum = f"more than {exchanges}, the number of exchanges with SQP before the checkpoint"
                raise ValueError(f"num_rounds must be {minimum}, but is {task.rounds}")
        if not obstacle:
            if checkpoints is not None:
                checkpoints = replace(checkpoints, folder=Path(checkpoints.folder) / FOLDER)
            try:
                method = SQP(tolerance=self.method.tolerance)
                attempt = run_second_order(method, task, checkpoints)
            except UnavailableError as error:
                obstacle = str(error)
            else:
                exchanges = len(attempt.history)
                failure = describe_failure(attempt)
                if failure is None or exchanges >= task.rounds:
                    why = "all clients allow second derivatives, and the model is small"
                    return replace(attempt, auto_settings={"method": f"SQP, because {why}"})
                obstacle = failure
            logger.warning("continuing with a first-order method: %s", obstacle)
            clients.events.record("first order", obstacle)
        result = self._run_rounds(task, exchanges, attempt)
        return replace(result, auto_settings={"method": f"first order, because {obstacle}"} | result.auto_settings)

    def _run_rounds(self, task: RemoteTask, exchanges: int = 0, attempt: Result | None = None) -> Result:
        """Run the first-order rounds that are left after some exchanges with ``SQP``.

        ``attempt`` is their result. It is None if there were none, or if they were before the checkpoint.
        """
        checkpoints = task.clients.settings.checkpoints
        method = to_first_order(self.method)
        with nullcontext() if checkpoints is None else checkpoints.lock():
            run = self._run = FlowerRun(method, task._replace(rounds=task.rounds - exchanges), exchanges, attempt)

            def after_round(record: Record | None = None) -> None:
                task.after_round(exchanges + run.server.done, run.server.state.params, record)

            run.begin()
            try:
                after_round()
                while not run.is_over:
                    record = run.play_round()
                    run.after_round(record)
                    after_round(record)
            except KeyboardInterrupt:
                if not run.server.done:
                    raise
            run.save()
            return run.finish()

    def summary(self) -> None:
        """Log the method and the settings."""
        logger.info("%s, %s", self.method, self.settings)

    def _refuse_hook(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise NotImplementedError: a round has two exchanges, which ``start`` runs."""
        raise NotImplementedError("SwitchingStrategy runs rounds of two exchanges, without Flower's hooks: call start")

    configure_train = aggregate_train = configure_evaluate = aggregate_evaluate = _refuse_hook

    def _check_membership(self) -> None:
        """Raise ValueError if the run counts clients, and anyone may join as several of them."""
        settings, byzantine = self.settings, self.method.robust
        if not (settings.clients or settings.simulation) and (byzantine is not None or settings.secure is not None):
            feature = "secure" if settings.secure is not None else f"robust={byzantine}"
            problem = f"{feature} needs clients, the public key of every client by its name, but clients is empty"
            reason = "without keys, one attacker can join under several names"
            raise ValueError(f"{problem}: {reason}. Set clients, or simulation=True if you run all clients yourself")

    def _with_min_clients(self) -> StrategySettings:
        """Return the settings with enough clients in a round: all for secure aggregation, more than Byzantine ones."""
        settings, byzantine = self.settings, self.method.robust
        if settings.secure is not None and not settings.expected:
            raise ValueError("secure needs names or clients: all clients that take part, in every round")
        fewest = settings.min_clients if settings.secure is None else len(settings.expected)
        if byzantine is not None:
            fewest = robust.min_participants(byzantine)
            if settings.expected and len(settings.expected) < fewest:
                problem = f"robust={byzantine} needs at least {fewest} clients in every round"
                raise ValueError(f"{problem}, but {len(settings.expected)} may take part")
        return replace(settings, min_clients=max(settings.min_clients, fewest))


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
    active = SwitchingStrategy(method, base).method  # raises now if it is invalid, not on the server
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
        rows = {"rows": [clients.roster.rows(i) for i in range(len(result.names))]}
        folders.write_result(folder, result, about=about, clients=rows)  # before the certificate, which may fail
        console = Console(stderr=True, width=110)
        console.print(result.explain(), markup=False)
        if confidence is not None and result.status.code is not StatusCode.DIVERGED:
            certificate = clients.certify(result.params, float(active.tolerance), confidence)
            folders.write_result(folder, result, about=about, clients=rows, certificate=certificate)
            if certificate is not None:
                console.print(certificate.table())
        if find_spec("jinja2") is not None:
            from softswitch.results.report.page import write_report

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
    values = vars(settings) | {"clients": list(settings.clients)}
    defaults = vars(StrategySettings()) | {"clients": []}
    changed = {key: value for key, value in values.items() if value is not None and value != defaults[key]}
    sections: dict[str, Mapping[str, Any]] = {"run": request, "strategy": changed, "method": {"method": str(method)}}
    return "\n".join(
        f"[{name}]\n" + "".join(f"{key} = {json.dumps(value, default=str)}\n" for key, value in section.items())
        for name, section in sections.items()
    )
