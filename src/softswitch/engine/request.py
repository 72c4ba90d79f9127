"""Run settings and requests: the clients, start and settings of a run, checked before any work."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property, partial
from typing import Any

import jax

from softswitch.data.client_data import ClientData
from softswitch.data.streamed_data import StreamedData
from softswitch.engine.auto_tuning import Choice
from softswitch.engine.compiled import CompiledEngine, Engine, Program, Span
from softswitch.engine.out_of_core import OutOfCoreEngine
from softswitch.engine.server_step import Setup, check_exchanges
from softswitch.engine.sharded import ShardedEngine, release
from softswitch.engine.stepwise import StepwiseEngine
from softswitch.methods.base import Method
from softswitch.methods.robust import check_robust
from softswitch.methods.state import State, check_optimizer, first_averaged_round
from softswitch.oracles.base import Federation, Oracle
from softswitch.oracles.gradient import GradientOracle, make_gradient_oracle
from softswitch.oracles.options import Compute, Logging, Output, Sampling
from softswitch.oracles.out_of_core import OutOfCoreOracle
from softswitch.oracles.sharded import ShardedOracle, shard_oracle
from softswitch.problem.domains import Domain, as_pytree, check_domain
from softswitch.problem.parameters import Params
from softswitch.problem.problem import Problem
from softswitch.results.result import Result
from softswitch.support import checks
from softswitch.support.arrays import fingerprint, structure_and_shapes
from softswitch.support.tracing import strip_addresses

STATE_PARTS = ("optimizer", "average")
"""Parts of the state that a warm start may keep besides the last iterate."""
EVALUATIONS = 20
"""Default number of evaluations on all data in a run."""
CHOSEN_FOR = "chosen_for"
"""Key in a request's identity of the rounds for which its settings were chosen, as JSON."""


@dataclass(frozen=True, eq=False)
class WarmStart:
    """Continue from the last iterate of an earlier run.

    Attributes:
        result: The result of the earlier run.
        keep_state: What is kept besides the iterate: "optimizer", the state of the server optimizer and of the method;
            "average", the sum of the feasible iterates so far, which the new ones join. Round numbers start at 0.
    """

    result: Result
    keep_state: Collection[str] = STATE_PARTS

    def __post_init__(self) -> None:
        checks.check_instance("warm_start", self.result, Result)
        if isinstance(self.keep_state, str) or not isinstance(self.keep_state, Collection):
            raise TypeError(f"keep_state must be a tuple of words, such as ('optimizer',), but is {self.keep_state!r}")
        for word in self.keep_state:
            checks.check_choice("keep_state", word, STATE_PARTS)

    @property
    def state(self) -> State:
        """The server state at the end of the earlier run."""
        return self.result.state


def resolve_warm_start(given: Result | WarmStart | None) -> WarmStart | None:
    """Return the warm start that a user gave as a result, a ``WarmStart`` or None."""
    return given if given is None or isinstance(given, WarmStart) else WarmStart(given)


def _check_warm_start(warm_start: WarmStart, fresh: State, domain: Domain | None) -> None:
    """Raise unless the kept state has the structure of a fresh one and lies in the domain."""
    earlier = warm_start.state
    wanted, given = structure_and_shapes(fresh.params), structure_and_shapes(earlier.params)
    if wanted != given:
        accepted = f"parameters of the problem's structure, shapes and dtypes {wanted[1]}"
        raise ValueError(f"warm_start must hold {accepted}, but holds {given[1]}")
    if "optimizer" in warm_start.keep_state:
        wanted, given = (structure_and_shapes((state.optimizer, state.method)) for state in (fresh, earlier))
        if wanted != given:
            accepted = "a run with the same class of method and optimizer to keep its state"
            raise ValueError(f"warm_start must come from {accepted}; remove 'optimizer' from keep_state")
    check_domain(domain, earlier.params)


