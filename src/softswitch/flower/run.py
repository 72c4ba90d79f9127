"""One run over Flower: its clients, its state, its checkpoints and its result."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp import Grid

from softswitch.engine.auto_tuning import SMOOTHING, choose_first_restart
from softswitch.engine.request import is_automatic
from softswitch.engine.restarts import numbers_of, with_numbers
from softswitch.flower import messages as wire
from softswitch.flower.compression import ClientParams, PreviousParams
from softswitch.flower.exchange import PollingGrid
from softswitch.flower.remote import RemoteClients, ReplyReader
from softswitch.flower.restarts import RemoteRestarts
from softswitch.flower.roster import Roster
from softswitch.flower.secure_aggregation import SecureAggregator
from softswitch.flower.server_state import ServerState
from softswitch.flower.settings import StrategySettings
from softswitch.methods.base import Method, check_over_network
from softswitch.methods.compression import Compression, check_compression
from softswitch.methods.memory import Memory
from softswitch.methods.state import State, check_optimizer
from softswitch.problem.domains import check_domain
from softswitch.problem.parameters import Params, check_start
from softswitch.results.callbacks import Chunk, SwitchShare, run_callbacks
from softswitch.results.checkpoints import Snapshot
from softswitch.results.events import EventLog
from softswitch.results.history import ClientOutcome, History, Record
from softswitch.results.result import Result, build_result
from softswitch.results.status import Diagnostic, DiagnosticCode, RunEnd
from softswitch.support.arrays import fingerprint, has_leaves, take_clients
from softswitch.support.text import join_first
from softswitch.support.tracing import strip_addresses

logger = logging.getLogger("softswitch.flower")
CORRECTED = "corrected"
"""The entry of a run's identity that marks a corrected memory."""


