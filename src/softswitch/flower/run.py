"""One run of rounds over Flower: its clients, its rounds with two exchanges, its restarts, checkpoints and result.

A round costs two exchanges, and an evaluation one. An automatic run evaluates the start once. After a restart, its last
iterate, its average and its best iterate are evaluated, and compared over the clients that reported on all of them.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import ArrayRecord

from softswitch.engine.auto_tuning import MIN_RESTART_ROUNDS, SMOOTHING, choose_first_restart
from softswitch.engine.request import AUTOMATIC_AVERAGE, is_automatic
from softswitch.engine.restarts import MUCH_SMALLER, Answer, Restarts, candidates, next_factor, numbers_of, with_numbers
from softswitch.engine.server_step import summarize
from softswitch.flower import messages as wire
from softswitch.flower.compression import HeldParams
from softswitch.flower.remote import PrivacyReport, RemoteClients, RemoteTask, RoundExchange, quote_first
from softswitch.flower.server_state import ServerState, keep_clients
from softswitch.flower.settings import StrategySettings
from softswitch.methods.base import Method, check_over_network
from softswitch.methods.compression import Compression, check_compression
from softswitch.methods.memory import Memory
from softswitch.methods.schedules import FallingStep
from softswitch.methods.state import check_optimizer
from softswitch.oracles.base import Evaluation
from softswitch.oracles.evaluation import ClientSummary
from softswitch.problem.parameters import Params, check_start
from softswitch.results.callbacks import Chunk, SwitchShare, run_callbacks
from softswitch.results.checkpoints import Snapshot
from softswitch.results.history import ClientOutcome, History, Record
from softswitch.results.result import Result, build_result
from softswitch.results.status import Restart, RunEnd, StatusCode
from softswitch.support.arrays import fingerprint, has_leaves
from softswitch.support.text import join_first
from softswitch.support.tracing import strip_addresses

logger = logging.getLogger("softswitch.flower")
CORRECTED = "corrected"  # the entry of a run's identity that marks a corrected memory
EXCHANGES = "exchanges"  # the entry with the number of exchanges with SQP before the rounds
FIRST_LOCAL = 1e-3  # the clients' step, relative to the server's, before the norm of a direction is known
THRESHOLD_GAIN, STUCK, FREE = 0.7, 0.02, 0.98
"""The threshold moves by this share of the constraint's distance to the tolerance, if the share of feasible rounds was
between the last two."""


class FlowerRun:
    """One run of rounds: ``begin``, rounds, and ``finish``. The constructor contacts no clients.

    ``exchanges`` is the number of exchanges of an attempt with ``SQP`` that this run continues, and ``attempt`` its
    result. ``identity`` is what the run depends on, as text. ``held`` tracks which parameters clients have.
    """

    def __init__(self, method: Method, task: RemoteTask, exchanges: int = 0, attempt: Result | None = None) -> None:
        clients, params, rounds = task.clients, task.start, task.rounds
        self.requested = method
        self.clients = clients
        self.roster = clients.roster
        self.events = clients.events
        tunes = is_automatic([method])
        memory = self._choose_memory(clients.settings, tunes)
        self.settings = settings = replace(clients.settings, memory=memory)
        template = _template(method, params, rounds, jumps=clients.roster.has_surrogate) if tunes else method
        start = params if attempt is None or attempt.status.code is StatusCode.DIVERGED else attempt.last
        self.server = ServerState(template, start, clients.constraints, rounds, settings)
        self.held = HeldParams(self.server.compression, reports_twice=memory is not None and memory.corrected)
        self.restarts = RemoteRestarts(method, rounds, self.server, clients) if tunes else None
        self._share = SwitchShare()
        self._stops = False
        self._began = time.perf_counter() - (0.0 if attempt is None else attempt.seconds)
        self.identity = self._server_identity(params, tunes) | ({EXCHANGES: str(exchanges)} if exchanges else {})

    def begin(self) -> None:
        """Resume from the latest checkpoint; without one, evaluate the start of an automatic run at all clients."""
        if not self._resume() and self.restarts is not None:
            self.restarts.start()
        if self.server.record is not None and self.server.record.clients is not None:
            self.held.restore(self.server.record.clients, self.server.restart_begin)
        if unknown := self.clients.unknown_excluded:
            logger.warning("exclude: no client is known by the name %s; check the spelling", quote_first(unknown))

    def _server_identity(self, params: Params, tunes: bool) -> dict[str, str]:
        """Return what the run depends on at the server, as text."""
        method, settings = self.requested, self.settings
        memory = self.clients.settings.memory
        if memory == "auto" and not tunes and method.robust is None:
            memory = None
        domain = settings.domain if has_leaves(settings.domain) else None
        numbers = method, domain, None if isinstance(memory, str) else memory
        as_text = ("seed", "local_steps", "participation", "min_clients", "clip_norm")
        return {
            "method": strip_addresses(str(method)),
            **{name: str(getattr(settings, name)) for name in as_text},
            **{name: strip_addresses(repr(getattr(settings, name))) for name in ("domain", "pooled")},
            "memory": str(memory),
            "constraints": str(self.clients.constraints),
            "numbers": fingerprint(numbers),
            "start": fingerprint(params),
            "program": self.server.program(),
            "jax": jax.__version__,
            **({} if settings.secure is None else {"secure": str(settings.secure), "min_clients": "all"}),
            **({CORRECTED: "yes"} if self.held.reports_twice else {}),
        }

    def _choose_memory(self, settings: StrategySettings, tunes: bool) -> Memory | None:
        """Return the memory of the settings; for "auto", one if the method is tuned or robust and needs it."""
        roster, is_robust = self.roster, self.requested.robust is not None
        if not isinstance(settings.memory, str):
            if settings.memory is not None and settings.memory.corrected and (single := roster.single_reporters):
                problem = f"memory must not be corrected if clients report at one iterate only, as {join_first(single)}"
                raise ValueError(f"{problem}, because they lack can_repeat_reports: use Memory(smoothing=…)")
            return settings.memory
        if not (tunes or is_robust) or settings.pooled is not None:
            return None
        corrects, checkpoints = not is_robust and not roster.reports_all_rows, settings.checkpoints
        corrects = corrects and not roster.single_reporters
        if checkpoints is not None and checkpoints.saved_identity("method") is not None:  # a resumed run
            corrects = checkpoints.saved_identity(CORRECTED) is not None
        if tunes and corrects:
            return Memory(corrected=True)
        if settings.participation == 1:
            return None
        return Memory(smoothing=0.0 if roster.reports_all_rows else SMOOTHING)

    def _resume(self) -> bool:
        """Continue from the latest checkpoint; return False if there is none."""
        checkpoints, restarts, server = self.settings.checkpoints, self.restarts, self.server
        if checkpoints is None:
            return False
        snapshot = checkpoints.latest(self.identity, server.like, restarts and server.state.params)
        if snapshot is None:
            return False
        journal = json.loads(snapshot.journal) if snapshot.journal else {}
        self.clients.withdrawn = list(journal.get("withdrawn", ()))
        kept = self.clients.resume(snapshot.names)
        if len(kept) < len(snapshot.names):
            snapshot = keep_clients(snapshot, kept)
        server.resume(snapshot, in_restarts=restarts is not None)
        self._began -= snapshot.seconds
        if server.memory is not None:
            server.memory = replace(server.memory, smoothing=journal["smoothing"])
        spent = journal.get("spent", {}).items()
        self.clients.privacy.reports = {name: PrivacyReport(*report) for name, report in spent}
        if restarts is not None:
            restarts.resume(snapshot.best, journal["restarts"], kept)
            server.restart_begin = restarts.done
        elif "numbers" in journal:
            server.method = with_numbers(server.method, journal["numbers"])
        self._share.update(self._history())
        progress = f"after {snapshot.done} of {server.rounds} rounds"
        logger.info("resuming %s", progress)
        self.events.record("resumed", progress)
        return True

    @property
    def is_over(self) -> bool:
        """Whether there are no more rounds."""
        return self.server.done >= self.server.rounds or self.server.has_diverged or self._ends_early

    @property
    def _ends_early(self) -> bool:
        return self._stops or self.server.void_in_a_row >= self.settings.patience

    @property
    def seconds(self) -> float:
        """The seconds since the run began."""
        return time.perf_counter() - self._began

    def play_round(self) -> Record:
        """Sample clients, collect their reports, decide, collect directions, and step; return the round's record."""
        settings, server, roster = self.settings, self.server, self.roster
        k = self.events.round = server.done
        roster.refresh(settings.min_clients, settings.wait)
        participants = server.sample(roster.available(k, settings.min_clients), len(roster.names))
        full = ClientSummary.missing()
        if settings.eval_every and k % settings.eval_every == 0:
            full = _summarize(self.requested, self.clients.evaluate_params(server.state.params, patient=False))
        self.held.begin(server.state.params, server.state.parts.get("previous"))
        messages = RoundExchange(self.clients, server, self.held, participants)
        reports = messages.collect_reports()
        played = server.decide(participants, reports)
        update = None if played is None else messages.collect_update(played)
        messages.record_silence()
        record = server.apply(played, update, messages.observe(reports, full))
        outcomes = messages.outcomes
        self.held.end_round(k, participants, outcomes, server.change, server.state.params)
        if server.void_in_a_row:
            logger.warning("round %d is void: %s", k, _count_outcomes(outcomes))
            self.events.record("void round", _count_outcomes(outcomes))
        return record

    def after_round(self, record: Record) -> None:
        """Run the callbacks, begin the next restart if one has ended, and save a checkpoint if it is due."""
        server = self.server
        history = History.from_records(self.clients, [record], 1, first=server.done - 1)
        share = self._share.update(history)
        chunk = Chunk(server.done, server.rounds, history, share, server.state, self.seconds)
        self._stops = run_callbacks(self.settings.callbacks, chunk)
        if self.restarts is not None:
            self.restarts.after_round(may_begin=not self._ends_early)
        if self.settings.checkpoints is not None and self.settings.checkpoints.is_due():
            self.save()

    def save(self) -> None:
        """Save a checkpoint, if there is a folder for them and a round was done."""
        server, checkpoints = self.server, self.settings.checkpoints
        if checkpoints is None or server.record is None:
            return
        best, journal = None, dict[str, Any]()
        if server.memory is not None:
            journal["smoothing"] = float(server.memory.smoothing)
        if self.clients.withdrawn:
            journal["withdrawn"] = self.clients.withdrawn
        if spent := self.clients.privacy.reports:
            journal["spent"] = spent
        if self.restarts is not None:
            best, journal["restarts"] = self.restarts.to_checkpoint()
        elif server.method is not self.requested:
            journal["numbers"] = numbers_of(server.method)
        names, text = tuple(self.roster.names), json.dumps(journal) if journal else ""
        state, record, done, begin = server.state, server.record, server.done, server.averaging_from
        checkpoints.save(Snapshot(state, record, done, self.seconds, begin, names, best, text), self.identity)

    def finish(self) -> Result:
        """Evaluate the answer and return the result."""
        server, restarts, history = self.server, self.restarts, self._history()
        if restarts is not None and restarts.done < server.done:  # the checkpoint continues this restart
            restarts.close()
        assert history.per_client is not None
        participants = (history.per_client.clients >= 0).sum(axis=1)
        self.clients.participants = max(1, round(float(participants.mean())))
        end = RunEnd(
            server.state,
            history,
            server.method,
            tuple(self.roster.names),
            averaging_from=server.averaging_from,
            answer="average" if self.settings.answer == "auto" else self.settings.answer,
            stopped=server.done < server.rounds and not server.has_diverged,
            seed=self.settings.seed,
            seconds=self.seconds,
            restarts=() if restarts is None or server.has_diverged else tuple(restarts.past),
        )
        # The noise of reports at one iterate is not measured: it would take extra rounds.
        result = self.clients.privacy.add_to_result(build_result(end, self.clients, lambda: math.nan))
        result = replace(result, diagnostics=(*result.diagnostics, *self.clients.diagnostics()))
        self.events.record("finished", str(result.status))
        if server.void_in_a_row < self.settings.patience:
            return result
        message = f"{result.status.message}. It ended after {server.void_in_a_row} void rounds in a row (patience)"
        return replace(result, status=replace(result.status, message=message))

    def _history(self) -> History:
        assert self.server.record is not None
        return History.from_records(self.clients, [self.server.record], self.server.done)