def _apply_warm_start(warm_start: WarmStart, fresh: State) -> State:
    """Return a fresh state with the kept parts."""
    earlier, kept = warm_start.state, warm_start.keep_state
    state = fresh._replace(params=earlier.params)
    if "optimizer" in kept:
        state = state._replace(optimizer=earlier.optimizer, method=earlier.method)
    return state._replace(average=earlier.average) if "average" in kept else state


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """The settings of one run, described and checked in ``solve``, ``Sampling``, ``Output`` and ``Logging``.

    Open ones (None, "auto") are filled in before the run.
    """

    rounds: Any = 1000
    average_last: Any = 1.0
    answer: str = "average"
    eval_every: int | None = None
    record_clients: bool = False
    memory: Any = None
    seconds: float | None = None

    @classmethod
    def from_options(
        cls, rounds: int | None, seconds: float | None, sampling: Sampling, output: Output, logging: Logging
    ) -> RunSettings:
        """Collect the settings of a run from the option groups."""
        return cls(
            rounds=rounds,
            average_last=output.average_last,
            answer=output.iterate,
            eval_every=logging.eval_every,
            record_clients=logging.record_clients,
            memory=sampling.memory,
            seconds=seconds,
        )

    def __post_init__(self) -> None:
        if self.rounds is not None:
            checks.check_integer("rounds", self.rounds, minimum=1)
        if self.seconds is not None:
            checks.check_real("seconds", self.seconds, above=0)

    @property
    def averaging_from(self) -> int:
        """The first round that may join the average."""
        return first_averaged_round(self.rounds, self.average_last)


@dataclass(frozen=True, eq=False)
class Request:
    """Clients, a start and settings that have been checked with the methods that run on them."""

    federation: Federation
    settings: RunSettings  # without open ones
    warm_start: WarmStart | None = None
    choice: Choice | None = None  # for automatic runs only
    on_one_device: Oracle | None = None  # sharded clients before sharding: a run can resume with other devices
    privacy: str | None = None  # part of the identity; it has the rounds, since private runs cannot be extended

    @property
    def oracle(self) -> Oracle:
        """The clients."""
        return self.federation.oracle

    @property
    def rounds(self) -> int:
        """K."""
        return self.settings.rounds

    @property
    def eval_every(self) -> int:
        """Number of rounds between evaluations on all data; 0 for none."""
        assert self.settings.eval_every is not None
        return self.settings.eval_every

    @cached_property
    def oracle_in_rounds(self) -> Oracle:
        """The clients as compiled into rounds: without evaluation on all data if no round needs it."""
        return self.oracle if self.eval_every else self.oracle.without_evaluation()

    @cached_property
    def domain(self) -> Domain | None:
        """Θ as a pytree."""
        domain = self.federation.domain
        return None if domain is None else as_pytree(domain)

    @cached_property
    def engine(self) -> Engine:
        """The engine that runs the rounds of these clients."""
        if isinstance(self.oracle, ShardedOracle):
            return ShardedEngine()
        if isinstance(self.oracle, OutOfCoreOracle):
            return OutOfCoreEngine()
        return CompiledEngine() if self.oracle.is_compiled else StepwiseEngine()

    def span(self, first: int) -> Span:
        """Return the traced numbers of the chunk that begins with round ``first``."""
        return Span(first, self.rounds, self.settings.averaging_from, max(1, self.eval_every))

    def setup(self, method: Method) -> Setup:
        """Return the arguments of a compiled program."""
        return Setup(self.oracle_in_rounds, method, self.domain, self.settings.memory)

    def program(self, length: int) -> Program:
        """Return what is compiled into a chunk of this many rounds."""
        memory = self.settings.memory
        places = None if memory is None else memory.places(self.oracle.participants)
        return Program(length, bool(self.settings.record_clients), self.eval_every > 0, places)

    def first_state(self, method: Method) -> State:
        """Return the state before round 0."""
        clients = self.oracle.without_evaluation()
        fresh: State = self.engine.start(self.federation.start, method, clients, self.settings.memory)
        return fresh if self.warm_start is None else _apply_warm_start(self.warm_start, fresh)

    @property
    def start(self) -> Params:
        """w_0."""
        return self.federation.start if self.warm_start is None else self.warm_start.state.params

    def identity(self, method: Method, seed: int) -> dict[str, str]:
        """Return everything that determines a run, as text: runs with the same identity are equal bit by bit.

        The number of rounds and of evaluations is not included, so that a run can be extended.
        """
        oracle, state = self.on_one_device or self.oracle, self.first_state(method)
        setup = self.setup(method)._replace(oracle=oracle.without_evaluation())
        program = self.program(1)._replace(evaluates=False)
        return {
            **({} if self.privacy is None else {"privacy": self.privacy}),
            "method": strip_addresses(str(method)),
            "seed": str(seed),
            "record_clients": str(bool(self.settings.record_clients)),
            "memory": str(self.settings.memory),
            "domain": strip_addresses(repr(self.federation.domain)),
            **_static_settings(oracle),
            "numbers": fingerprint((method, self.domain, self.settings.memory)),
            "start": fingerprint(state),
            **self.engine.identity(oracle, setup, program, self.span(0), jax.random.key(seed), state),
            **({} if self.choice is None else {CHOSEN_FOR: json.dumps(self.choice.chosen_for)}),
            "jax": jax.__version__,
        }


