"""Sweeps over methods and seeds, which share compiled programs, and a table of the results."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from importlib import import_module
from itertools import product
from threading import Event
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.markup import escape
from rich.table import Table

from softswitch.data.client_data import ClientData
from softswitch.data.streamed_data import StreamedData
from softswitch.engine import compiled
from softswitch.engine.loop import finish, run
from softswitch.engine.request import Request, RunOptions, is_automatic, prepare_federation, prepare_run, resolve_method
from softswitch.engine.second_order import attempt_second_order
from softswitch.engine.solve import TORCH_ENGINE
from softswitch.methods.automatic import Automatic, OpenMethod, to_first_order
from softswitch.methods.base import Method, differs
from softswitch.oracles.base import Federation
from softswitch.oracles.options import Compute, Logging, Output, Sampling, TorchData, changed_options
from softswitch.problem.problem import Problem
from softswitch.results.callbacks import Chunk, ProgressBar
from softswitch.results.result import Result
from softswitch.support import checks
from softswitch.support.processes import thread_count
from softswitch.support.text import format_mean_std, render_text

AnyMethod = Method | Automatic
AnyClients = ClientData | StreamedData | TorchData
Results = tuple[tuple[Result, ...], ...]  # by method and, within a method, by seed
DataSet = tuple[Any, Any, Any, tuple[int, ...]]  # problem, clients, held-out data, and the seeds that run on them
Share = tuple[Request, tuple[int, ...]]  # request for one data set, and the seeds that run on it
THREAD_SETTINGS: tuple[tuple[Any, str], ...] = (  # local to a thread: those of a sweep get the values of its caller
    (jax.enable_x64, "jax_enable_x64"),
    (jax.default_device, "jax_default_device"),
    (jax.default_matmul_precision, "jax_default_matmul_precision"),
    (jax.default_prng_impl, "jax_default_prng_impl"),
)
COLUMNS: dict[str, Callable[[Result], Any]] = {
    "seed": lambda result: result.seed,
    "worst_objective": lambda result: result.worst_objective,
    "worst_constraint": lambda result: result.worst_constraint,
    "violating": lambda result: len(result.violating),
    "switch_share": lambda result: result.history.switch_share,
    "status": lambda result: str(result.status.code),
}


@dataclass(frozen=True, eq=False)
class Sweep:
    """The outcome of ``sweep``: a result for every method and seed.

    Attributes:
        labels: Label of each method.
        seeds: Seed of each run of a method.
        results: ``results[r][s]`` is the result of method r with the s-th seed.
    """

    labels: tuple[str, ...]
    seeds: tuple[int, ...]
    results: Results

    def __iter__(self) -> Iterator[tuple[str, tuple[Result, ...]]]:
        return iter(zip(self.labels, self.results, strict=True))

    def __getitem__(self, label: str) -> tuple[Result, ...]:
        if label not in self.labels:
            raise KeyError(f"no method is labelled {label!r}; the labels are {', '.join(self.labels)}")
        return self.results[self.labels.index(label)]

    @property
    def table(self) -> dict[str, np.ndarray]:
        """Columns by name, one entry per method and seed: values of the answer on all training data, and status."""
        rows = [(label, result) for label, results in self for result in results]
        table = {"method": np.asarray([label for label, _ in rows])}
        return table | {name: np.asarray([value(result) for _, result in rows]) for name, value in COLUMNS.items()}

    def __str__(self) -> str:
        table = Table()
        table.add_column("method", min_width=max(map(len, self.labels)))
        for heading in ("worst objective", "worst constraint", "clients violating", "feasible rounds"):
            table.add_column(heading)
        for label, results in self:
            table.add_row(
                escape(label),
                format_mean_std([result.worst_objective for result in results]),
                format_mean_std([result.worst_constraint for result in results]),
                f"{np.mean([len(result.violating) for result in results]):.1f} of {len(results[0].names)}",
                f"{np.mean([result.history.switch_share for result in results]):.0%}",
            )
        return render_text(table)


def sweep(
    problem: Problem | Federation | Sequence[Problem | Federation],
    clients: AnyClients | Sequence[AnyClients] | None = None,
    methods: Sequence[AnyMethod] | Mapping[str, AnyMethod] = (),
    *,
    seeds: int | Sequence[int] = 5,
    rounds: int | None = None,
    sampling: Sampling | None = None,
    output: Output = Output(),  # noqa: B008 (frozen)
    compute: Compute = Compute(),  # noqa: B008
    logging: Logging = Logging(),  # noqa: B008
    vectorize: bool | None = None,
) -> Sweep:
    """Run every method with every seed.

    Methods of one class that differ only in numbers (α, step sizes, tolerance) share a compiled program. All methods
    share the random draws of a seed, so that their results can be compared pair by pair.

    Args:
        problem: Objective, constraint, start and domain, or a ``Federation``; or a list with one for each seed.
        clients: The clients' data as in ``solve``; or a list with one for each seed.
        methods: A list of methods, or a dict from labels to methods: all ``Automatic``, or all with given settings.
        seeds: Number of seeds (0, 1, 2, ...), or the seeds. Default: 5.
        rounds: Maximum number of rounds K, as in ``solve``.
        sampling: Client sampling and batch sizes, as in ``solve``.
        output: The iterate that each result has. Lower bounds are computed by ``solve`` only.
        compute: How clients compute; sweeps use the compiled engine on one device.
        logging: Values to record and the progress bar. ``held_out`` may be a list with one entry for each seed;
            callbacks are not called.
        vectorize: True computes all runs of one class of methods as one vectorised program, which fills an accelerator.
            False computes each run separately, exactly as ``solve`` would, with one thread per core. Default: True on
            an accelerator, False on a CPU, where it is faster.
    """
    labelled, numbers = _label_methods(methods), _check_seeds(seeds)
    of_modules = ("compile", "dtype") if isinstance(problem, Problem) and problem.is_torch else ()
    if changed_options(compute, "client_batch_size", *of_modules):
        raise ValueError(f"compute must have the compiled engine on one device in a sweep, but is {compute}")
    given = (problem, clients, logging.held_out)
    data_sets: list[DataSet] = [(*given, numbers)]
    if any(isinstance(each, Sequence) for each in given):
        per_seed = map(_one_per_seed, ("problem", "clients", "held_out"), given, [numbers] * 3)
        data_sets = [(*one, (seed,)) for *one, seed in zip(*per_seed, numbers, strict=True)]
    options = RunOptions(rounds=rounds, sampling=sampling, output=output, compute=compute, logging=logging)
    chosen: dict[str, tuple[Result, ...]] = {}
    for label, method in labelled.items():
        if isinstance(method, OpenMethod) and (runs := _run_second_order(data_sets, method, options)) is not None:
            chosen[label] = runs
    alike = tuple(to_first_order(method) for label, method in labelled.items() if label not in chosen)
    if alike:
        if vectorize and is_automatic(alike):
            raise ValueError("vectorize must be False or None for Automatic: each run chooses its own settings")
        shares = [(_prepare(data, alike, options), data[-1]) for data in data_sets]
        run_results = _run_all(shares, alike, False if is_automatic(alike) else vectorize, logging.progress)
        chosen |= dict(zip((label for label in labelled if label not in chosen), run_results, strict=True))
    return Sweep(tuple(labelled), numbers, tuple(chosen[label] for label in labelled))


def _label_methods(methods: Any) -> dict[str, Method]:
    if isinstance(methods, Method) or not isinstance(methods, Mapping | Sequence):
        raise TypeError(f"methods must be a list of methods or a dict from labels to methods, but is {methods!r}")
    if isinstance(methods, Mapping):
        labelled = {label: resolve_method(method) for label, method in methods.items()}
    else:
        resolved = [resolve_method(method) for method in methods]
        labelled = {_label(method, resolved): method for method in resolved}
    if not labelled or len(labelled) < len(methods):
        raise ValueError(f"methods must hold at least one method, and none twice, but is {methods!r}")
    return labelled


def _label(method: Method, methods: Sequence[Method]) -> str:
    """Return the name of the method's class, with the settings that differ from other methods of the class."""
    same_class = [other for other in methods if type(other) is type(method)]
    varying = [
        f"{field.name}={getattr(method, field.name)!r}"
        for field in fields(method)
        if any(differs(getattr(other, field.name, None), getattr(method, field.name)) for other in same_class)
    ]
    name = "Automatic" if isinstance(method, OpenMethod) else type(method).__name__
    return f"{name}({', '.join(varying)})"


