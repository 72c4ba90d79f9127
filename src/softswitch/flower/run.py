"""A run over Flower under way: who is there, what the server keeps, and how it is brought to its result."""

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
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp import Grid

from softswitch.engine.auto_tuning import SMOOTHING, first_choice
from softswitch.engine.defaults import is_automatic
from softswitch.engine.restart_decisions import with_numbers
from softswitch.flower import messages as wire
from softswitch.flower.compression import ClientParams
from softswitch.flower.exchange import PromptGrid
from softswitch.flower.exclusion import consistency_of, history_of, memory_of
from softswitch.flower.local_client import PreviousParams
from softswitch.flower.remote import RemoteClients
from softswitch.flower.replies import Reader
from softswitch.flower.restarts import RemoteCycles
from softswitch.flower.roster import Roster
from softswitch.flower.secure_server import Summing
from softswitch.flower.server_state import RunState
from softswitch.flower.settings import StrategySettings
from softswitch.methods.base import Method, check_over_network
from softswitch.methods.compression import Compression, check_compression
from softswitch.methods.memory import Memory
from softswitch.methods.proximal import check_stages
from softswitch.methods.round import check_optimizer
from softswitch.problem.domains import check_domain
from softswitch.problem.parameters import Params, checked_start
from softswitch.results.answer import RunEnd
from softswitch.results.callbacks import Chunk, SwitchShare, run_callbacks
from softswitch.results.checkpoints import Snapshot
from softswitch.results.conclusion import conclude
from softswitch.results.diagnostic import Diagnostic, DiagnosticCode
from softswitch.results.events import EventLog
from softswitch.results.history import ClientOutcome, History
from softswitch.results.record import Record
from softswitch.results.result import Result
from softswitch.support.arrays import fingerprint, has_leaves
from softswitch.support.text import few_of
from softswitch.support.tracing import without_addresses

logger = logging.getLogger("softswitch.flower")
CORRECTED = "corrected"
"""In what a checkpoint says of its run: whether its memory is corrected."""