def _static_settings(oracle: Oracle) -> dict[str, str]:
    """Return the settings of clients that are not arrays, as text that is the same in every process."""
    # The program's digest covers the functions. The slice size depends on the device's memory.
    excluded = ("losses", "slice_size")
    entries: Any = fields(oracle) if is_dataclass(oracle) else ()  # a user's oracle need not be one
    static = [entry.name for entry in entries if entry.metadata.get("static") and entry.name not in excluded]
    return {name: strip_addresses(repr(getattr(oracle, name))) for name in static}


def request(
    problem: Problem,
    clients: ClientData | StreamedData,
    methods: Sequence[Method],
    sampling: Sampling,
    settings: RunSettings,
    *,
    compute: Compute | None = None,
    held_out: ClientData | None = None,
    warm_start: WarmStart | None = None,
    choice: Choice | None = None,
) -> Request:
    """Return a checked request for clients that hold rows."""
    compute = compute or Compute()
    oracle: GradientOracle | OutOfCoreOracle
    sharded, on_one_device = None, None
    if isinstance(clients, StreamedData):
        oracle = OutOfCoreOracle(problem, clients, sampling, compute, held_out)
    else:
        oracle = make_gradient_oracle(problem, clients, sampling, compute, held_out)
        if compute.devices is not None and compute.engine == "compiled":
            sharded = shard_oracle(oracle, clients, compute.devices, compute.client_batch_size)
            on_one_device = oracle
    every = settings.eval_every
    if every is None:
        client_rows = oracle.report_batching.width + 3 * oracle.local_steps * oracle.update_batching.width
        evaluated: Any = sum(
            (data.evaluation_sizes if isinstance(data, StreamedData) else data.sizes).sum()
            for data in (clients, held_out)
            if data is not None
        )
        every = choose_eval_every(settings.rounds, evaluated, oracle.participants * client_rows)
    if held_out is not None and every == 0:
        raise ValueError("held_out is evaluated every eval_every rounds, but eval_every is 0, which means never")
    start = problem.start if sharded is None else release(problem.start)
    federation = Federation(sharded or oracle, start, clients.names, problem.domain)
    settings = replace(settings, eval_every=int(every))
    checked = request_of(federation, methods, settings, warm_start=warm_start, choice=choice)
    return replace(checked, on_one_device=on_one_device)


def choose_eval_every(rounds: int, evaluated: float, training: float) -> int:
    """Return the number of rounds between evaluations: about 20 in a run, which cost at most as much as the training.

    ``evaluated`` is the number of rows of an evaluation, ``training`` that of a round, with gradients counted three
    times.
    """
    return max(math.ceil(rounds / EVALUATIONS), math.ceil(evaluated / training))


def request_of(
    federation: Federation,
    methods: Sequence[Method],
    settings: RunSettings,
    *,
    warm_start: WarmStart | None = None,
    choice: Choice | None = None,
    privacy: str | None = None,
) -> Request:
    """Return a checked request for clients that are an oracle."""
    checks.check_instance("federation", federation, Federation)
    oracle, start = federation.oracle, federation.start
    every = math.ceil(settings.rounds / EVALUATIONS) if settings.eval_every is None else settings.eval_every
    settings = replace(settings, eval_every=int(every))
    cold = Request(federation, settings, None, choice, privacy=privacy)
    for method in methods if choice is None else map(choice.template, methods):
        checks.check_instance("method", method, Method)
        if method.switches_on == "pooled" and not oracle.has_pooled_constraint:
            raise ValueError(
                "criterion='pooled' needs a constraint that is a function of additive statistics, given as "
                "PooledConstraint(statistics, value); other criteria are 'softmax', 'max' and 'mean'"
            )
        if method.robust is not None:
            check_robust(method, oracle.participants)
        check_optimizer(method, start)
        check_exchanges(method, oracle, memory=settings.memory, domain=federation.domain)
        if warm_start is not None:
            _check_warm_start(warm_start, jax.eval_shape(partial(cold.first_state, method)), federation.domain)
    return replace(cold, warm_start=warm_start)
