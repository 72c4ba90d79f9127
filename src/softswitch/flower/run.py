"""One run over Flower: its clients, its state, its checkpoints and its result."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import Grid

from softswitch.engine.auto_tuning import SMOOTHING, choose_first_restart
from softswitch.engine.request import is_automatic
from softswitch.engine.restarts import numbers_of, with_numbers
from softswitch.flower import messages as wire
from softswitch.flower.compression import HeldParams
from softswitch.flower.remote import RemoteClients
from softswitch.flower.replies import ReplyReader
from softswitch.flower.restarts import RemoteRestarts
from softswitch.flower.roster import Roster
from softswitch.flower.secure_aggregation import SecureAggregator
from softswitch.flower.server_state import ServerState, keep_clients
from softswitch.flower.settings import StrategySettings
from softswitch.methods.base import Method, check_over_network
from softswitch.methods.compression import Compression, check_compression
from softswitch.methods.memory import Memory
from softswitch.methods.state import check_optimizer
from softswitch.problem.parameters import Params, check_start
from softswitch.results.callbacks import Chunk, SwitchShare, run_callbacks
from softswitch.results.checkpoints import Snapshot
from softswitch.results.events import EventLog
from softswitch.results.history import History, Record
from softswitch.results.result import Result, build_result
from softswitch.results.status import RunEnd
from softswitch.support.arrays import fingerprint, has_leaves
from softswitch.support.text import join_first
from softswitch.support.tracing import strip_addresses

logger = logging.getLogger("softswitch.flower")
CORRECTED = "corrected"
"""The entry of a run's identity that marks a corrected memory."""


class FlowerRun:
    """One run, from the first contact with clients to its result.

    ``held`` tracks which parameters clients have. ``identity`` is what the run depends on, as text.
    """

    def __init__(
        self,
        method: Method,
        settings: StrategySettings,
        grid: Grid,
        roster: Roster,
        events: EventLog,
        params: Params,
        rounds: int,
        clients_identity: Mapping[str, str],
        begin_at: Params | None = None,
    ) -> None:
        compression = method.at_clients if isinstance(method.at_clients, Compression) else None
        tunes = is_automatic([method])
        self.requested = method
        self.grid, self.roster, self.events = grid, roster, events
        constraints = roster.constraints
        assert constraints is not None
        requested_memory = settings.memory
        if requested_memory == "auto" and not tunes and method.robust is None:
            requested_memory = None
        self.settings = settings = replace(settings, memory=self._choose_memory(settings, tunes))
        self.clients = RemoteClients(self.grid, roster, settings, self.events)
        is_corrected = isinstance(settings.memory, Memory) and settings.memory.corrected
        self.held = HeldParams(compression, reports_twice=is_corrected)
        template = _template(method, params, rounds, jumps=roster.has_surrogate) if tunes else method
        self.server = ServerState(template, begin_at or params, constraints, rounds, settings)
        exact = roster.reports_all_rows and settings.participation == 1
        self.restarts = RemoteRestarts(method, rounds, self.server, self.clients, settings, exact) if tunes else None
        shapes, self.aggregator, read_masked = wire.array_specs(params), None, None
        if settings.secure is not None and settings.clip_norm is not None:
            self.aggregator = SecureAggregator(settings.secure, settings.clip_norm, shapes, self.events)
            read_masked = self.aggregator.read_update
        up = None if compression is None else compression.up
        self.reader = ReplyReader(self.clients, shapes, self.server.dtype, up, read_masked)
        self._share, self._stops = SwitchShare(), False
        self._began = time.perf_counter()
        domain = settings.domain if has_leaves(settings.domain) else None
        numbers = method, domain, None if isinstance(requested_memory, str) else requested_memory
        as_text = ("seed", "local_steps", "participation", "min_clients", "clip_norm")
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
            **({} if settings.secure is None else {"secure": str(settings.secure)}),
            **({CORRECTED: "yes"} if is_corrected else {}),
            **clients_identity,
        }
        if not self._resume() and self.restarts is not None:
            self.restarts.start()
        if self.server.record is not None and self.server.record.clients is not None:
            recorded = self.server.record.clients
            assert recorded.outcomes is not None
            self.held.restore(np.asarray(recorded.clients), np.asarray(recorded.outcomes), self.server.restart_begin)
        if unknown := self.clients.unknown_excluded:
            logger.warning("exclude: no client is known by the name %s; check the spelling", join_first(unknown, 5))

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
        self.clients.privacy.restore(journal.get("spent", {}))
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