def _check_seeds(seeds: Any) -> tuple[int, ...]:
    given = np.arange(checks.check_integer("seeds", seeds, minimum=1)) if np.ndim(seeds) == 0 else np.asarray(seeds)
    if not given.size:
        raise ValueError("seeds must hold at least one seed, but is empty")
    return tuple(checks.check_seed("seeds", seed) for seed in given.tolist())


def _one_per_seed(name: str, given: Any, seeds: Sequence[int]) -> Sequence[Any]:
    if not isinstance(given, Sequence):
        return [given] * len(seeds)
    if len(given) != len(seeds):
        raise ValueError(f"{name} must be one for all seeds or a list of {len(seeds)}, but is a list of {len(given)}")
    return given


def _run_second_order(
    data_sets: Sequence[DataSet], method: OpenMethod, options: RunOptions
) -> tuple[Result, ...] | None:
    """Run ``SQP`` on every data set; None if a first-order method must run on one of them. Seeds have no effect."""
    results: list[Result] = []
    options = replace(options.with_sampling(method), output=replace(options.output, lower_bound=False))
    for problem, clients, held_out, seeds in data_sets:
        if isinstance(problem, Federation):
            return None
        silent = replace(options.logging, held_out=held_out, callbacks=())
        attempt = attempt_second_order(problem, clients, method, replace(options, seed=seeds[0], logging=silent))
        if attempt.result is None or attempt.reason is not None:
            return None
        results += [replace(attempt.result, seed=seed) for seed in seeds]
    return tuple(results)