class Course:
    """One run, from its first meeting of clients to its result.

    Attributes:
        settings: of the run.
        grid: Flower's, waiting as ``exchange`` does.
        roster: who is there.
        clients: all of them, to be asked outside of the rounds.
        events: what happens to clients, for a file.
        reader: of their answers.
        held: which parameters they have, where messages are compressed; else None.
        before: which of them have the iterate before, where they report there too; else None.
        summing: the sums of masked directions, where they are; else None.
        run: what the server keeps.
        cycles: those of a run that chooses for itself; else None.
        identity: what the run depends on, as text, as far as the server knows it.
        metrics: what Flower is told of every round.
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
        check_domain(settings.domain, params)
        chosen = is_automatic([method])
        check_over_network(method)
        check_stages(method.proximal, rounds)
        check_compression(method.at_clients, settings.domain, method.robust)
        way = method.at_clients if isinstance(method.at_clients, Compression) else None
        if way is not None and settings.resend_params:
            raise ValueError("resend_params sends whole parameters in every round: leave it out with Compression")
        _check_secure(method, settings)
        self.held = None if way is None else ClientParams(way)
        check_optimizer(self._template(method, params, rounds, jumps=False) if chosen else method, params)
        self._asked = method
        self.events = EventLog(settings.events)
        self.grid = PromptGrid(grid, settings.update_timeout, settings.enough)
        self.roster = Roster(settings, self.events)
        self.roster.look(self.grid, settings.min_clients, settings.wait, all_expected=True)
        constraints = self.roster.constraints
        if constraints is None:
            who = "client of the list" if settings.clients else "client"
            raise TimeoutError(f"no {who} was connected within {settings.wait:g} s (wait)")
        self._warn_of_the_largest(settings)
        exact = self.roster.tells_all and self._everyone(settings)
        careful = chosen or method.robust is not None
        asked_memory = settings.memory if careful or settings.memory != "auto" else None
        self.settings = settings = replace(settings, memory=self._memory(settings, chosen))
        self.clients = RemoteClients(self.grid, self.roster, settings, self.events)
        statistics = self._statistics()
        corrected = isinstance(settings.memory, Memory) and settings.memory.corrected
        self.before = PreviousParams() if corrected else None
        jumps = self.roster.has_surrogate
        template = self._template(method, params, rounds, jumps=jumps) if chosen else method
        self.run = RunState(template, params, constraints, statistics, rounds, settings)
        self.cycles = RemoteCycles(method, rounds, self.run, self.clients, settings, exact) if chosen else None
        self.reader = Reader(
            self.roster,
            wire.array_specs(params),
            constraints,
            statistics,
            self.run.dtype,
            settings,
            self.events,
            self.clients.spent,
            None if way is None else way.up,
        )
        self.summing: Summing | None = None
        if settings.secure is not None:
            assert settings.clip_norm is not None
            self.summing = Summing(settings.secure, settings.clip_norm, wire.array_specs(params), self.events)
            self.reader.masked = self.summing.part
        self.metrics: dict[int, MetricRecord] = {}
        self._share, self._told_to_stop = SwitchShare(), False
        self._began = time.perf_counter()
        self.identity = {
            "method": without_addresses(str(method)),
            "seed": str(settings.seed),
            "local_steps": str(settings.local_steps),
            "participation": str(settings.participation),
            "domain": without_addresses(repr(settings.domain)),
            "min_clients": str(settings.min_clients),
            "memory": str(asked_memory),
            "clip_norm": str(settings.clip_norm),
            "largest_number": str(settings.largest_number),
            "pooled": without_addresses(repr(settings.pooled)),
            "constraints": str(constraints),
            "numbers": fingerprint(
                (
                    method,
                    settings.domain if has_leaves(settings.domain) else None,
                    None if isinstance(asked_memory, str) else asked_memory,
                )
            ),
            "start": fingerprint(params),
            "program": self.run.program(),
            "jax": jax.__version__,
            **({} if statistics is None else {"statistics": str(statistics)}),
            **({} if settings.secure is None else {"secure": str(settings.secure)}),
            **({CORRECTED: "yes"} if corrected else {}),
            **clients_identity,
        }
        if not self._go_on() and self.cycles is not None:
            self.cycles.look_at_start()
            self.cycles.begin()
        if self.held is not None and self.run.record is not None and self.run.record.clients is not None:
            told = self.run.record.clients
            assert told.outcomes is not None
            self.held.recall(np.asarray(told.clients), np.asarray(told.outcomes), self.run.begun_at)
        if unknown := self._nobody:
            logger.warning("exclude: nobody is known by the name %s; is it written as the client writes it?", unknown)

    @staticmethod
    def _template(method: Method, params: Any, rounds: int, *, jumps: bool) -> Method:
        """The method of a run that chooses for itself, before anything else is known of the clients."""
        return first_choice(params, rounds, may_end=False, exact=False, jumps=jumps).template(method)

    def _everyone(self, settings: StrategySettings) -> bool:
        """Whether all clients that are connected take part in every round."""
        return settings.participation == 1

    def _memory(self, settings: StrategySettings, chosen: bool) -> Memory | None:
        """How the server remembers: as told, or where not everyone takes part in a run that chooses for itself."""
        if not isinstance(settings.memory, str):
            if settings.memory is not None and settings.memory.corrected:
                self._check_report_again()
            return settings.memory
        careful = chosen or self._asked.robust is not None
        if not careful or settings.pooled is not None:
            return None
        if chosen and self._corrects(settings):
            return Memory(corrected=True)
        if self._everyone(settings):
            return None
        return Memory(smoothing=0.0 if self.roster.tells_all else SMOOTHING)

    def _corrects(self, settings: StrategySettings) -> bool:
        """Whether memory is corrected where that is chosen; a run that goes on remembers as it began to."""
        kept = settings.checkpoints
        if kept is not None and kept.said("method") is not None:
            return kept.said(CORRECTED) is not None
        trusting = self._asked.robust is None
        return trusting and not self.roster.tells_all and not self.roster.reporting_once

    def _check_report_again(self) -> None:
        """Raise where clients met so far cannot report at two iterates."""
        if once := self.roster.reporting_once:
            raise ValueError(
                f"memory must not be corrected where clients report at one iterate only, as {few_of(once)} do: private "
                "ones, for which a second value would be a second release, networks with running means, clients of "
                "one's own without can_repeat_reports, or of an older softswitch; Memory(smoothing=…) goes with all"
            )

    def _statistics(self) -> int | None:
        """How many statistics a client's pooled constraint has, where the server is to remember them; else None."""
        if self.settings.pooled is None or self.settings.memory is None:
            return None
        if not self.roster.statistics and self._asked.switches_on == "pooled":
            raise ValueError(
                "criterion='pooled' with memory needs to know beforehand how many statistics a client reports, but no "
                "client met so far tells it; give your clients an attribute statistics, that number"
            )
        return self.roster.statistics or None

    def _go_on(self) -> bool:
        """Take up the run where its checkpoints stand; False where they do not. What was chosen stays chosen."""
        kept, cycles = self.settings.checkpoints, self.cycles
        there = None
        if kept is not None:
            there = kept.latest(self.identity, self.run.like, cycles and self.run.state.params)
        if there is None:
            return False
        self.run.go_on(there, in_cycles=cycles is not None)
        self.roster.recall(there.names)
        gone = self._leave_out()
        self._began -= there.seconds
        told = json.loads(there.journal) if there.journal else {}
        if "memory" in told:
            self.run.smooth_by(told["memory"])
        self.clients.spent.go_on(told.get("spent", {}))
        if cycles is not None:
            cycles.go_on(there.best, told["cycles"], gone)
            self.run.begun_at = cycles.done
        elif "numbers" in told:
            self.run.method = with_numbers(self.run.method, told["numbers"])
        self._share.with_rounds(self._history())
        logger.info("going on after %d of %d rounds", there.done, self.run.rounds)
        self.events.record("resumed", f"after {there.done} of {self.run.rounds} rounds")
        return True

    @property
    def over(self) -> bool:
        """Whether there are no more rounds to come."""
        run = self.run
        return run.done >= run.rounds or run.diverged or self._ends_early

    @property
    def _ends_early(self) -> bool:
        """Whether a callback has ended it, or too many rounds were void."""
        return self._told_to_stop or self.run.void_in_a_row >= self.settings.patience

    @property
    def seconds(self) -> float:
        """Since the run began."""
        return time.perf_counter() - self._began

    def tell(self, record: Record) -> None:
        """Tell the callbacks of a round, and keep a checkpoint where it is time."""
        run = self.run
        history = History.from_records(self.clients, [record], 1, first=run.done - 1)
        share = self._share.with_rounds(history)
        news = Chunk(run.done, run.rounds, history, share, run.state, self.seconds)
        self._told_to_stop = run_callbacks(self.settings.callbacks, news)
        if self.cycles is not None:
            self.cycles.after_round(begins=not self._ends_early)
        if self.settings.checkpoints is not None and self.settings.checkpoints.due():
            self.save()

    def save(self) -> None:
        """Keep where the run stands."""
        run, kept = self.run, self.settings.checkpoints
        if kept is not None and run.record is not None:
            best, journal = None, self._journal()
            if self.cycles is not None:
                best, journal["cycles"] = self.cycles.journal()
            names = tuple(self.roster.names)
            kept.save(
                Snapshot(
                    run.state,
                    run.record,
                    run.done,
                    self.seconds,
                    run.averaging_from,
                    names,
                    best,
                    json.dumps(journal) if journal else "",
                ),
                self.identity,
            )

    def _journal(self) -> dict[str, Any]:
        """What was chosen beside the cycles: a resumed run does not choose again."""
        memory, told = self.settings.memory, dict[str, Any]()
        if isinstance(memory, Memory):
            told["memory"] = self.run.smoothing
        if spent := self.clients.spent.journal():
            told["spent"] = spent
        if self.cycles is None and self.run.method is not self._asked:
            told["numbers"] = self.run.numbers
        return told

    def finish(self, stopped: bool) -> Result:
        """The result; ``stopped``: the rounds ended before their time."""
        run, cycles, kept = self.run, self.cycles, self.roster.kept
        if cycles is not None and cycles.done < run.done:  # for the answer only: a checkpoint goes on with this cycle
            cycles.close()
        history = history_of(self._history(), kept)
        state = run.state
        if state.memory is not None:
            state = state._replace(memory=memory_of(state.memory, kept))
        if state.consistency is not None:
            state = state._replace(consistency=consistency_of(state.consistency, kept))
        assert history.per_client is not None
        asked = (history.per_client.clients >= 0).sum(axis=1)
        self.clients.participants = max(1, round(float(asked.mean())))
        ending = RunEnd(
            state,
            history,
            run.method,
            tuple(self.roster.names[i] for i in kept),
            averaging_from=run.averaging_from,
            answer="average" if self.settings.answer == "auto" else self.settings.answer,
            stopped=stopped and run.done < run.rounds and not run.diverged,
            seed=self.settings.seed,
            seconds=self.seconds,
            restarts=() if cycles is None or run.diverged else tuple(cycles.past),
        )
        # How much reports scatter at one iterate is not measured here: it would take rounds of its own.
        result = conclude(ending, self.clients, lambda: math.nan)
        result = self.clients.spent.in_result(result)
        if self.settings.exclude:
            result = replace(result, diagnostics=(*result.diagnostics, self._excluded(self._history())))
        if partly := self._partly():
            result = replace(result, diagnostics=(*result.diagnostics, partly))
        self.events.record("finished", str(result.status))
        if run.void_in_a_row < self.settings.patience:
            return result
        why = f"{result.status.message}. The last {run.void_in_a_row} rounds were void, so it ended (patience)"
        return replace(result, status=replace(result.status, message=why))

    def _warn_of_the_largest(self, settings: StrategySettings) -> None:
        """Tell where one client's rows decide what is on all data put together: there is only its word for them."""
        if settings.pooled is None or len(self.roster.names) < 3:
            return
        rows = {name: self.roster.rows(i) for i, name in enumerate(self.roster.names)}
        name = max(rows, key=lambda own: rows[own])
        known = name in settings.listed and settings.listed[name].rows is not None
        if known or 2 * rows[name] <= sum(rows.values()):
            return
        why = f"it says that it has {rows[name]:,} of {sum(rows.values()):,} rows, and so decides the pooled constraint"
        logger.warning("client %r: %s", name, why)
        self.events.record("weighs most", why, client=name)

    def _leave_out(self) -> list[int]:
        """Forget what is remembered of clients that are excluded from now on; their indices."""
        gone = sorted(set(range(len(self.roster.names))) - set(self.roster.kept))
        self.run.forget(gone)
        for i in gone:
            self.events.record("excluded", "it is left out from now on (exclude)", client=self.roster.names[i])
        return gone

    @property
    def _nobody(self) -> str:
        """Names to leave out that no client has, as far as is known."""
        return few_of([repr(name) for name in self.settings.exclude if not self.roster.is_known(name)], 5)

    def _excluded(self, history: History) -> Diagnostic:
        """Who was left out, and in how many rounds it had taken part before."""
        gone = set(range(len(self.roster.names))) - set(self.roster.kept)
        assert history.per_client is not None
        assert history.per_client.outcomes is not None
        counted = np.isin(history.per_client.clients, list(gone)) & (
            history.per_client.outcomes == ClientOutcome.COUNTED
        )
        rounds = int(counted.any(axis=1).sum())
        before = f"; {rounds} round{'s' * (rounds != 1)} before had counted some of them" if rounds else ""
        nobody = f"; nobody is known by the name {self._nobody}" if self._nobody else ""
        return Diagnostic(
            DiagnosticCode.EXCLUDED_CLIENTS,
            f"{few_of([repr(name) for name in self.settings.exclude], 5)} left out (exclude){before}{nobody}",
            "Nothing is said of them, neither by the status nor by a certificate: say so wherever the model goes",
        )

    def _partly(self) -> Diagnostic | None:
        """Who left rows of small classes out; None where nobody did."""
        known = ((self.roster.names[i], self.roster.clients[i]) for i in self.roster.kept)
        names = [repr(name) for name, client in known if client is not None and client.excluded_classes]
        if not names:
            return None
        return Diagnostic(
            DiagnosticCode.SUPPRESSED_CLASSES,
            f"{few_of(names, 5)} answered on no class of too few rows, by their own policy",
            "Nothing is known of those rows, and functions of them alone count as not there: say so wherever the model "
            "goes",
        )

    def _history(self) -> History:
        assert self.run.record is not None
        return History.from_records(self.clients, [self.run.record], self.run.done)


def _check_secure(method: Method, settings: StrategySettings) -> None:
    """Raise where a rule does not go with sums of masked directions."""
    if settings.secure is None:
        return
    if method.robust is not None:
        raise ValueError(f"robust={method.robust} compares single directions, which secure hides: leave one out")
    if isinstance(method.at_clients, Compression):
        raise ValueError("masks are as long as the model and look like chance: Compression does not go with secure")


def _first_params(initial_arrays: ArrayRecord) -> Params:
    """w_0, or raise."""
    given = wire.from_record(initial_arrays)
    params = checked_start("initial_arrays", given)
    expected = wire.array_specs(params)
    changed = [name for name, shape in wire.array_specs(given).items() if expected[name] != shape]
    if changed:
        raise ValueError(
            f"initial_arrays must be of a dtype that JAX computes in, but {changed[0]!r} is "
            f"{given[changed[0]].dtype}; use float32, or jax.config.update('jax_enable_x64', True)"
        )
    return params
