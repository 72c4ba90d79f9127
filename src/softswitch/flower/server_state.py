"""The server's state in a run over Flower, and how a round changes it, without any network code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import tree_util

from softswitch.data.sampling import client_bit_count, sample_clients
from softswitch.flower import compression as codes
from softswitch.flower import messages as wire
from softswitch.flower.messages import Arrays
from softswitch.flower.replies import no_reports, pool_statistics
from softswitch.flower.secure_aggregation import SecureMean
from softswitch.flower.settings import StrategySettings
from softswitch.methods import robust
from softswitch.methods.base import Method
from softswitch.methods.client_selection import ask, order_of_pass, rounds_a_pass, stand_for, turn
from softswitch.methods.compression import Compression
from softswitch.methods.compressors import in_two_parts
from softswitch.methods.consistency import compared, elsewhere
from softswitch.methods.consistency import widened as widen_consistency
from softswitch.methods.memory import (
    LEFT_OUT,
    Memory,
    Places,
    Remembered,
    as_remembered,
    decide,
    hear,
    nothing_remembered,
    widened,
)
from softswitch.methods.messages import Decision, Reports
from softswitch.methods.round import (
    State,
    advance,
    first_to_average,
    sound,
    start,
    surviving_weights,
)
from softswitch.methods.weight_cap import capped
from softswitch.oracles.evaluation import ClientSummary
from softswitch.problem.domains import as_pytree
from softswitch.problem.parameters import Params, float_dtype
from softswitch.results.checkpoints import Snapshot
from softswitch.results.history import ClientOutcome, Record, RecordedClients
from softswitch.support.arrays import take_clients
from softswitch.support.tracing import program_digest

_decide = jax.jit(robust.decide)
_cap_weights = jax.jit(capped)
_trim = jax.jit(robust.trimmed)
_combine = jax.jit(robust.combined)
_compare = jax.jit(compared)
_hear = jax.jit(hear)
_decide_by_memory = jax.jit(decide)
_as_remembered = jax.jit(as_remembered)
_advance = jax.jit(advance)
_start = jax.jit(start, static_argnums=2, static_argnames="clients")
_surviving_weights = jax.jit(surviving_weights)


@partial(jax.jit, static_argnums=(2, 3))
def _choose(key: jax.Array, k: Any, clients: int, size: int) -> jax.Array:
    words = jax.random.bits(jax.random.fold_in(key, k), (client_bit_count(clients, size),), jnp.uint32)
    return sample_clients(words, clients, size)


@partial(jax.jit, static_argnums=4)
def _choose_by_memory(
    key: jax.Array, k: Any, memory: Remembered, connected: jax.Array, places: Places, rest: Any
) -> jax.Array:
    order = order_of_pass(key, k // rounds_a_pass(len(connected), places), len(connected))
    available = take_clients(memory._replace(forecasts=None), connected)
    return connected[ask(available, turn(order, k, places), places, k, rest)]


class ServerState:
    """The server's state and its part of a round, as in the compiled engine.

    Attributes:
        averaging_from: The first round that may join the average.
        direction_size: The norm of the last round's direction; None if it was void.
        record: The history so far; None before the first round.
        done: Number of rounds.
        void_in_a_row: Number of void rounds since the last that counted.
        cycle_begin: The first round of the present cycle.
        change: The encoded parameter change of the last round, if changes are compressed; else None.
    """

    def __init__(
        self,
        method: Method,
        params: Params,
        constraints: int,
        statistics: int | None,
        rounds: int,
        settings: StrategySettings,
    ) -> None:
        self.method = method
        self.constraints = constraints
        self.rounds = rounds
        self.averaging_from = first_to_average(rounds, settings.average_share(automatic=False))
        self._participation = settings.participation
        self._local_steps = settings.local_steps
        self._key = jax.random.key(settings.seed)
        self._domain = as_pytree(settings.domain)
        self._min_clients = settings.min_clients
        self._max_weight = None if settings.secure is None else settings.secure.max_weight
        self._pooled = settings.pooled
        self.dtype = np.dtype(float_dtype(params))
        assert not isinstance(settings.memory, str)
        self._memory: Memory | None = settings.memory
        remembered = None
        if self._memory is not None:
            corrected = self._memory.corrected
            remembered = nothing_remembered(0, constraints, statistics, self.dtype, corrected=corrected)
        self.state: State = self._first_state(params, self.method, remembered)
        self.direction_size: float | None = None
        self._updated_memory: Remembered | None = None  # between the two exchanges of a round
        self._stand_for: jax.Array | None = None
        self.record: Record | None = None
        self.done = 0
        self.void_in_a_row = 0
        self.cycle_begin = 0
        self.change: bytes | None = None

    @property
    def compression(self) -> Compression | None:
        """The compression of messages, if any."""
        return self.method.at_clients if isinstance(self.method.at_clients, Compression) else None

    def _first_state(self, params: Params, method: Method, memory: Remembered | None) -> State:
        return _start(params, method, self.constraints, memory)._replace(at_clients=None)  # clients keep it

    @property
    def has_diverged(self) -> bool:
        """Whether a step was not finite."""
        return int(self.state.diverged_at) >= 0

    @property
    def local_step_size(self) -> float:
        """The clients' step size γ in this round."""
        return float(self.method.local_step_size_at(self.done, self._local_steps))

    @property
    def _void_reports(self) -> Reports:
        return no_reports(1, self.constraints, self.dtype, self._pooled is not None)

    def like(self) -> tuple[State, Record]:
        """Return a state and a record with the structure of this run's."""
        traffic = None if self.compression is None else (0, 0)
        record = _record(
            [0], np.zeros(1, int), self._void_reports, None, ClientSummary.missing(), (0, 0), traffic=traffic
        )
        return self.state, _add_state(record, self.state, 0)

    def program(self) -> str:
        """Return a digest of the server's computation in a round, with all constants of the method."""

        def one_round(method: Method, domain: Any, state: State, k: Any, reports: Reports) -> Any:
            decision, method_state = robust.decide(method, state.method, reports)
            return (
                advance(state, method, domain, k, 0, reports, decision, method_state, state.params),
                method.local_step_size_at(k, self._local_steps),
            )

        return program_digest(one_round, self.method, self._domain, self.state, jnp.int32(0), self._void_reports)

    @property
    def has_bad_updates(self) -> bool:
        """Whether a direction of the last round was rejected."""
        if self.record is None or self.record.clients is None:
            return False
        return bool((np.asarray(self.record.clients.outcomes)[-1] == ClientOutcome.BAD_UPDATE).any())

    @property
    def smoothing(self) -> float:
        """The smoothing of remembered reports."""
        return 0.0 if self._memory is None else float(self._memory.smoothing)

    @smoothing.setter
    def smoothing(self, value: float) -> None:
        if self._memory is not None:
            self._memory = replace(self._memory, smoothing=value)

    def feasible_share(self, first: int) -> float:
        """Return the share of feasible rounds from the first one on."""
        return 0.0 if self.record is None else float(np.mean(np.asarray(self.record.feasible)[first:]))

    def begin_cycle(
        self, params: Params, method: Method, averaging_from: int, values: tuple[np.ndarray, np.ndarray]
    ) -> None:
        """Restart at these parameters with this method; keep only what is remembered of clients.

        ``values`` are f_i and g_i at the parameters, NaN for a client that did not report them.
        """
        memory = self.state.memory
        if memory is not None and memory.sums is None:
            memory = _with_values(memory, self.done, *values)
        state = self._first_state(params, method, memory)
        if self.state.consistency is not None:
            state = state._replace(consistency=elsewhere(self.state.consistency))
        if self.done and method.goes_on:
            state = state._replace(method=self.state.method)
        self.state, self.method, self.averaging_from = state, method, averaging_from
        self.cycle_begin = self.done

    def end_cycle(self, params: Params, score: float) -> None:
        """Set the parameters to the best answer of a cycle."""
        best = self.state.best._replace(params=params, score=jnp.asarray(score, self.state.best.score.dtype))
        self.state = self.state._replace(params=params, best=best, diverged_at=jnp.int32(-1))

    def resume(self, snapshot: Snapshot, *, in_cycles: bool) -> None:
        """Continue from a checkpoint, perhaps for more rounds than before."""
        averaging_from = snapshot.averaging_from if in_cycles else self.averaging_from
        snapshot = snapshot.extend(self.rounds, averaging_from, self.state)
        self.averaging_from = averaging_from
        self.state = jax.tree.map(jnp.asarray, snapshot.state)
        self.record, self.done = snapshot.record, snapshot.done

    def forget(self, clients: list[int]) -> None:
        """Forget what is remembered of some clients."""
        memory = self.state.memory
        known = [] if memory is None else [index for index in clients if index < len(memory.heard_at)]
        if memory is None or not known:
            return
        statistics = None if memory.sums is None else memory.sums.shape[1]
        nothing = nothing_remembered(len(known), memory.constraint.shape[1], statistics, memory.objective.dtype)
        at = jnp.asarray(known, jnp.int32)
        fields = ("objective", "constraint", "asked_at", "times", "travelled_at")
        changes = {name: getattr(memory, name).at[at].set(getattr(nothing, name)) for name in fields}
        changes["heard_at"] = memory.heard_at.at[at].set(LEFT_OUT)  # averaging does not wait for it
        if memory.sums is not None:
            changes["sums"] = memory.sums.at[at].set(0)
        if memory.forecasts is not None:
            changes["forecasts"] = memory.forecasts.without(at)
        self.state = self.state._replace(memory=memory._replace(**changes))

    def sample(self, connected: list[int], known: int) -> list[int]:
        """Return the clients of this round, out of the connected ones; by need if the server has memory.

        With all clients connected they are those of the compiled engine, if that draws no rows.
        ``known`` is the number of clients, connected or not.
        """
        if not connected:
            return []
        consistency = self.state.consistency
        if consistency is not None and len(consistency.value) < known:
            self.state = self.state._replace(consistency=widen_consistency(consistency, known))
        size = min(len(connected), max(self._min_clients, round(self._participation * len(connected))))
        k = jnp.int32(self.done)
        if self._memory is None:
            return [connected[i] for i in np.asarray(_choose(self._key, k, len(connected), size))]
        assert self.state.memory is not None
        if len(self.state.memory.heard_at) < known:
            self.state = self.state._replace(memory=widened(self.state.memory, known))
        places, rest = self._memory.places(size), self._memory.rest_for(self.method)
        self._stand_for = stand_for(places, len(connected), self.dtype)
        indices = jnp.asarray(connected, jnp.int32)
        return np.asarray(_choose_by_memory(self._key, k, self.state.memory, indices, places, rest)).tolist()

    def decide(self, clients: list[int], reports: Reports) -> tuple[Decision, Any] | None:
        """Return the method's decision and its state after it; None if too few clients reported."""
        self._updated_memory = None
        if int(np.asarray(reports.mask).sum()) < self._min_clients or bool(reports.void):
            return None
        if self._memory is None:
            return self._cap(reports, *_decide(self.method, self.state.method, reports))
        reports = reports._replace(stand_for=self._stand_for)
        indices, k = jnp.asarray(clients, jnp.int32), jnp.int32(self.done)
        memory = _hear(self._memory, self.state.memory, k, indices, reports)
        pooled = None
        if self._pooled is not None and memory.sums is not None:
            value = pool_statistics(self._pooled, np.asarray(memory.sums))
            if value is None:
                return None
            pooled = jnp.asarray(value, self.dtype)
        self._updated_memory = memory
        decision = _decide_by_memory(self.method, self.state.method, memory, indices, reports, pooled)
        return self._cap(_as_remembered(memory, indices, reports)._replace(pooled=pooled), *decision)

    def _cap(self, reports: Reports, decision: Decision, method_state: Any) -> tuple[Decision, Any]:
        """Cap the weights, as secure aggregation demands."""
        if self._max_weight is None:
            return decision, method_state
        limit = jnp.asarray(self._max_weight, decision.weights.dtype)
        return _cap_weights(self.method, self.state.method, reports, decision, limit), method_state

    def apply(
        self,
        clients: list[int],
        outcomes: np.ndarray,
        reports: Reports,
        decided: tuple[Decision, Any] | None,
        directions: Mapping[int, Arrays] | SecureMean,
        full: ClientSummary,
        rows: tuple[int, int],
        traffic: tuple[int, int] | None = None,
        epsilon: np.ndarray | None = None,
    ) -> Record:
        """End the round: step along the directions that arrived, or change nothing if too few did.

        ``outcomes`` are changed to void if the round is. ``decided`` is what ``decide`` returned. Directions are by
        place in ``clients``. ``rows`` counts those of reports and of gradients, ``traffic`` the bytes up and down.
        """
        trusted = reports if self.method.robust is None else _trim(reports, self.method.robust)
        direction, stacked = None, None
        if decided is not None:
            direction, stacked = self._aggregate(clients, reports, decided[0], directions)
        size = None if direction is None else float(optax.tree.norm(direction))
        if decided is None or direction is None:
            outcomes[outcomes == ClientOutcome.COUNTED] = ClientOutcome.VOID
            void = no_reports(len(clients), self.constraints, self.dtype, self._pooled is not None)
            record = _record(clients, outcomes, void, None, full, rows, traffic=traffic, epsilon=epsilon)
            state, change = self.state, None
        else:
            decision, method_state = decided
            state = _advance(
                self.state,
                self.method,
                self._domain,
                jnp.int32(self.done),
                self.averaging_from,
                trusted,
                decision,
                method_state,
                direction,
                self._updated_memory,
            )
            if stacked is not None and not isinstance(directions, SecureMean):
                state = self._compare_reports(state, clients, reports, decision, list(directions), stacked)
            state, change = self._round_as_clients(state)
            record = _record(clients, outcomes, reports, decision, full, rows, trusted, traffic, epsilon)
        record = _add_state(record, state, self.done)
        history = record if self.record is None else _concatenate(self.record, record)
        void_in_a_row = self.void_in_a_row + 1 if direction is None else 0
        # One assignment: after Ctrl-C a round is either done or not.
        self.state, self.record, self.done, self.void_in_a_row = state, history, self.done + 1, void_in_a_row
        self.direction_size, self.change = size, change
        return record

    def _round_as_clients(self, after: State) -> tuple[State, bytes | None]:
        """Return the state with the parameters that clients compute from the encoded change, and that change.

        Clients add it outside of a compiled program, which may round differently.
        """
        compression = self.compression
        if compression is None or compression.changes is None or int(after.diverged_at) >= 0:
            return after, None
        code = compression.changes.encode(codes.to_vector(after.optimizer.sent))
        before = jax.tree.map(np.asarray, self.state.params)
        params = codes.apply_change(before, codes.decode(compression.changes, code, wire.array_specs(before)))
        return after._replace(params=jax.tree.map(jnp.asarray, params)), code

    def _aggregate(
        self, clients: list[int], reports: Reports, decision: Decision, directions: Mapping[int, Arrays] | SecureMean
    ) -> tuple[Params | None, Params | None]:
        """Return Σ r_i u_i over the arrived directions, with weights for these clients; None if too few arrived.

        A robust method combines them otherwise; the second value are then all directions, stacked.
        """
        arrived = directions.places if isinstance(directions, SecureMean) else list(directions)
        if len(arrived) < self._min_clients:
            return None, None
        if isinstance(directions, SecureMean):
            return self._as_params(directions.mean), None
        survived = np.zeros(len(reports.mask), bool)
        survived[arrived] = True
        given = decision.weights
        if not survived[np.asarray(reports.mask)].all():
            if self._updated_memory is not None:
                indices = jnp.asarray(clients, jnp.int32)
                reports = _as_remembered(self._updated_memory, indices, reports)._replace(stand_for=self._stand_for)
            given = _surviving_weights(self.method, self.state.method, reports, decision, jnp.asarray(survived))
        weights = np.asarray(given, np.float64)
        if not weights.any():
            return None, None
        if self.method.robust is not None:
            stacked = {
                name: np.zeros((len(weights), *leaf.shape), leaf.dtype) for name, leaf in self.state.params.items()
            }
            for place, direction in directions.items():
                for name, part in direction.items():
                    stacked[name][place] = part
            return _combine(stacked, jnp.asarray(weights, self.dtype)), stacked
        total = {name: np.zeros(leaf.shape) for name, leaf in self.state.params.items()}
        for place, direction in directions.items():
            for name, part in direction.items():
                total[name] += weights[place] * part
        return self._as_params(total), None

    def _as_params(self, arrays: Mapping[str, np.ndarray]) -> Params:
        params: Params = tree_util.tree_map(lambda leaf, w: jnp.asarray(leaf, w.dtype), arrays, self.state.params)
        return params

    def _compare_reports(
        self,
        after: State,
        clients: list[int],
        reports: Reports,
        decision: Decision,
        arrived: list[int],
        stacked: Params,
    ) -> State:
        """Return the state with the agreement of reports and directions."""
        has_returned = np.zeros(len(clients), bool)
        has_returned[arrived] = True
        step = tree_util.tree_map(jnp.subtract, after.params, self.state.params)
        consistency = _compare(
            self.state.consistency,
            jnp.int32(self.done),
            jnp.asarray(clients, jnp.int32),
            reports,
            decision.local_loss,
            stacked,
            jnp.asarray(has_returned),
            step,
        )
        return after._replace(consistency=consistency)


