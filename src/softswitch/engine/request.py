"""Run settings and requests: the clients, start and settings of a run, filled in and checked before any work.

A method with given settings runs as published. An automatic run (step size None) has its settings chosen.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property, partial
from typing import Any, cast

import jax
import numpy as np

from softswitch.data.client_data import ClientData
from softswitch.data.streamed_data import StreamedData
from softswitch.engine.auto_tuning import Choice, choose_for_federation, choose_memory, choose_settings
from softswitch.engine.compiled import CompiledEngine, Program, ShardedEngine, Span, release
from softswitch.engine.out_of_core import OutOfCoreEngine
from softswitch.engine.server_step import Setup, check_exchanges
from softswitch.engine.stepwise import PrivateEngine, StepwiseEngine
from softswitch.methods.automatic import Automatic
from softswitch.methods.base import Method
from softswitch.methods.memory import Memory
from softswitch.methods.robust import check_robust
from softswitch.methods.softmax_sgm import SoftmaxSGM
from softswitch.methods.state import State, check_optimizer, first_averaged_round
from softswitch.oracles.base import Federation, Oracle
from softswitch.oracles.client_shifts import RegretObjective
from softswitch.oracles.gradient import GradientOracle, make_gradient_oracle
from softswitch.oracles.options import Compute, Logging, Output, Sampling, changed_options
from softswitch.oracles.out_of_core import OutOfCoreOracle
from softswitch.oracles.sharded import ShardedOracle, shard_oracle
from softswitch.privacy.oracle import PrivateOracle
from softswitch.privacy.settings import RecordPrivacy
from softswitch.problem.domains import Domain, as_pytree, check_domain
from softswitch.problem.parameters import Params
from softswitch.problem.problem import Problem
from softswitch.results.checkpoints import Checkpoints
from softswitch.results.result import Result
from softswitch.support import checks
from softswitch.support.arrays import fingerprint, structure_and_shapes
from softswitch.support.tracing import strip_addresses

DEFAULT_ROUNDS = 1000  # rounds of a method with given settings
AUTOMATIC_AVERAGE = 0.5  # share of the last rounds over which each restart of an automatic run averages
EVALUATIONS = 20  # default number of evaluations on all data in a run
MAX_COPIES_BYTES = 4 * 2**30  # memory for copies of the parameters that clients or robust aggregation keep
CHOSEN_FOR = "chosen_for"  # key in a request's identity of the rounds for which its settings were chosen, as JSON


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of one run, as described in ``solve``."""

    rounds: int | None = None
    seconds: float | None = None
    seed: int = 0
    sampling: Sampling | None = None
    output: Output = field(default_factory=Output)
    compute: Compute = field(default_factory=Compute)
    logging: Logging = field(default_factory=Logging)
    checkpoints: Checkpoints | None = None
    warm_start: Result | None = None
    privacy: RecordPrivacy | None = None

    def __post_init__(self) -> None:
        for name, kind in {"output": Output, "compute": Compute, "logging": Logging}.items():
            checks.check_instance(name, getattr(self, name), kind)
        for name, kind in {"sampling": Sampling, "checkpoints": Checkpoints, "warm_start": Result}.items():
            checks.check_given(self, checks.check_instance, name, cls=kind)
        checks.check_given(self, checks.check_integer, "rounds", minimum=1)
        checks.check_given(self, checks.check_real, "seconds", above=0)

    def with_sampling(self, method: Method) -> RunOptions:
        """Return the options with a sampling: ``Sampling()``, or ``Sampling.automatic()`` for an automatic run."""
        if self.sampling is None:
            return replace(self, sampling=Sampling.automatic() if method.step_size is None else Sampling())
        if self.sampling.is_automatic and method.step_size is not None:
            needed = "sampling must have given batch sizes for a method with a step size"
            raise ValueError(f"{needed}, but is {self.sampling}; batch_size=None uses all rows")
        return self

    def fill(self, choice: Choice | None, sampling: Sampling) -> RunOptions:
        """Return the options with ``sampling``, and without open ones (None, "auto") except for ``eval_every``."""
        output, rounds, default_share = self.output, self.rounds or DEFAULT_ROUNDS, 1.0
        if choice is not None:
            rounds, default_share = choice.rounds, AUTOMATIC_AVERAGE
        elif output.iterate == "auto":
            output = replace(output, iterate="average")
        output = replace(output, average_last=output.average_last or default_share)
        sampling = replace(sampling, memory=None) if sampling.memory == "auto" else sampling
        return replace(self, rounds=rounds, output=output, sampling=sampling)

    def with_evaluation(self, eval_every: int) -> RunOptions:
        """Return the options with this number of rounds between evaluations on all data."""
        return replace(self, logging=replace(self.logging, eval_every=eval_every))