def _template(method: Method, params: Params, rounds: int, *, jumps: bool) -> Method:
    return choose_first_restart(params, rounds, may_end=False, exact=False, jumps=jumps).template(method)


def check_run(method: Method, settings: StrategySettings, params: Params, rounds: int) -> None:
    """Raise if the method cannot run over Flower, or not with these settings."""
    check_over_network(method)
    check_compression(method.at_clients, settings.domain, method.robust)
    if settings.secure is not None and method.robust is not None:
        raise ValueError(f"robust={method.robust} compares single directions, which secure hides: use one of the two")
    if settings.secure is not None and isinstance(method.at_clients, Compression):
        raise ValueError("masked directions cannot be compressed: use either secure or Compression")
    check_optimizer(_template(method, params, rounds, jumps=False) if is_automatic([method]) else method, params)


def parse_start(initial_arrays: ArrayRecord) -> Params:
    """Return the first parameters, or raise if JAX does not compute in their dtypes."""
    arrays = wire.from_record(initial_arrays)
    params = check_start("initial_arrays", arrays)
    expected = wire.array_specs(params)
    for name, shape in wire.array_specs(arrays).items():
        if expected[name] != shape:
            problem = f"initial_arrays must be of a dtype that JAX computes in, but {name!r} is {arrays[name].dtype}"
            raise ValueError(f"{problem}; use float32, or jax.config.update('jax_enable_x64', True)")
    return params


