"""sweep(): many settings and seeds, sharing compiled programs, and one table of what came out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from dataclasses import replace as changed
from importlib import import_module
from itertools import groupby
from typing import Any

import numpy as np
from rich.markup import escape
from rich.table import Table

from softswitch.data.client_data import ClientData
from softswitch.data.streamed_data import StreamedData
from softswitch.engine.defaults import resolve_for_federation, resolve_options, resolve_sampling
from softswitch.engine.parallel import Share, run_all
from softswitch.engine.private_sweep import TotalPrivacy, sweep_privately
from softswitch.engine.request import RunSettings, request, request_of
from softswitch.engine.solve import TORCH_ENGINE
from softswitch.methods.automatic import Automatic, resolve_method
from softswitch.methods.base import Method, differs
from softswitch.oracles.federation import Federation
from softswitch.oracles.options import Compute, Logging, Output, Sampling, TorchData, changed_options
from softswitch.oracles.regret import client_optimum_of
from softswitch.privacy.checks import refuse_options, refuse_uncounted
from softswitch.privacy.settings import RecordPrivacy
from softswitch.problem.problem import Problem
from softswitch.results.result import Result
from softswitch.support import checks
from softswitch.support.text import format_mean_std, render_text

AnyMethod = Method | Automatic
AnyClients = ClientData | StreamedData | TorchData


@dataclass(frozen=True, eq=False)
class Sweep:
    """The outcome of ``sweep``: a result for every rule and seed.

    Attributes:
        labels: what each rule is called.
        seeds: the seeds.
        results: ``results[r][s]`` is rule r with seed s.
        privacy: what all runs cost clients' rows together, where these are kept private; else None.
    """

    labels: tuple[str, ...]
    seeds: tuple[int, ...]
    results: tuple[tuple[Result, ...], ...]
    privacy: TotalPrivacy | None = None

    def __iter__(self) -> Iterator[tuple[str, tuple[Result, ...]]]:
        return iter(zip(self.labels, self.results, strict=True))

    def __getitem__(self, label: str) -> tuple[Result, ...]:
        if label not in self.labels:
            raise KeyError(f"no rule is labelled {label!r}; there are {', '.join(self.labels)}")
        return self.results[self.labels.index(label)]

    @property
    def table(self) -> dict[str, np.ndarray]:
        """One row a rule and seed: what the answer reaches on all training data. Ready for a data frame.

        Where rows are kept private it is by what clients told with noise, and ``epsilon`` is that of the run alone,
        ``epsilon_of_all`` that of all runs together.
        """
        rows = [
            (
                label,
                result.seed,
                result.worst_objective,
                result.worst_constraint,
                len(result.violating),
                result.history.switch_share,
                str(result.status.code),
            )
            for label, results in self
            for result in results
        ]
        names = (
            "method",
            "seed",
            "worst_objective",
            "worst_constraint",
            "violating",
            "switch_share",
            "status",
        )
        table = {name: np.asarray(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}
        if self.privacy is not None:
            table["epsilon"] = np.asarray([_epsilon(result) for _, results in self for result in results])
            table["epsilon_of_all"] = np.full(len(rows), self.privacy.epsilon)
        return table

    def __str__(self) -> str:
        table = Table()
        table.add_column("method", min_width=max(map(len, self.labels)))
        for heading in ("worst objective", "worst constraint", "clients violating", "feasible rounds"):
            table.add_column(heading)
        if self.privacy is not None:
            table.add_column("ε of a run")
        for label, results in self:
            table.add_row(
                escape(label),
                format_mean_std([result.worst_objective for result in results]),
                format_mean_std([result.worst_constraint for result in results]),
                f"{np.mean([len(result.violating) for result in results]):.1f} of {len(results[0].names)}",
                f"{np.mean([result.history.switch_share for result in results]):.0%}",
                *([] if self.privacy is None else [format_mean_std([_epsilon(result) for result in results])]),
            )
        return render_text(table) if self.privacy is None else f"{render_text(table)}\n{self.privacy}"


def _epsilon(result: Result) -> float:
    """ε of the client that told most."""
    assert result.privacy is not None
    return result.privacy.worst_epsilon


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
    privacy: RecordPrivacy | None = None,
) -> Sweep:
    """Run every method with every seed.

    Methods of one class that differ only in numbers (α, step sizes, tolerance) share a compiled program. All methods
    share the random draws of a seed, so that their results can be compared pair by pair.

    Args:
        problem: Objective, constraint, start and domain, or a ``Federation``; or a list with one for each seed.
        clients: The clients' data as in ``solve``; or a list with one for each seed.
        methods: A list of methods, or a dict from labels to methods. ``Automatic`` counts as a method.
        seeds: Number of seeds (0, 1, 2, ...), or the seeds.
        rounds: Maximum number of rounds K, as in ``solve``.
        sampling: Which clients take part in a round, and which rows they use, as in ``solve``.
        output: Which iterate each result has. Lower bounds are computed by ``solve`` only.
        compute: How clients compute; sweeps use the compiled engine on one device.
        logging: What is recorded and shown. ``held_out`` may be a list with one entry for each seed; callbacks are
            not called.
        vectorize: Compute all runs of one class side by side as one program, which fills an accelerator; or one after
            another on every core, each exactly as ``solve`` would. Default: the first on an accelerator, the second on
            a CPU, where it is faster.
        privacy: Record-level differential privacy in each run. All runs read the same rows: ``Sweep.privacy`` has what
            they cost together.
    """
    labelled, numbers = _labelled(methods), _numbered(seeds)
    if changed_options(compute, "dtype", "client_batch_size"):
        raise ValueError(f"compute must have the compiled engine on one device in a sweep, but is {compute}")
    data = (problem, clients, logging.held_out)
    runs: list[tuple[Any, Any, Any, tuple[int, ...]]] = [(*data, numbers)]
    if any(isinstance(given, Sequence) for given in data):
        per_seed = map(_one_per_seed, ("problem", "clients", "held_out"), data, [numbers] * 3)
        runs = [(*one, (seed,)) for *one, seed in zip(*per_seed, numbers, strict=True)]

    if privacy is not None:
        refuse_options({"vectorize": vectorize})
        private_sampling = resolve_sampling(sampling, next(iter(labelled.values())))
        settings = RunSettings.from_options(rounds, None, private_sampling, output, logging)
        for one, _, _, _ in runs:
            refuse_uncounted(one, settings, private_sampling, output, compute, logging)
        results, total = sweep_privately(runs, labelled, privacy, private_sampling, settings, logging.progress)
        return Sweep(tuple(labelled), numbers, tuple(results.values()), total)

    def shares(methods: tuple[Method, ...]) -> list[tuple[Share, tuple[Method, ...]]]:
        return [
            _share(one, rows, held_out, methods, own_seeds, rounds, sampling, output, compute, logging)
            for one, rows, held_out, own_seeds in runs
        ]

    swept = _swept(labelled, numbers, shares, vectorize, logging.progress)
    optima = {
        seed: optimum
        for one, rows, _, own_seeds in runs
        if isinstance(one, Problem) and (optimum := client_optimum_of(one, rows)) is not None
        for seed in own_seeds
    }
    if not optima:
        return swept
    every = (tuple(changed(one, client_optimum=optima[one.seed]) for one in row) for row in swept.results)
    return changed(swept, results=tuple(every))


def _share(
    problem: Any,
    clients: Any,
    held_out: Any,
    methods: tuple[Method, ...],
    seeds: tuple[int, ...],
    rounds: int | None,
    sampling: Sampling | None,
    output: Output,
    compute: Compute,
    logging: Logging,
) -> tuple[Share, tuple[Method, ...]]:
    """Return the runs of these methods and seeds on one data set, and the methods with their settings filled in."""
    if isinstance(problem, Problem) and problem.is_torch:
        torch_engine = import_module(TORCH_ENGINE)
        resolved = resolve_sampling(sampling, methods[0])
        problem = torch_engine.torch_federation(problem, clients, resolved, held_out)
    if isinstance(problem, Federation):
        settings = RunSettings.from_options(rounds, None, sampling or Sampling(), output, logging)
        filled, _, _, settings, choice = resolve_for_federation(problem, methods, settings)
        return Share(request_of(problem, filled, settings, choice=choice), seeds), filled
    sampling = resolve_sampling(sampling, methods[0])
    settings = RunSettings.from_options(rounds, None, sampling, output, logging)
    filled, sampling, compute, settings, choice = resolve_options(
        problem, clients, methods, sampling, compute, settings
    )
    asked = request(problem, clients, filled, sampling, settings, compute=compute, held_out=held_out, choice=choice)
    return Share(asked, seeds), filled


def _swept(
    labelled: dict[str, Method],
    seeds: tuple[int, ...],
    shares: Callable[[tuple[Method, ...]], list[tuple[Share, tuple[Method, ...]]]],
    vectorize: bool | None,
    progress: bool | None,
) -> Sweep:
    """Run the rules that have a step size, and apart from them those that have none."""
    results: dict[str, tuple[Result, ...]] = {}
    for automatic in (False, True):
        labels = [label for label, method in labelled.items() if (method.step_size is None) == automatic]
        if not labels:
            continue
        if automatic and vectorize:
            raise ValueError("vectorize must be False or None for Automatic: each run chooses its own settings")
        made = shares(tuple(labelled[label] for label in labels))
        # What is filled in may differ from data set to data set: those of the same rules run together.
        for methods, group in groupby(made, key=lambda one: one[1]):
            found = run_all([share for share, _ in group], methods, False if automatic else vectorize, progress)
            for label, own in zip(labels, found, strict=True):
                results[label] = results.get(label, ()) + own
    return Sweep(tuple(labelled), seeds, tuple(results[label] for label in labelled))


def _labelled(methods: Any) -> dict[str, Method]:
    """The rules by their labels, checked."""
    if isinstance(methods, Method) or not isinstance(methods, Mapping | Sequence):
        raise TypeError(f"methods must be a list of rules or a dict from labels to rules, but is {methods!r}")
    methods = (
        {label: resolve_method(method) for label, method in methods.items()}
        if isinstance(methods, Mapping)
        else [resolve_method(method) for method in methods]
    )
    labelled = (
        dict(methods) if isinstance(methods, Mapping) else {_label(method, methods): method for method in methods}
    )
    if not labelled or (not isinstance(methods, Mapping) and len(labelled) < len(methods)):
        raise ValueError(f"methods must hold at least one rule and no rule twice, but is {methods!r}")
    return labelled


def _numbered(seeds: Any) -> tuple[int, ...]:
    """The seeds, checked."""
    if np.ndim(seeds) == 0:
        seeds = range(checks.check_integer("seeds", seeds, minimum=1))
    numbers = tuple(checks.check_seed("seeds", seed) for seed in np.atleast_1d(seeds).tolist())
    if not numbers:
        raise ValueError("seeds must hold at least one seed, but is empty")
    return numbers


def _one_per_seed(name: str, given: Any, seeds: Sequence[int]) -> Sequence[Any]:
    """One a seed, where one is given for all or a list."""
    if not isinstance(given, Sequence):
        return [given] * len(seeds)
    if len(given) != len(seeds):
        raise ValueError(f"{name} must be one for all seeds or a list of {len(seeds)}, but is a list of {len(given)}")
    return given


def _label(method: Method, among: Sequence[Method]) -> str:
    """The rule's kind, and those of its settings in which the given rules differ."""
    varying = [
        f"{field.name}={getattr(method, field.name)!r}"
        for field in fields(method)
        if any(
            differs(getattr(other, field.name, None), getattr(method, field.name))
            for other in among
            if type(other) is type(method)
        )
    ]
    return f"{type(method).__name__}({', '.join(varying)})"