class FlowerRun:
    """One run, from the first contact with clients to its result.

    ``held`` tracks which parameters clients have, if messages are compressed, and ``before`` which clients have the
    previous iterate, if they report there too. ``identity`` is what the run depends on, as text.
    """

    def __init__(
        self,
        method: Method,
        settings: StrategySettings,
        grid: Grid,
        initial_arrays: ArrayRecord,
        rounds: int,
        clients_identity: Mapping[str, str],
    ) -> None:
        params = _first_params(initial_arrays)
        compression = method.at_clients if isinstance(method.at_clients, Compression) else None
        tunes = is_automatic([method])
        _check(method, settings, params)
        check_optimizer(_template(method, params, rounds, jumps=False) if tunes else method, params)
        self._requested = method
        self.held = None if compression is None else ClientParams(compression)
        self.events = EventLog(settings.events)
        self.grid = cast(Grid, PollingGrid(grid, settings.update_timeout, settings.required_replies))
        self.roster = roster = Roster(settings, self.events)
        roster.refresh(self.grid, settings.min_clients, settings.wait, all_expected=True)
        constraints = roster.constraints
        if constraints is None:
            which = "client of the list" if settings.clients else "client"
            raise TimeoutError(f"no {which} connected within wait={settings.wait:g} s")
        self._warn_of_dominant_client(settings)
        requested_memory = settings.memory
        if requested_memory == "auto" and not tunes and method.robust is None:
            requested_memory = None
        self.settings = settings = replace(settings, memory=self._choose_memory(settings, tunes))
        self.clients = RemoteClients(self.grid, roster, settings, self.events)
        keeps_sums = settings.pooled is not None and settings.memory is not None
        statistics = roster.statistics or None if keeps_sums else None
        if keeps_sums and statistics is None and method.switches_on == "pooled":
            raise ValueError(
                "criterion='pooled' with memory needs the number of statistics that a client reports, but no client "
                "has reported it; give your clients an attribute statistics with that number"
            )
        is_corrected = isinstance(settings.memory, Memory) and settings.memory.corrected
        self.before = PreviousParams() if is_corrected else None
        template = _template(method, params, rounds, jumps=roster.has_surrogate) if tunes else method
        self.server = ServerState(template, params, constraints, statistics, rounds, settings)
        exact = roster.reports_all_rows and settings.participation == 1
        self.restarts = RemoteRestarts(method, rounds, self.server, self.clients, settings, exact) if tunes else None
        shapes, self.aggregator, read_masked = wire.array_specs(params), None, None
        if settings.secure is not None and settings.clip_norm is not None:
            self.aggregator = SecureAggregator(settings.secure, settings.clip_norm, shapes, self.events)
            read_masked = self.aggregator.read_update
        up = None if compression is None else compression.up
        self.reader = ReplyReader(self.clients, shapes, statistics, self.server.dtype, up, read_masked)
        self.metrics: dict[int, MetricRecord] = {}
        self._share, self._stops = SwitchShare(), False
        self._began = time.perf_counter()
        domain = settings.domain if has_leaves(settings.domain) else None
        numbers = method, domain, None if isinstance(requested_memory, str) else requested_memory
        as_text = ("seed", "local_steps", "participation", "min_clients", "clip_norm", "largest_number")
        self.identity = {
            "method": strip_addresses(str(method)),
            **{name: str(getattr(settings, name)) for name in as_text},
            **{name: strip_addresses(repr(getattr(settings, name))) for name in ("domain", "pooled")},
            "memory": str(requested_memory),
            "constraints": str(constraints),
            "numbers": fingerprint(numbers),
            "start": fingerprint(params),
            "program": self.server.program(),
            "jax": jax.__version__,
            **({} if statistics is None else {"statistics": str(statistics)}),
            **({} if settings.secure is None else {"secure": str(settings.secure)}),
            **({CORRECTED: "yes"} if is_corrected else {}),
            **clients_identity,
        }
        if not self._resume() and self.restarts is not None:
            self.restarts.start()
        if self.held is not None and self.server.record is not None and self.server.record.clients is not None:
            recorded = self.server.record.clients
            assert recorded.outcomes is not None
            self.held.restore(np.asarray(recorded.clients), np.asarray(recorded.outcomes), self.server.cycle_begin)
        if unknown := self._unknown_excluded:
            logger.warning("exclude: no client is known by the name %s; check the spelling", unknown)

    def _choose_memory(self, settings: StrategySettings, tunes: bool) -> Memory | None:
        """Return the memory of the settings; for "auto", one if the method is tuned or robust and needs it."""
        roster, is_robust = self.roster, self._requested.robust is not None
        if not isinstance(settings.memory, str):
            if settings.memory is not None and settings.memory.corrected and (single := roster.single_reporters):
                raise ValueError(
                    f"memory must not be corrected if clients report at one iterate only, as {join_first(single)} do: "
                    "private clients, networks with running means, custom clients without can_repeat_reports, and "
                    "clients of an older softswitch; use Memory(smoothing=…)"
                )
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
        server.resume(snapshot, in_cycles=restarts is not None)
        self.roster.restore_order(snapshot.names)
        excluded = self._excluded
        server.forget(excluded)
        for i in excluded:
            self.events.record("excluded", "it no longer takes part (exclude)", client=self.roster.names[i])
        self._began -= snapshot.seconds
        journal = json.loads(snapshot.journal) if snapshot.journal else {}
        if "memory" in journal:
            server.smoothing = journal["memory"]
        self.clients.privacy.restore(journal.get("spent", {}))
        if restarts is not None:
            restarts.resume(snapshot.best, journal["cycles"], excluded)
            server.cycle_begin = restarts.done
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

    def after_round(self, record: Record) -> None:
        """Run the callbacks, begin the next cycle if one has ended, and save a checkpoint if it is due."""
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
        if isinstance(self.settings.memory, Memory):
            journal["memory"] = server.smoothing
        if spent := self.clients.privacy.reports:
            journal["spent"] = spent
        if self.restarts is not None:
            best, journal["cycles"] = self.restarts.to_checkpoint()
        elif server.method is not self._requested:
            journal["numbers"] = numbers_of(server.method)
        names, text = tuple(self.roster.names), json.dumps(journal) if journal else ""
        state, record, done, begin = server.state, server.record, server.done, server.averaging_from
        checkpoints.save(Snapshot(state, record, done, self.seconds, begin, names, best, text), self.identity)

    def finish(self, stopped: bool) -> Result:
        """Evaluate the answer and return the result; ``stopped``: the rounds were interrupted."""
        server, restarts, included = self.server, self.restarts, self.roster.included
        if restarts is not None and restarts.done < server.done:  # the checkpoint continues this cycle
            restarts.close()
        history = _history_of(self._history(), included)
        assert history.per_client is not None
        participants = (history.per_client.clients >= 0).sum(axis=1)
        self.clients.participants = max(1, round(float(participants.mean())))
        end = RunEnd(
            _state_of(server.state, included),
            history,
            server.method,
            tuple(self.roster.names[i] for i in included),
            averaging_from=server.averaging_from,
            answer="average" if self.settings.answer == "auto" else self.settings.answer,
            stopped=stopped and server.done < server.rounds and not server.has_diverged,
            seed=self.settings.seed,
            seconds=self.seconds,
            restarts=() if restarts is None or server.has_diverged else tuple(restarts.past),
        )
        # The noise of reports at one iterate is not measured: it would take extra rounds.
        result = self.clients.privacy.add_to_result(build_result(end, self.clients, lambda: math.nan))
        result = replace(result, diagnostics=(*result.diagnostics, *self._diagnostics()))
        self.events.record("finished", str(result.status))
        if server.void_in_a_row < self.settings.patience:
            return result
        message = f"{result.status.message}. It ended after {server.void_in_a_row} void rounds in a row (patience)"
        return replace(result, status=replace(result.status, message=message))

    def _warn_of_dominant_client(self, settings: StrategySettings) -> None:
        """Warn if one client has more than half of all rows by its own report, and so decides the pooled constraint."""
        if settings.pooled is None or len(self.roster.names) < 3:
            return
        rows = {name: self.roster.rows(i) for i, name in enumerate(self.roster.names)}
        name, total = max(rows, key=rows.__getitem__), sum(rows.values())
        is_limited = name in settings.listed and settings.listed[name].rows is not None
        if not is_limited and 2 * rows[name] > total:
            reason = f"it reports {rows[name]:,} of {total:,} rows, and so decides the pooled constraint"
            logger.warning("client %r: %s", name, reason)
            self.events.record("weighs most", reason, client=name)

    @property
    def _excluded(self) -> list[int]:
        return sorted(set(range(len(self.roster.names))) - set(self.roster.included))

    @property
    def _unknown_excluded(self) -> str:
        """The excluded names that no known client has."""
        return join_first([repr(name) for name in self.settings.exclude if not self.roster.is_known(name)], 5)

    def _diagnostics(self) -> Iterator[Diagnostic]:
        """Yield what the result does not cover: excluded clients, and classes that clients left out."""
        if self.settings.exclude:
            recorded = self._history().per_client
            assert recorded is not None
            counted = np.isin(recorded.clients, self._excluded) & (recorded.outcomes == ClientOutcome.COUNTED)
            rounds = int(counted.any(axis=1).sum())
            before = f"; they took part in {rounds} round{'s' * (rounds != 1)} before" if rounds else ""
            unknown = f"; no client is known by the name {self._unknown_excluded}" if self._unknown_excluded else ""
            names = join_first([repr(name) for name in self.settings.exclude], 5)
            advice = "Neither the status nor a certificate covers these clients: state this wherever the model is used"
            yield Diagnostic(DiagnosticCode.EXCLUDED_CLIENTS, f"{names} excluded (exclude){before}{unknown}", advice)
        clients = ((self.roster.names[i], self.roster.clients[i]) for i in self.roster.included)
        suppressed = [repr(name) for name, client in clients if client is not None and client.excluded_classes]
        if suppressed:
            advice = "Results do not cover these rows, and functions of only these rows count as absent: state this"
            yield Diagnostic(
                DiagnosticCode.SUPPRESSED_CLASSES,
                f"{join_first(suppressed, 5)} left out classes with too few rows, by their own policy",
                f"{advice} wherever the model is used",
            )

    def _history(self) -> History:
        assert self.server.record is not None
        return History.from_records(self.clients, [self.server.record], self.server.done)