def _summarize(method: Method, values: Evaluation) -> ClientSummary:
    """Return F and G over the clients that replied."""
    if np.isnan(values.objective).all():
        return ClientSummary.missing()
    both = (values.objective, values.constraint)
    return summarize(method, *(jnp.asarray(np.where(np.isnan(part), -np.inf, part)) for part in both))


def _count_outcomes(outcomes: np.ndarray) -> str:
    values, counts = np.unique(outcomes, return_counts=True)
    parts = [f"{count} {ClientOutcome(int(value)).label}" for value, count in zip(values, counts, strict=True)]
    return ", ".join(parts) or "no client is connected"


class _Evaluated(NamedTuple):
    """An iterate and its values f_i and g_i at the clients that reported them, by index."""

    params: Params
    description: str
    values: dict[int, tuple[float, list[float]]]
    pooled: np.ndarray | None

    def over(self, clients: Collection[int], method: Method) -> Answer:
        """Return F and G over some clients; NaN over none."""
        if not clients:
            return Answer(self.params, math.nan, math.nan, self.description, math.nan)
        objective, constraint = zip(*(self.values[i] for i in sorted(clients)), strict=True)
        values = Evaluation(np.array(objective), np.array(constraint), self.pooled)
        return Answer.of(self.params, self.description, values, method)