@dataclass(frozen=True, eq=False)
class Request:
    """Clients, a start and options that have been checked with the methods that run on them."""

    federation: Federation
    options: RunOptions  # without open ones
    choice: Choice | None = None  # for automatic runs only
    on_one_device: Oracle | None = None  # sharded clients before sharding: a run can resume with other devices
    client_optimum: np.ndarray | None = None  # f_i* if objectives are regrets
    privacy: str | None = None  # part of the identity; it has the rounds, since private runs cannot be extended

    @property
    def oracle(self) -> Oracle:
        """The clients."""
        return self.federation.oracle

    @property
    def rounds(self) -> int:
        """K."""
        return cast(int, self.options.rounds)

    @property
    def averaging_from(self) -> int:
        """The first round that may join the average."""
        return first_averaged_round(self.rounds, cast(float, self.options.output.average_last))

    @property
    def eval_every(self) -> int:
        """Number of rounds between evaluations on all data; 0 for none."""
        return self.options.logging.eval_every or 0

    @property
    def memory(self) -> Memory | None:
        """Settings of the server's memory of reports; None for no memory."""
        return cast(Memory | None, cast(Sampling, self.options.sampling).memory)

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
    def engine(self) -> CompiledEngine:
        """The engine that runs the rounds of these clients."""
        if isinstance(self.oracle, ShardedOracle):
            return ShardedEngine()
        if isinstance(self.oracle, OutOfCoreOracle):
            return OutOfCoreEngine()
        if isinstance(self.oracle, PrivateOracle):
            return PrivateEngine()
        return CompiledEngine() if self.oracle.is_compiled else StepwiseEngine()

    def with_options(self, **changes: Any) -> Request:
        """Return the request with other options by name."""
        return replace(self, options=replace(self.options, **changes))

    def span(self, first: int) -> Span:
        """Return the traced numbers of the chunk that begins with round ``first``."""
        return Span(first, self.rounds, self.averaging_from, max(1, self.eval_every))

    def setup(self, method: Method) -> Setup:
        """Return the arguments of a compiled program."""
        return Setup(self.oracle_in_rounds, method, self.domain, self.memory)

    def program(self, length: int) -> Program:
        """Return what is compiled into a chunk of this many rounds."""
        return Program(length, bool(self.options.logging.record_clients), self.eval_every > 0)

    def fresh_state(self, method: Method) -> State:
        """Return the state before round 0 without a warm start."""
        return self.engine.start(self.federation.start, method, self.oracle.without_evaluation(), self.memory)

    def first_state(self, method: Method) -> State:
        """Return the state before round 0."""
        fresh = self.fresh_state(method)
        if self.options.warm_start is None:
            return fresh
        earlier = self.options.warm_start.state
        return fresh._replace(**{name: getattr(earlier, name) for name in ("params", "optimizer", "method", "average")})

    @property
    def start(self) -> Params:
        """w_0."""
        warm_start = self.options.warm_start
        return self.federation.start if warm_start is None else warm_start.state.params

    def identity(self, method: Method) -> dict[str, str]:
        """Return everything that determines a run, as text: runs with the same identity are equal bit by bit.

        The number of rounds and of evaluations is not included, so that a run can be extended.
        """
        oracle, state = self.on_one_device or self.oracle, self.first_state(method)
        setup = self.setup(method)._replace(oracle=oracle.without_evaluation())
        program = self.program(1)._replace(evaluates=False)
        key = jax.random.key(self.options.seed)
        # The program's digest covers the functions. The slice size depends on the device's memory.
        entries: Any = fields(oracle) if is_dataclass(oracle) else ()  # a user's oracle need not be one
        names = [entry.name for entry in entries if entry.metadata.get("static")]
        static = [name for name in names if name not in ("losses", "slice_size")]
        return {
            **({} if self.privacy is None else {"privacy": self.privacy}),
            "method": strip_addresses(str(method)),
            "seed": str(self.options.seed),
            "record_clients": str(bool(self.options.logging.record_clients)),
            "memory": str(self.memory),
            "domain": strip_addresses(repr(self.federation.domain)),
            **{name: strip_addresses(repr(getattr(oracle, name))) for name in static},
            "numbers": fingerprint((method, self.domain, self.memory)),
            "start": fingerprint(state),
            **self.engine.identity(oracle, setup, program, self.span(0), key, state),
            **({} if self.choice is None else {CHOSEN_FOR: json.dumps(self.choice.chosen_for)}),
            "jax": jax.__version__,
        }