def _with_values(memory: Remembered, done: int, objective: np.ndarray, constraint: np.ndarray) -> Remembered:
    """Return the memory with values that clients reported outside of a round; NaN keeps what was remembered."""
    clients = max(len(objective), len(memory.heard_at))
    memory, more = widened(memory, clients), clients - len(objective)
    objective = np.pad(objective, (0, more), constant_values=np.nan)
    constraint = np.pad(constraint, ((0, more), (0, 0)), constant_values=np.nan)
    reported = jnp.asarray(~np.isnan(objective))

    def replace_values(values: np.ndarray, remembered: jax.Array) -> jax.Array:
        mask = reported.reshape(-1, *[1] * (remembered.ndim - 1))
        return jnp.where(mask, jnp.asarray(values, remembered.dtype), remembered)

    forecasts = memory.forecasts
    if forecasts is not None:
        forecasts = forecasts.told(jnp.asarray(np.column_stack([objective, constraint])), reported)
    return memory._replace(
        objective=replace_values(objective, memory.objective),
        constraint=replace_values(constraint, memory.constraint),
        heard_at=jnp.where(reported, jnp.int32(done), memory.heard_at),
        times=memory.times + reported,
        travelled_at=jnp.where(reported, memory.travelled, memory.travelled_at),
        forecasts=forecasts,
    )