def _template(method: Method, params: Params, rounds: int, *, jumps: bool) -> Method:
    return choose_first_restart(params, rounds, may_end=False, exact=False, jumps=jumps).template(method)


def _check(method: Method, settings: StrategySettings, params: Params) -> None:
    """Raise if the method cannot run over Flower, or not with these settings."""
    check_domain(settings.domain, params)
    check_over_network(method)
    check_compression(method.at_clients, settings.domain, method.robust)
    is_compressed = isinstance(method.at_clients, Compression)
    if is_compressed and settings.resend_params:
        raise ValueError("resend_params sends whole parameters in every round: do not use it with Compression")
    if settings.secure is not None and method.robust is not None:
        raise ValueError(f"robust={method.robust} compares single directions, which secure hides: use one of the two")
    if settings.secure is not None and is_compressed:
        raise ValueError("masked directions cannot be compressed: use either secure or Compression")


def _first_params(initial_arrays: ArrayRecord) -> Params:
    arrays = wire.from_record(initial_arrays)
    params = check_start("initial_arrays", arrays)
    expected = wire.array_specs(params)
    for name, shape in wire.array_specs(arrays).items():
        if expected[name] != shape:
            problem = f"initial_arrays must be of a dtype that JAX computes in, but {name!r} is {arrays[name].dtype}"
            raise ValueError(f"{problem}; use float32, or jax.config.update('jax_enable_x64', True)")
    return params


