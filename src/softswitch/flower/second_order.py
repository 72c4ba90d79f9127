"""Second-order runs over Flower: ``SQP`` with one message to each client in an exchange.

The server sends w, the client's weight λ_i and its multipliers μ_i. The client returns f_i, g_i, their gradients and
the Hessian of λ_i f_i + <μ_i, g_i>. All clients must reply: the request is repeated to those that do not.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from flwr.app import ConfigRecord, RecordDict

from softswitch.engine.request import RunOptions
from softswitch.engine.second_order import solve_second_order
from softswitch.flower import messages as wire
from softswitch.flower.compression import from_vector
from softswitch.flower.remote import RemoteClients, RemoteTask, quote_first
from softswitch.flower.roster import Roster
from softswitch.flower.settings import StrategySettings
from softswitch.methods.automatic import OpenMethod
from softswitch.methods.base import Method
from softswitch.methods.sqp import SQP, Derivatives, Query
from softswitch.oracles.base import Evaluation
from softswitch.oracles.derivatives import MAX_PARAMETERS, DerivativeOracle, UnavailableError, mean_rounding
from softswitch.oracles.options import Logging, Output
from softswitch.problem.domains import Ball, Box
from softswitch.problem.parameters import Params, count_parameters, to_vector
from softswitch.results.callbacks import Chunk
from softswitch.results.checkpoints import Checkpoints
from softswitch.results.history import ClientOutcome
from softswitch.results.result import Result
from softswitch.support.arrays import fingerprint

FOLDER = "second-order"
"""Folder of the checkpoints of the second-order part of an automatic run, in that of its checkpoints."""


def find_obstacle(method: Method, settings: StrategySettings, params: Params, roster: Roster | None = None) -> str:
    """Return why a run cannot use second derivatives, of these clients if they are known; "" if it can."""
    conditions = {
        f"{method} is a first-order method": isinstance(method, SQP | OpenMethod),
        "the constraint is pooled, for which clients would have to be asked twice": method.switches_on != "pooled",
        f"the model has more than {MAX_PARAMETERS} parameters": count_parameters(params) <= MAX_PARAMETERS,
        "secure aggregation hides single replies": settings.secure is None,
        f"participation is {settings.participation:g}, not 1": settings.participation == 1,
        f"local_steps is {settings.local_steps}, not 1": settings.local_steps == 1,
        f"eval_every is {settings.eval_every}, not 0": settings.eval_every == 0,
        "directions are clipped (clip_norm)": settings.clip_norm is None,
        f"the answer is not the last iterate ({settings.answer})": settings.answer in ("auto", "last"),
        f"memory is {settings.memory}": settings.memory in ("auto", None),
        f"the domain is {settings.domain!r}, not a Ball or a Box": isinstance(settings.domain, Ball | Box | None),
    }
    obstacle = next((problem for problem, holds in conditions.items() if not holds), "")
    if obstacle or roster is None:
        return obstacle
    unable = [name for name, one in zip(roster.names, roster.clients, strict=True) if one is None or not one.pieces]
    if unable:
        needed = "ClientPolicy(second_order=True) and smooth functions"
        return f"{quote_first(unable)} offered no second derivatives, which need {needed}"
    pieces = {client.pieces for client in roster.clients if client is not None}
    return "" if len(pieces) == 1 else f"clients have different numbers of smooth constraints: {sorted(pieces)}"


class RemoteDerivatives(DerivativeOracle):
    """The clients of a run over Flower, as clients that return derivatives.

    Clients of the settings' ``names`` or ``clients`` take part until they are excluded, others while they are
    connected.
    """

    can_test_convexity = False

    def __init__(self, clients: RemoteClients, start: Params) -> None:
        self._clients, self._roster, self._settings = clients, clients.roster, clients.settings
        self._known = dict[bytes, Evaluation]()
        self.start, self.domain, self.convex = start, self._settings.domain, self._settings.convex
        met = [client for client in self._roster.clients if client is not None]
        self._pieces = met[0].pieces
        self.has_gaps = self._pieces == 2 * clients.constraints
        self.is_exact = all(client.is_exact for client in met)
        self.rounding = mean_rounding(np.array([client.rows for client in met]), is_exact=self.is_exact)
        self._set_clients()

    def _set_clients(self) -> None:
        count = len(self._roster.names)
        self.names, self.shape = tuple(self._roster.names), (count, self._pieces)
        self.sizes = np.array([self._roster.rows(i) for i in range(count)])
        self.outcomes = np.zeros(count, np.int32)

    def _members(self) -> set[int]:
        """Return the indices of the clients that take part; raise if one sends no second derivatives."""
        roster, expected = self._roster, set(self._settings.expected)
        members = {i for i, name in enumerate(roster.names) if name in expected} | set(roster.connected)
        for i in members:
            client = roster.clients[i]
            if client is not None and client.pieces != self._pieces:
                raise UnavailableError(f"client {client.name!r} does not send second derivatives like the others")
        return members

    def reply(self, query: Query, needed: np.ndarray | None = None) -> Derivatives:
        """Return values, gradients and the Hessian at a point; absent clients have values of −∞."""
        settings, replies = self._settings, dict[int, wire.LocalDerivatives]()
        weights = np.c_[query.weights, query.multipliers]
        specs = {name: wire.ArraySpec(np.shape(value), "float64") for name, value in self.start.items()}
        params = wire.to_record(from_vector(query.point, specs))

        def weights_of(i: int) -> np.ndarray:
            return weights[i] if i < len(weights) else np.zeros(1 + self._pieces)

        def request(i: int) -> RecordDict:
            return RecordDict({wire.PARAMS: params, wire.DECISION: ConfigRecord({"weights": weights_of(i).tolist()})})

        def parse(i: int, content: RecordDict) -> wire.LocalDerivatives:
            return self._parse(content, with_hessian=bool(weights_of(i).any()))

        failures: dict[int, Exception] = {}
        for _ in range(settings.patience):
            members = self._members()
            wanted = members if needed is None else members & set(np.flatnonzero(needed).tolist())
            left = wanted - replies.keys()
            received, failures = self._clients.ask_all(wire.DERIVATIVES, request, parse, left, wait_for=len(members))
            replies |= received
            for i, failure in failures.items():
                if isinstance(failure, wire.RefusedError):
                    raise UnavailableError(f"client {self._roster.names[i]!r} sends no derivatives: {failure}")
            asked, members = wanted, self._members()
            wanted = members if needed is None else asked & members
            if wanted <= replies.keys() and len(members) >= settings.min_clients:
                break
        else:
            lost = quote_first([self._roster.names[i] for i in sorted(failures)]) or "too few clients"
            raise UnavailableError(f"no usable reply of {lost} in {settings.patience} attempts (patience)")
        self._set_clients()
        replied = np.isin(np.arange(len(self.names)), list(replies))
        used = np.stack([weights_of(i) for i in range(len(self.names))])
        values, gradients, hessian = self.add_up(sorted(replies.items()), used, replied)
        values[~replied] = -np.inf
        self.outcomes = np.where(replied, ClientOutcome.COUNTED, ClientOutcome.EMPTY).astype(np.int32)
        found = Derivatives(values[:, 0], values[:, 1:], gradients[:, 0], gradients[:, 1:], hessian)
        if needed is None and len(replies) == len(self.names) and np.array_equal(query.point, to_vector(self.start)):
            constraint = np.maximum(*np.split(found.constraint, 2, axis=1)) if self.has_gaps else found.constraint
            self._known[query.point.tobytes()] = Evaluation(found.objective, constraint, None)
        return found

    def _parse(self, content: RecordDict, *, with_hessian: bool) -> wire.LocalDerivatives:
        found = wire.parse_derivatives(content, self._pieces, self.size, with_hessian=with_hessian)
        constraint = np.maximum(*np.split(found.values[1:], 2)) if self.has_gaps else found.values[1:]
        self._clients.check_ranges(found.values[0], *constraint)
        return found

    def evaluate(self, params: Params) -> Evaluation:
        """Evaluate parameters at every client; those that do not reply have NaN."""
        key = to_vector(params).tobytes()
        if (found := self._known.get(key)) is None:
            found = self._clients.evaluate_params(params)
            if not np.isnan(found.objective).any():
                self._known[key] = found
        return found

    def digest(self) -> dict[str, str]:
        """Return what the replies depend on, as far as the server knows it."""
        identity = {"pieces": str(self._pieces), "min_clients": str(self._settings.min_clients)}
        return identity | {"start": fingerprint(self.start)}


def run_second_order(method: SQP, task: RemoteTask, checkpoints: Checkpoints | None) -> Result:
    """Run ``SQP`` over Flower, from its latest checkpoint if there is one.

    The task's ``after_round`` is called before the callbacks of the settings.
    """
    clients, settings, events = task.clients, task.clients.settings, task.clients.events
    task.after_round(0, task.start)
    if checkpoints is not None:
        clients.resume(checkpoints.saved_names())
    events.round = 0

    def count(chunk: Chunk) -> None:
        events.round = chunk.round
        task.after_round(chunk.round, chunk.state.params, chunk.history)

    oracle = RemoteDerivatives(clients, task.start)
    options = RunOptions(
        rounds=task.rounds,
        seed=settings.seed,
        output=Output(lower_bound=settings.lower_bound),
        logging=Logging(callbacks=(count, *settings.callbacks), progress=False, record_clients=True),
        checkpoints=checkpoints,
    )
    result = solve_second_order(oracle, method, options)
    events.record("finished", str(result.status))
    return replace(result, diagnostics=(*result.diagnostics, *clients.diagnostics()))