def _prepare(data: DataSet, methods: tuple[Method, ...], options: RunOptions) -> Request:
    """Return the request of all methods on one data set."""
    problem, clients, held_out, _ = data
    if not isinstance(problem, Federation):
        options = replace(options.with_sampling(methods[0]), logging=replace(options.logging, held_out=held_out))
        if not problem.is_torch:
            return prepare_run(problem, clients, methods, options)
        problem = import_module(TORCH_ENGINE).torch_federation(
            problem, clients, options.sampling, held_out, options.compute
        )
    return prepare_federation(problem, methods, options)


def _run_all(
    shares: Sequence[Share], methods: Sequence[Method], vectorize: bool | None, progress: bool | None
) -> Results:
    compiles = all(request.oracle.is_compiled for request, _ in shares)
    if vectorize is None:
        vectorize = jax.default_backend() != "cpu" and compiles
    elif vectorize and not compiles:
        raise ValueError("vectorize must be False or None if clients cannot be compiled, but is True")
    runs = len(methods) * sum(len(seeds) for _, seeds in shares)
    with ProgressBar(runs * shares[0][0].rounds, progress) as bar:
        if vectorize:
            return _run_vectorized(shares, methods, bar)
        return _run_in_threads(shares, methods, bar, thread_count() if compiles else 1)  # others share one model


def _run_in_threads(shares: Sequence[Share], methods: Sequence[Method], bar: ProgressBar, threads: int) -> Results:
    """Run each method and seed separately in a pool of threads; XLA computes outside of Python's lock."""
    interrupted = Event()
    runs = [(request, seed) for request, seeds in shares for seed in seeds]
    settings = [(enter, getattr(jax.config, name)) for enter, name in THREAD_SETTINGS]

    def run_one(r: int, s: int) -> Result:
        def watch(chunk: Chunk) -> bool:
            bar.advance(len(chunk.history))
            return interrupted.is_set()

        with ExitStack() as contexts:
            for enter, value in settings:
                contexts.enter_context(enter(value))
            request, seed = runs[s]
            silent = replace(request.options.logging, callbacks=(watch,), progress=False)
            return run(request.with_options(seed=seed, logging=silent), methods[r])

    with ThreadPoolExecutor(threads) as pool:
        futures = [[pool.submit(run_one, r, s) for s in range(len(runs))] for r in range(len(methods))]
        try:
            return tuple(tuple(future.result() for future in row) for row in futures)
        except BaseException:
            interrupted.set()  # current runs stop after their chunk
            pool.shutdown(cancel_futures=True)
            raise


def _run_vectorized(shares: Sequence[Share], methods: Sequence[Method], bar: ProgressBar) -> Results:
    """Run the methods as one program for each pytree structure and data set; return the results by method and seed."""
    groups: dict[Any, list[int]] = {}
    for r, method in enumerate(methods):
        groups.setdefault(jax.tree.structure(method), []).append(r)
    results: list[tuple[Result, ...]] = [()] * len(methods)
    for share, members in product(shares, groups.values()):
        rows = _run_stacked(share, [methods[r] for r in members], bar)
        for r, row in zip(members, rows, strict=True):
            results[r] += row
    return tuple(results)


def _run_stacked(share: Share, methods: Sequence[Method], bar: ProgressBar) -> list[tuple[Result, ...]]:
    """Run methods of the same structure with all seeds of a data set; return the results by method, then seed."""
    (request, seeds), runs = share, len(methods) * len(share[1])
    stacked = jax.tree.map(lambda *numbers: jnp.asarray(numbers), *methods)
    keys = jnp.stack([jax.random.key(seed) for seed in seeds])
    length = compiled.chunk_length(request.oracle, len(seeds))
    first_states = jax.vmap(request.first_state)(stacked)
    states = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (len(seeds), *leaf.shape)), first_states)
    records = []
    began = time.perf_counter()
    for first in range(0, request.rounds, length):
        program = request.program(length)
        states, record = compiled.run_many(request.setup(stacked), program, request.span(first), keys, states)
        records.append(jax.tree.map(np.asarray, record))
        bar.advance(min(length, request.rounds - first) * runs)
    seconds = (time.perf_counter() - began) / runs
    states = jax.tree.map(np.asarray, states)

    def result(r: int, s: int) -> Result:
        state, own_records = jax.tree.map(lambda leaf: leaf[s, r], (states, records))
        return finish(
            request.with_options(seed=seeds[s]), methods[r], state, own_records, request.rounds, False, seconds
        )

    return [tuple(result(r, s) for s in range(len(seeds))) for r in range(len(methods))]
