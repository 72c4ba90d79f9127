"""The server's state in a run over Flower, and how a round changes it, without any network code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import tree_util

from softswitch.data.sampling import client_bit_count, sample_clients
from softswitch.engine.server_step import Cost, Evaluated, Setup, apply, decide, surviving_weights
from softswitch.flower import compression as codes
from softswitch.flower import messages as wire
from softswitch.flower.messages import Arrays
from softswitch.flower.settings import StrategySettings
from softswitch.methods.base import Method
from softswitch.methods.client_selection import represented_clients, select_connected
from softswitch.methods.compression import Compression
from softswitch.methods.compressors import split_byte_counts
from softswitch.methods.memory import Memory, Remembered
from softswitch.methods.messages import Reports
from softswitch.methods.parts import Round, Update
from softswitch.methods.robust import combine
from softswitch.methods.state import State, active_parts, first_averaged_round, first_state
from softswitch.oracles.evaluation import ClientSummary
from softswitch.problem.domains import as_pytree
from softswitch.problem.parameters import Params, float_dtype
from softswitch.results.checkpoints import Snapshot
from softswitch.results.history import ClientHistory, ClientOutcome, Record, join
from softswitch.results.history import keep_clients as keep_recorded
from softswitch.support.arrays import take_clients
from softswitch.support.tracing import program_digest

_decide = jax.jit(decide)
_apply = jax.jit(partial(apply, record_clients=False))  # the outcomes of clients are added afterwards
_combine = jax.jit(combine)
_surviving_weights = jax.jit(surviving_weights)
_select_connected = partial(jax.jit, static_argnums=4)(select_connected)


@partial(jax.jit, static_argnums=(2, 3))
def _choose(key: jax.Array, k: Any, clients: int, size: int) -> jax.Array:
    words = jax.random.bits(jax.random.fold_in(key, k), (client_bit_count(clients, size),), jnp.uint32)
    return sample_clients(words, clients, size)


class Observed(NamedTuple):
    """What only a network has of a round: the clients that were asked, their outcomes and budgets, and costs.

    ``full`` has F and G over all clients if they were evaluated, ``rows`` the numbers of rows of reports and gradients,
    ``traffic`` the bytes up and down if messages are compressed, and ``epsilon`` the spent budgets, or NaN.
    """

    clients: list[int]
    outcomes: np.ndarray
    full: ClientSummary
    rows: tuple[int, int]
    traffic: tuple[int, int] | None
    epsilon: np.ndarray


class ServerState:
    """The server's state and its part of a round, as in the compiled engine."""

    def __init__(
        self, method: Method, params: Params, constraints: int, rounds: int, settings: StrategySettings
    ) -> None:
        assert not isinstance(settings.memory, str)
        self.method, self.constraints, self.rounds, self._settings = method, constraints, rounds, settings
        self.memory: Memory | None = settings.memory
        self.averaging_from = first_averaged_round(rounds, settings.average_last or 1.0)  # may join the average
        self._key, self._domain = jax.random.key(settings.seed), as_pytree(settings.domain)
        self.dtype = np.dtype(float_dtype(params))
        self.state: State = self._first_state(params, method)
        self._stand_for: jax.Array | None = None
        self.record: Record | None = None  # the history so far
        self.direction_size: float | None = None  # norm of the last round's direction; None if it was void
        self.change: bytes | None = None  # encoded parameter change of the last round, if changes are compressed
        self.done = self.void_in_a_row = 0  # numbers of rounds, and of void rounds since the last that counted
        self.restart_begin = 0  # first round of the present restart

    @property
    def compression(self) -> Compression | None:
        """The compression of messages, if any."""
        return self.method.at_clients if isinstance(self.method.at_clients, Compression) else None

    @property
    def setup(self) -> Setup:
        """What the server computes."""
        secure = self._settings.secure
        return Setup(None, self.method, self._domain, self.memory, None if secure is None else 1 / secure.min_clients)

    def _first_state(self, params: Params, method: Method) -> State:
        parts = [part for part in active_parts(method, self.memory) if part.name != "at_clients"]  # clients keep it
        return first_state(params, method, parts, 0, self.constraints)

    @property
    def has_diverged(self) -> bool:
        """Whether a step was not finite."""
        return int(self.state.diverged_at) >= 0

    @property
    def local_step_size(self) -> float:
        """The clients' step size γ in this round."""
        return float(self.method.local_step_size_at(self.done, self._settings.local_steps))

    def no_reports(self, clients: int) -> Reports:
        """Return the reports of a round in which no client reported."""
        objective = jnp.full(clients, -jnp.inf, self.dtype)
        constraint = jnp.full((clients, self.constraints), -jnp.inf, self.dtype)
        pooled = None if self._settings.pooled is None else jnp.zeros(self.constraints, self.dtype)
        return Reports(objective, constraint, pooled, jnp.zeros(clients, bool))

    def like(self) -> tuple[State, Record]:
        """Return a state and a record with the structure of this run's."""
        traffic = None if self.compression is None else (0, 0)
        nothing = Observed([0], np.zeros(1, int), ClientSummary.missing(), (0, 0), traffic, np.zeros(1))
        return self.state, self._void_record(nothing)

    def program(self) -> str:
        """Return a digest of the server's computation in a round, with all constants of the method."""

        def one_round(setup: Setup, state: State, k: Any, reports: Reports) -> Any:
            played = decide(setup, state, k, jnp.zeros(1, jnp.int32), reports)
            nothing = Evaluated(ClientSummary.missing())
            state, _ = apply(setup, 0, state, played, Update(state.params), nothing, Cost(), record_clients=False)
            return state, setup.method.local_step_size_at(k, self._settings.local_steps)

        setup = self.setup._replace(memory=None, weight_cap=None)
        state = self._first_state(self.state.params, self.method)
        parts = {name: part for name, part in state.parts.items() if name in ("consistency", "direction")}
        return program_digest(one_round, setup, state._replace(parts=parts), jnp.int32(0), self.no_reports(1))

    def feasible_share(self, first: int) -> float:
        """Return the share of feasible rounds from the first one on."""
        return 0.0 if self.record is None else float(np.mean(np.asarray(self.record.feasible)[first:]))

    def begin_restart(self, params: Params, method: Method, averaging_from: int, values: Mapping[int, Any]) -> None:
        """Restart at these parameters with this method; keep only what is remembered of clients.

        ``values`` are f_i and g_i at the parameters by client, if it reported them.
        """
        state = self._first_state(params, method)
        memory, consistency = (self.state.parts.get(name) for name in ("memory", "consistency"))
        if memory is not None:
            state = state.with_part("memory", _with_values(memory, self.done, values))
        if consistency is not None:
            state = state.with_part("consistency", consistency.without_predictions())
        if self.done and method.goes_on:
            state = state._replace(method=self.state.method)
        self.state, self.method, self.averaging_from = state, method, averaging_from
        self.restart_begin = self.done

    def end_restart(self, params: Params, score: float) -> None:
        """Set the parameters to the best answer of a restart."""
        best = self.state.best._replace(params=params, score=jnp.asarray(score, self.state.best.score.dtype))
        self.state = self.state._replace(params=params, best=best, diverged_at=jnp.int32(-1))

    def resume(self, snapshot: Snapshot, *, in_restarts: bool) -> None:
        """Continue from a checkpoint, perhaps for more rounds than before."""
        averaging_from = snapshot.averaging_from if in_restarts else self.averaging_from
        snapshot = snapshot.extend(self.rounds, averaging_from, self.state)
        self.averaging_from = averaging_from
        self.state = jax.tree.map(jnp.asarray, snapshot.state)
        self.record, self.done = snapshot.record, snapshot.done

    def sample(self, connected: list[int], known: int) -> list[int]:
        """Return the clients of this round, out of the connected ones; by need if the server has memory.

        With all clients connected they are those of the compiled engine, if that draws no rows.
        ``known`` is the number of clients, connected or not.
        """
        if not connected:
            return []
        for name in ("consistency", "memory"):
            part = self.state.parts.get(name)
            if part is not None and len(part.times) < known:
                self.state = self.state.with_part(name, part.widen(known))
        size = min(
            len(connected), max(self._settings.min_clients, round(self._settings.participation * len(connected)))
        )
        k = jnp.int32(self.done)
        if self.memory is None:
            return [connected[i] for i in np.asarray(_choose(self._key, k, len(connected), size))]
        places, rest = self.memory.places(size), self.method.rest
        self._stand_for = represented_clients(places, len(connected), self.dtype)
        indices, memory = jnp.asarray(connected, jnp.int32), self.state.parts["memory"]
        return np.asarray(_select_connected(self._key, k, memory, indices, places, rest)).tolist()

    def decide(self, clients: list[int], reports: Reports) -> Round | None:
        """Return the round after the method's decision; None if too few clients reported."""
        if int(np.asarray(reports.mask).sum()) < self._settings.min_clients or bool(reports.void):
            return None
        if self.memory is not None:
            reports = reports._replace(stand_for=self._stand_for)
        indices = jnp.asarray(clients, jnp.int32)
        return _decide(self.setup, self.state, jnp.int32(self.done), indices, jax.tree.map(jnp.asarray, reports))

    def apply(self, played: Round | None, update: Update | None, observed: Observed) -> Record:
        """End the round: step along the aggregated directions, or change nothing if there are none.

        ``played`` is what ``decide`` returned. The observed outcomes are changed to void if the round is.
        """
        size, change, state = None, None, self.state
        if played is None or update is None:
            outcomes = observed.outcomes
            outcomes[outcomes == ClientOutcome.COUNTED] = ClientOutcome.VOID
            record = self._void_record(observed)
        else:
            size = float(optax.tree.norm(update.direction))
            evaluated = Evaluated(observed.full)
            state, of_round = _apply(self.setup, self.averaging_from, self.state, played, update, evaluated, Cost())
            state, change = self._round_as_clients(state)
            record = self._complete(of_round, played.reports, observed)
        history = record if self.record is None else join([self.record, record], self.done + 1)
        void_in_a_row = self.void_in_a_row + 1 if update is None else 0
        # One assignment: after Ctrl-C a round is either done or not.
        self.state, self.record, self.done, self.void_in_a_row = state, history, self.done + 1, void_in_a_row
        self.direction_size, self.change = size, change
        return record

    def _round_as_clients(self, after: State) -> tuple[State, bytes | None]:
        """Return the state with the parameters that clients compute from the encoded change, and that change.

        Clients add it outside of a compiled program, which may round differently.
        """
        compression = self.compression
        if compression is None or compression.down is None or int(after.diverged_at) >= 0:
            return after, None
        code = compression.down.encode(codes.to_vector(after.optimizer.sent))
        before = jax.tree.map(np.asarray, self.state.params)
        params = codes.apply_change(before, codes.decode(compression.down, code, wire.array_specs(before)))
        return after._replace(params=jax.tree.map(jnp.asarray, params)), code

    def aggregate(self, played: Round, directions: Mapping[int, Arrays]) -> Update | None:
        """Return Σ r_i u_i over the arrived directions, with weights for these clients; None if too few arrived.

        Directions are by place in the round's clients.
        """
        if len(directions) < self._settings.min_clients:
            return None
        reports, given = played.reports, played.decision.weights
        survived = np.zeros(len(reports.mask), bool)
        survived[list(directions)] = True
        if not survived[np.asarray(reports.mask)].all():
            if "memory" in played.parts:
                reports = played.parts["memory"].values_of(played.clients, reports)
            given = _surviving_weights(self.setup, self.state, played, reports, jnp.asarray(survived))
        weights = np.asarray(given, np.float64)
        if not weights.any():
            return None
        if self.method.robust is not None:
            stacked = {
                name: np.zeros((len(weights), *leaf.shape), leaf.dtype) for name, leaf in self.state.params.items()
            }
            for place, direction in directions.items():
                for name, part in direction.items():
                    stacked[name][place] = part
            combined = _combine(stacked, jnp.asarray(weights, self.dtype))
            return Update(combined, directions=stacked, returned=jnp.asarray(survived))
        total = {name: np.zeros(leaf.shape) for name, leaf in self.state.params.items()}
        for place, direction in directions.items():
            for name, part in direction.items():
                total[name] += weights[place] * part
        return Update(self.as_params(total))

    def as_params(self, arrays: Mapping[str, np.ndarray]) -> Params:
        """Return arrays as parameters in the dtypes of the state's."""
        params: Params = tree_util.tree_map(lambda leaf, w: jnp.asarray(leaf, w.dtype), arrays, self.state.params)
        return params

    def _void_record(self, observed: Observed) -> Record:
        no_value: Any = np.asarray(-np.inf, self.dtype)
        entries: dict[str, Any] = {"feasible": np.asarray(False), "worst_client": np.int32(-1), "absent": np.int32(0)}
        entries |= {"objective": no_value, "constraint": no_value, "criterion": no_value}
        if (memory := self.state.parts.get("memory")) is not None:
            reported_at = np.asarray(memory.reported_at)
            oldest = self.done - reported_at[reported_at >= 0].min(initial=self.done)
            entries |= {"unheard": np.int32((reported_at == -1).sum()), "oldest": np.int32(oldest)}
        record = Record(**entries, full=observed.full, held_out=None, rows=None, clients=None)
        return self._complete(record, self.no_reports(len(observed.clients)), observed)

    def _complete(self, record: Record, reports: Reports, observed: Observed) -> Record:
        """Return a record of length 1 with what only a network has: the clients and their outcomes, and costs."""
        mask = np.asarray(reports.mask)
        clients = ClientHistory(
            clients=np.asarray(observed.clients, np.int32),
            objective=np.where(mask, reports.objective, np.nan).astype(self.dtype),
            constraint=np.where(mask[:, None], reports.constraint, np.nan).astype(self.dtype),
            metrics={},
            outcomes=observed.outcomes.astype(np.int32),
            epsilon=observed.epsilon,
        )
        full: Any = [np.asarray(part, np.float32) for part in record.full]
        rows: Any = np.asarray(observed.rows, np.int64)
        record = record._replace(full=ClientSummary(*full), rows=rows, clients=clients)
        if observed.traffic is not None:
            traffic: Any = np.array([split_byte_counts(np.int64(part)) for part in observed.traffic], np.int64)
            record = record._replace(traffic=traffic)
        of_round: Record = jax.tree.map(lambda part: np.asarray(part)[None], record)
        return of_round