def prepare_run(
    problem: Problem, clients: ClientData | StreamedData, methods: Sequence[Method], options: RunOptions
) -> Request:
    """Return a checked request for clients that hold rows; the methods are all automatic, or none is.

    An automatic run with checkpoints keeps what it chose, even if the number of rounds has changed.
    """
    checks.check_instance("problem", problem, Problem)
    if not isinstance(clients, StreamedData):
        checks.check_instance("clients", clients, ClientData)
    compute, sampling, held_out = options.compute, options.sampling or Sampling(), cast(Any, options.logging.held_out)
    if unsupported := changed_options(compute, "devices", "client_batch_size", "group_by_size"):
        raise ValueError(f"{unsupported[0]} must keep its default for JAX functions: only PyTorch modules have it")
    choice = None
    if is_automatic(methods):
        choose = partial(choose_settings, problem, clients, sampling, compute, methods=methods)
        current = choose(options.rounds).choice
        choice, sampling, compute = choose(_rounds_of_first_run(options))
        choice = replace(choice, rounds=current.rounds, may_end=current.may_end)
    elif any(method.robust is not None for method in methods):
        all_take_part = sampling.participants(len(clients)) == len(clients)
        noisy = sampling.value_batch_size is not None
        memory = choose_memory(sampling.memory, methods, all_take_part=all_take_part, noisy=noisy, can_repeat=False)
        sampling = replace(sampling, memory=memory)
    options = options.fill(choice, sampling)
    oracle: GradientOracle | OutOfCoreOracle
    sharded = None
    if isinstance(clients, StreamedData):
        oracle = OutOfCoreOracle(problem, clients, sampling, compute, held_out)
    else:
        oracle = make_gradient_oracle(problem, clients, sampling, compute, held_out)
        if compute.devices is not None:
            sharded = shard_oracle(oracle, clients, compute.devices, compute.client_batch_size)
    if options.logging.eval_every is None:
        client_rows = oracle.report_batching.width + 3 * oracle.local_steps * oracle.update_batching.width
        evaluated: Any = sum(
            (data.evaluation_sizes if isinstance(data, StreamedData) else data.sizes).sum()
            for data in (clients, held_out)
            if data is not None
        )
        every = choose_eval_every(cast(int, options.rounds), evaluated, oracle.participants * client_rows)
        options = options.with_evaluation(every)
    if held_out is not None and options.logging.eval_every == 0:
        raise ValueError("held_out is evaluated every eval_every rounds, but eval_every is 0, which means never")
    start = problem.start if sharded is None else release(problem.start)
    federation = Federation(sharded or oracle, start, clients.names, problem.domain)
    on_one_device = oracle if sharded is not None else None
    optimum = getattr(clients, "client_optimum", None) if isinstance(problem.objective, RegretObjective) else None
    return _check_methods(Request(federation, options, choice, on_one_device, optimum), methods)


def prepare_federation(federation: Federation, methods: Sequence[Method], options: RunOptions) -> Request:
    """Return a checked request for clients that are an oracle, which has its own sampling."""
    oracle = federation.oracle
    sampling = options.sampling or Sampling()
    choice = None
    memory = choose_memory(
        sampling.memory if oracle.supports_client_selection or sampling.memory != "auto" else None,
        methods,
        all_take_part=oracle.participants == oracle.client_count,
        noisy=oracle.report_batch_size is not None,
        can_repeat=oracle.can_repeat_reports,
    )
    if is_automatic(methods):
        current = choose_for_federation(federation, options.rounds, memory)
        choice = choose_for_federation(federation, _rounds_of_first_run(options), memory)
        choice = replace(choice, rounds=current.rounds, may_end=current.may_end)
    options = options.fill(choice, replace(sampling, memory=memory))
    if options.logging.eval_every is None:
        options = options.with_evaluation(math.ceil(cast(int, options.rounds) / EVALUATIONS))
    optimum = getattr(oracle, "client_optimum", None)
    return _check_methods(Request(federation, options, choice, client_optimum=optimum), methods)