def _record(
    clients: list[int],
    outcomes: np.ndarray,
    reports: Reports,
    decision: Decision | None,
    full: ClientSummary,
    rows: tuple[int, int],
    trusted: Reports | None = None,
    traffic: tuple[int, int] | None = None,
    epsilon: np.ndarray | None = None,
) -> Record:
    """Return one round as a record of length 1; ``trusted`` are the reports after trimming."""
    objective, constraint, mask = (np.asarray(part) for part in (reports.objective, reports.constraint, reports.mask))
    dtype, worst = objective.dtype, reports if trusted is None else trusted
    worst_objective = np.where(mask, worst.objective, -np.inf)
    worst_constraint = np.where(mask[:, None], worst.constraint, -np.inf)
    is_missing = np.isneginf(objective) | np.isneginf(constraint).any(axis=1)
    client_arrays: Any = (
        np.asarray(clients, np.int32),
        np.where(mask, objective, np.nan).astype(dtype),
        np.where(mask[:, None], constraint, np.nan).astype(dtype),
        {},
        outcomes.astype(np.int32),
        np.full(len(clients), np.nan) if epsilon is None else epsilon,
    )
    parts: dict[str, Any] = {
        "objective": worst_objective.max(initial=-np.inf).astype(dtype),
        "constraint": worst_constraint.max(initial=-np.inf).astype(dtype),
        "criterion": np.asarray(-np.inf if decision is None else decision.criterion, dtype),
        "feasible": np.asarray(decision is not None and bool(decision.feasible & sound(reports, decision))),
        "worst_client": np.int32(clients[int(np.argmax(worst_objective))] if mask.any() else -1),
        "full": ClientSummary(*(np.asarray(part, np.float32) for part in full)),  # type: ignore[arg-type]
        "held_out": None,
        "absent": np.int32((mask & is_missing).sum()),
        "rows": np.asarray(rows, np.int64),
        "clients": RecordedClients(*client_arrays),
        "traffic": None if traffic is None else np.array([in_two_parts(np.int64(each)) for each in traffic], np.int64),
    }
    record: Record = jax.tree.map(lambda part: np.asarray(part)[None], Record(**parts))
    return record