def keep_clients(snapshot: Snapshot, kept: Sequence[int]) -> Snapshot:
    """Return a checkpoint with some of its clients only: nothing is remembered of the others.

    F, G and the switch of earlier rounds stay as they were.
    """
    state, record = snapshot.state, snapshot.record
    for name, take in (("memory", Remembered.of), ("consistency", take_clients)):
        if (part := state.parts.get(name)) is not None:
            known = jnp.asarray([i for i in kept if i < len(part.times)], jnp.int32)
            state = state.with_part(name, take(part, known))
    record = keep_recorded(record, kept, len(snapshot.names))
    return snapshot._replace(state=state, record=record, names=tuple(snapshot.names[i] for i in kept))


def _with_values(memory: Remembered, done: int, values: Mapping[int, Any]) -> Remembered:
    """Return the memory with values that some clients reported outside of a round."""
    clients = max([len(memory.reported_at), *(index + 1 for index in values)])
    memory = memory.widen(clients)
    objective, constraint = np.full(clients, np.nan), np.full((clients, memory.constraint.shape[1]), np.nan)
    for index, (f, g) in values.items():
        objective[index], constraint[index] = f, g
    return memory.with_values(jnp.asarray(objective), jnp.asarray(constraint), jnp.asarray(~np.isnan(objective)), done)