def choose_eval_every(rounds: int, evaluated: float, training: float) -> int:
    """Return the number of rounds between evaluations: about 20 in a run, which cost at most as much as the training.

    ``evaluated`` is the number of rows of an evaluation, ``training`` that of a round, with gradients counted three
    times.
    """
    return max(math.ceil(rounds / EVALUATIONS), math.ceil(evaluated / training))


def resolve_method(method: Any, tolerance: float | None = None) -> Method:
    """Return the method of a run; its step size is None if it is chosen during the run."""
    if (method is None) == (tolerance is None):
        raise ValueError(f"give either a method or a tolerance, but method={method!r} and tolerance={tolerance!r}")
    if tolerance is not None:
        return Automatic(tolerance).template
    if isinstance(method, Automatic):
        return method.template
    if not isinstance(method, Method):
        raise TypeError(f"method must be a Method, such as SoftmaxSGM(...), or Automatic(...), but is {method!r}")
    required = ("step_size", "alpha") if isinstance(method, SoftmaxSGM) else ("step_size",)
    missing = [name for name in required if getattr(method, name, 0.0) is None]
    if missing:
        raise ValueError(
            f"{missing[0]} must be a number, but is None in {method}; use solve(..., tolerance=...) or "
            "softswitch.methods.Automatic to have it chosen"
        )
    return method


def is_automatic(methods: Sequence[Method]) -> bool:
    """Return whether the settings of these methods are chosen during the run: if they have no step size."""
    kinds = {method.step_size is None for method in methods}
    if len(kinds) > 1:
        raise ValueError("methods must be all automatic or all with given settings if they share their options")
    if not kinds.pop():
        return False
    for method in methods:
        if not isinstance(method, SoftmaxSGM) or method.alpha is not None:
            continue
        if method.constraint_alpha is not None or method.alpha_scale == "spread":
            raise ValueError(f"constraint_alpha and alpha_scale need an alpha, but {method} has none; give all or none")
    return True


def _rounds_of_first_run(options: RunOptions) -> int | None:
    """Return the rounds that the automatic run in the checkpoints was started with; else the current ones."""
    stored = None if options.checkpoints is None else options.checkpoints.saved_identity(CHOSEN_FOR)
    return options.rounds if stored is None else json.loads(stored)


def _check_methods(request: Request, methods: Sequence[Method]) -> Request:
    """Return the request, or raise if it cannot be run with these methods."""
    federation, choice, warm_start = request.federation, request.choice, request.options.warm_start
    oracle, start = federation.oracle, federation.start
    for method in methods if choice is None else map(choice.template, methods):
        if method.switches_on == "pooled" and not oracle.has_pooled_constraint:
            raise ValueError(
                "criterion='pooled' needs a constraint that is a function of additive statistics, given as "
                "PooledConstraint(statistics, value); other criteria are 'softmax', 'max' and 'mean'"
            )
        copies = {"at_clients": oracle.client_count if method.at_clients is not None else 0}
        if method.robust is not None:
            check_robust(method, oracle.participants)
            copies["robust"] = oracle.participants
        for name, count in copies.items():
            size = count * sum(leaf.nbytes for leaf in jax.tree.leaves(start))
            if size > MAX_COPIES_BYTES:
                needed = f"{size / 2**30:.1f} GiB for one copy of the parameters for each of {count:,} clients"
                limit = f"more than {MAX_COPIES_BYTES / 2**30:g}; use fewer clients"
                raise ValueError(f"{name}={getattr(method, name)} needs {needed}, {limit}")
        check_optimizer(method, start)
        check_exchanges(method, oracle, memory=request.memory, domain=federation.domain)
        if warm_start is not None:
            fresh = jax.eval_shape(partial(request.fresh_state, method))
            earlier: State = warm_start.state
            check_warm_params(earlier.params, fresh.params, federation.domain)
            wanted, given = (structure_and_shapes((state.optimizer, state.method)) for state in (fresh, earlier))
            if wanted != given:
                raise ValueError(
                    "warm_start must come from a run with the same class of method and optimizer, whose state "
                    "continues; to start at its parameters only, use them as the problem's start"
                )
    return request


def check_warm_params(given: Params, start: Params, domain: Domain | None) -> None:
    """Raise unless a run can begin at these parameters: they have the structure of the start, and are in Θ."""
    wanted, found = structure_and_shapes(start), structure_and_shapes(given)
    if wanted != found:
        accepted = f"parameters of the problem's structure, shapes and dtypes {wanted[1]}"
        raise ValueError(f"warm_start must hold {accepted}, but holds {found[1]}")
    check_domain(domain, given)