class RemoteRestarts(Restarts):
    """The restarts of a run over Flower."""

    def __init__(self, requested: Method, rounds: int, server: ServerState, clients: RemoteClients) -> None:
        self._server, self._clients, self._settings = server, clients, clients.settings
        self._exact = clients.roster.reports_all_rows and self._settings.participation == 1
        options = {"may_end": False, "exact": self._exact, "jumps": clients.roster.has_surrogate}
        super().__init__(choose_first_restart(server.state.params, rounds, **options), requested)
        self._direction_size, self._measures_size = math.nan, False
        self._start_constraint = math.nan
        self._best = _Evaluated(server.state.params, "the start", {}, None)

    def start(self) -> None:
        """Evaluate the start at all clients, and begin the first restart."""
        self._best = self._evaluate(self._server.state.params, "the start")
        values = self._best.over(self._best.values, self._requested)
        self._start_constraint = values.constraint
        logger.info("at the start F is %.4g and G is %.4g", values.objective, values.constraint)
        self._begin()

    def _begin(self) -> None:
        """Begin the next restart at the best answer so far."""
        choice, settings, done = self._choice, self._settings, self.done
        first = choice.first_step * math.sqrt(max(1.0, MIN_RESTART_ROUNDS / choice.next_length(done, len(self.past))))
        if self.past:
            first = self.past[-1].step_size * self._factor
        step = local = self._next_step(first, settings.average_last or AUTOMATIC_AVERAGE)
        has_local_steps = settings.local_steps > 1
        if has_local_steps:  # a local path is as long as the server's step
            scale = FIRST_LOCAL if math.isnan(self._direction_size) else 1 / self._direction_size
            local = replace(step, first=first / settings.local_steps * scale)
        start = self._start_constraint if math.isfinite(self._start_constraint) else self.tolerance
        # Never above the tolerance: there are too few restarts to recover from answers that violate it.
        threshold = self._next_threshold(start, self._best.params, above=False)
        method = self.method = choice.method(self._requested, step, self._momentum, threshold, local)
        self._measures_size = has_local_steps
        self._server.begin_restart(self._best.params, method, self.averaging_from, self._best.values)
        logger.info("rounds %d to %d use %s", done, self.end - 1, method)

    def after_round(self, *, may_begin: bool) -> None:
        """Adapt the clients' step; if the restart has ended, close it and begin the next if there is one."""
        server, size = self._server, self._server.direction_size
        if self._measures_size and self._requested.local_step_size is None and size is not None:
            self._set_local_step(size)
        if server.done >= min(self.end, self._choice.rounds) or server.has_diverged:
            self.close()
            if may_begin and not self._is_over:
                self._begin()

    @property
    def _is_over(self) -> bool:
        return self.done >= self._choice.rounds or self.has_diverged

    def close(self) -> None:
        """Evaluate the candidates of the present restart, and leave the best answer so far in the server's state."""
        server, begin, tolerance = self._server, self.done, self.tolerance
        diverged, evaluated = server.has_diverged, list[_Evaluated]()
        if not diverged and np.isfinite(server.state.best.criterion):  # otherwise no round counted
            every = candidates(server.state, begin, server.done, server.averaging_from, self._settings.answer)
            evaluated = [self._evaluate(*candidate) for candidate in every.values()]  # the last iterate first
        before, self._best = self._best, self._select_best(evaluated)
        common = self._best.values.keys() & before.values.keys()
        old, new = (one.over(common, self._requested) for one in (before, self._best))
        self._factor = MUCH_SMALLER if diverged else next_factor(old, new, tolerance) if evaluated else 1.0
        self._shift = 0.0
        if evaluated and not self._exact and STUCK < server.feasible_share(begin) < FREE:
            last = evaluated[0].over(evaluated[0].values, self._requested)
            shift = THRESHOLD_GAIN * (tolerance - last.constraint)
            self._shift = shift if math.isfinite(shift) else 0.0
        best, self.method = self._best.over(self._best.values, self._requested), server.method
        restart = self._finish(server.done, best, better=self._best is not before, diverged=diverged)
        logger.info("%s", restart)
        if not (diverged and self.has_diverged):
            server.end_restart(self._best.params, best.objective if best.constraint <= tolerance else math.inf)

    def to_checkpoint(self) -> tuple[Params, str]:
        """Return the best answer and the rest of the state as JSON."""
        best = self._best
        pooled = None if best.pooled is None else best.pooled.tolist()
        state = {
            "past": [restart.to_dict() for restart in self.past],
            "best": [best.description, list(best.values.items()), pooled],
            "next": [self._factor, self._shift, self._momentum, self._direction_size, self._measures_size],
            "start": self._start_constraint,
            "exact": self._exact,
            "now": [self.end, numbers_of(self._server.method)],
        }
        return best.params, json.dumps(state)

    def resume(self, params: Params, checkpoint: str, kept: Sequence[int]) -> None:
        """Continue from a checkpoint with some of its clients, which get new indices in this order."""
        state = json.loads(checkpoint)
        self.past = [Restart.from_dict(restart) for restart in state["past"]]
        description, values, pooled = state["best"]
        values = {kept.index(i): (objective, constraint) for i, (objective, constraint) in values if i in kept}
        pooled = None if pooled is None else np.asarray(pooled, float)
        self._best = _Evaluated(jax.tree.map(jnp.asarray, params), description, values, pooled)
        self._factor, self._shift, self._momentum, self._direction_size, self._measures_size = state["next"]
        self._start_constraint, self._exact = state["start"], state["exact"]
        self.end, numbers = state["now"]
        self._server.method = with_numbers(self._server.method, numbers)
        if self._server.done == self.done and not self._is_over:
            self._begin()

    def _evaluate(self, params: Params, description: str) -> _Evaluated:
        found = self._clients.evaluate_params(params, patient=False)
        reported = np.flatnonzero(~np.isnan(found.objective)).tolist()
        values = {i: (float(found.objective[i]), found.constraint[i].tolist()) for i in reported}
        return _Evaluated(params, description, values, found.pooled)

    def _select_best(self, evaluated: Sequence[_Evaluated]) -> _Evaluated:
        """Return the best of these and of the best so far, over the clients that reported on all of them.

        If no client reported on any of these, return the last one: the best by its reports.
        """
        reported = [one for one in evaluated if one.values]
        if not reported:
            return evaluated[-1] if evaluated else self._best
        common = set.intersection(*(set(one.values) for one in reported))
        if common & self._best.values.keys():
            reported, common = [self._best, *reported], common & self._best.values.keys()
        elif not common:
            return reported[-1]
        ranks = [one.over(common, self._requested).rank(self.tolerance) for one in reported]
        return reported[min(range(len(reported)), key=lambda i: (not np.isfinite(ranks[i]).all(), ranks[i]))]

    def _set_local_step(self, size: float) -> None:
        """Set the clients' step by the norm of the restart's first direction."""
        server = self._server
        step, local = server.method.step_size, server.method.local_step_size
        assert isinstance(step, FallingStep)
        assert isinstance(local, FallingStep)
        self._direction_size, self._measures_size = size if size > 0 else 1.0, False
        first = step.first / (self._settings.local_steps * self._direction_size)
        server.method = replace(server.method, local_step_size=replace(local, first=first))
        logger.info("a direction has norm %.3g, so the clients' step size is %.3g", self._direction_size, first)