def _add_state(record: Record, after: State, k: int) -> Record:
    """Add to a round's record the age of the memory."""
    changes: dict[str, Any] = {}
    if after.memory is not None:
        heard = np.asarray(after.memory.heard_at)
        changes["oldest"] = np.asarray([k - heard[heard >= 0].min(initial=k)], np.int32)
        changes["unheard"] = np.asarray([(heard == -1).sum()], np.int32)
    return record._replace(**changes)


def _concatenate(before: Record, after: Record) -> Record:
    """Concatenate the records of two stretches of rounds; pad the clients to the same width."""

    def pad(record: Any, width: int) -> Record:
        clients, objective, constraint, metrics, outcomes, epsilon = record.clients
        if clients.shape[1] == width:  # nearly always; the history is not copied again
            unchanged: Record = record
            return unchanged
        more = [(0, 0), (0, width - clients.shape[1])]
        padded: Any = (
            np.pad(clients, more, constant_values=-1),
            np.pad(objective, more, constant_values=np.nan),
            np.pad(constraint, [*more, (0, 0)], constant_values=np.nan),
            metrics,
            np.pad(outcomes, more),
            np.pad(epsilon, more, constant_values=np.nan),
        )
        widened_record: Record = record._replace(clients=RecordedClients(*padded))
        return widened_record

    assert before.clients is not None
    assert after.clients is not None
    width = max(before.clients.clients.shape[1], after.clients.clients.shape[1])
    joined: Record = jax.tree.map(lambda a, b: np.concatenate([a, b]), pad(before, width), pad(after, width))
    return joined