def _state_of(state: State, included: list[int]) -> State:
    """Return the state with the memory and the consistency of some clients only."""
    memory, consistency = state.parts.get("memory"), state.parts.get("consistency")
    if memory is not None:
        known = [index for index in included if index < len(memory.reported_at)]
        if len(known) < len(memory.reported_at):
            state = state.with_part("memory", memory.of(jnp.asarray(known, jnp.int32)))
    if consistency is not None:
        at = jnp.asarray([index for index in included if index < len(consistency.value)], jnp.int32)
        state = state.with_part("consistency", take_clients(consistency, at))
    return state


def _history_of(history: History, included: list[int]) -> History:
    """Return the history of some clients, by their new indices, with empty places for the rest.

    F, G and the switch of a round stay as they were.
    """
    recorded = history.per_client
    assert recorded is not None
    if included == list(range(len(included))) and recorded.clients.max(initial=-1) < len(included):
        return history
    last = max([recorded.clients.max(initial=-1), history.worst_client.max(initial=-1), *included])
    new_indices = np.full(last + 2, -1)  # the last entry is for index −1
    new_indices[included] = np.arange(len(included))
    clients = new_indices[recorded.clients]
    is_empty = clients < 0
    per_client = recorded._replace(
        clients=clients.astype(recorded.clients.dtype),
        objective=np.where(is_empty, np.nan, recorded.objective),
        constraint=np.where(is_empty[..., None], np.nan, recorded.constraint),
        outcomes=None if recorded.outcomes is None else np.where(is_empty, ClientOutcome.EMPTY, recorded.outcomes),
        epsilon=None if recorded.epsilon is None else np.where(is_empty, np.nan, recorded.epsilon),
    )
    worst = new_indices[history.worst_client].astype(history.worst_client.dtype)
    return replace(history, per_client=per_client, worst_client=worst)
