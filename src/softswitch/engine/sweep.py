"""sweep(): many settings and seeds, sharing compiled programs, and one table of what came out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from dataclasses import replace as changed
from itertools import groupby
from typing import Any

import numpy as np
from rich.markup import escape
from rich.table import Table

from softswitch.certification.client_optimum import make_regret_task
from softswitch.data.client_data import ClientData
from softswitch.data.streamed_data import StreamedData
from softswitch.engine.defaults import completed, completed_for
from softswitch.engine.parallel import Share, run_all
from softswitch.engine.private_sweep import TotalPrivacy, sweep_privately
from softswitch.engine.request import request, request_of
from softswitch.engine.solve import refuse_regret
from softswitch.methods.base import Method, differs
from softswitch.methods.memory import Memory
from softswitch.oracles.federation import BatchSize, ClientSettings, Federation, ValueBatchSize
from softswitch.oracles.regret import Regret, uses_regret
from softswitch.privacy.checks import batches_given, refuse_looks
from softswitch.privacy.settings import RecordPrivacy
from softswitch.problem.problem import Problem
from softswitch.results.result import Result
from softswitch.support import checks
from softswitch.support.text import as_text, mean_and_spread


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
                mean_and_spread([result.worst_objective for result in results]),
                mean_and_spread([result.worst_constraint for result in results]),
                f"{np.mean([len(result.violating) for result in results]):.1f} of {len(results[0].names)}",
                f"{np.mean([result.history.switch_share for result in results]):.0%}",
                *([] if self.privacy is None else [mean_and_spread([_epsilon(result) for result in results])]),
            )
        return as_text(table) if self.privacy is None else f"{as_text(table)}\n{self.privacy}"


def _epsilon(result: Result) -> float:
    """ε of the client that told most."""
    assert result.privacy is not None
    return result.privacy.worst_epsilon


def sweep(
    problem: Problem | Sequence[Problem],
    clients: ClientData | StreamedData | Sequence[ClientData | StreamedData],
    methods: Sequence[Method] | Mapping[str, Method],
    *,
    seeds: int | Sequence[int] = 5,
    rounds: int | None = None,
    local_steps: int = 1,
    participation: float = 1.0,
    batch_size: BatchSize = "auto",
    value_batch_size: ValueBatchSize = "auto",
    replace: bool | None = None,
    average_last: float | None = None,
    answer: str = "auto",
    eval_every: int | None = None,
    held_out: ClientData | StreamedData | Sequence[ClientData | StreamedData] | None = None,
    record_clients: bool = False,
    memory: Memory | str | None = "auto",
    client_batch_size: int | None = None,
    compute_dtype: str | None = None,
    together: bool | None = None,
    progress: bool | None = None,
    privacy: RecordPrivacy | None = None,
    regret: Regret = None,
) -> Sweep:
    """Run every rule with every seed.

    Rules of one kind that differ in numbers only (α, step sizes, tolerance) share one compiled program. All rules share
    a seed's draws, so that their results can be compared pair by pair. The other arguments are those of ``solve``.

    Args:
        problem: objective, constraint, start, perhaps a domain; or a list with one a seed, where seeds differ in their
            start.
        clients: whose data; or a list with one ``ClientData`` a seed, where seeds differ in their split as well.
        methods: a list of rules, or a dict from a label to a rule.
        seeds: how many (0, 1, 2, …), or which.
        rounds: K; left out, as in ``solve``.
        local_steps: E.
        participation: m/n.
        batch_size: B_g.
        value_batch_size: B_ζ.
        replace: draw rows with replacement.
        average_last: the last share of the rounds to average over.
        answer: which iterate is each result's ``params``: "average", "last" or "best".
        eval_every: rounds from one evaluation on all data to the next.
        held_out: rows not trained on, for ``history.held_out``; or a list with one ``ClientData`` a seed.
        record_clients: keep what every participant reported in every round.
        memory: let the server remember every client's reports.
        client_batch_size: how many clients of a run are computed side by side.
        compute_dtype: what clients compute in, as in ``solve``.
        together: compute all runs of one kind side by side as one program, which fills an accelerator; or one after
            another on every core, each exactly as ``solve`` would. By default the first on an accelerator, the second
            on a CPU: there it is faster, since side by side both branches of the switch are computed.
        progress: show a progress bar; by default on a terminal only.
        privacy: keep every single row private in each run, as in ``solve``. All runs look at the same rows: what they
            cost together is in ``Sweep.privacy``, and it is what whoever chooses among them has spent.
        regret: minimise the largest regret f_i − f_i*, as in ``solve``.
    """
    labelled, numbers = _labelled(methods), _numbered(seeds)
    how = ClientSettings(
        local_steps=local_steps,
        participation=participation,
        batch_size=batch_size,
        value_batch_size=value_batch_size,
        replace=replace,
        client_batch_size=client_batch_size,
        compute_dtype=compute_dtype,
    )
    told = {
        "rounds": rounds,
        "average_last": average_last,
        "answer": answer,
        "eval_every": eval_every,
        "record_clients": record_clients,
        "memory": memory,
    }

    data = (problem, clients, held_out)
    each: list[tuple[Any, Any, Any, tuple[int, ...]]] = [(*data, numbers)]
    if any(isinstance(given, Sequence) for given in data):
        own = map(_a_seed, ("problem", "clients", "held_out"), data, [numbers] * 3)
        each = [(*one, (seed,)) for *one, seed in zip(*own, numbers, strict=True)]

    if privacy is not None:
        refuse_looks(
            {
                "held_out": held_out,
                "compute_dtype": compute_dtype,
                "eval_every": eval_every or None,
                "together": together or None,
                "regret": regret,
                **batches_given(how),
            }
        )
        found, total = sweep_privately(each, labelled, privacy, how, told, progress)
        return Sweep(tuple(labelled), numbers, tuple(found.values()), total)
    best: dict[int, np.ndarray] = {}
    if uses_regret(regret):
        each, plain = [], each
        for one, rows, beside, own_seeds in plain:
            refuse_regret(rows)
            task = make_regret_task(one, rows, regret)
            each.append((task.problem, task.clients, task.add_optimum(beside), own_seeds))
            best |= dict.fromkeys(own_seeds, task.client_optimum)

    def shares(methods: tuple[Method, ...]) -> list[tuple[Share, tuple[Method, ...]]]:
        made = []
        for problem, clients, held_out, seeds in each:
            filled, part, settings, choice = completed(problem, clients, methods, how, told)
            asked = request(problem, clients, filled, part, settings, held_out=held_out, choice=choice)
            made.append((Share(asked, seeds), filled))
        return made

    swept = _swept(labelled, numbers, shares, together, progress)
    if not best:
        return swept
    every = (tuple(changed(one, client_optimum=best[one.seed]) for one in results) for results in swept.results)
    return changed(swept, results=tuple(every))


def sweep_federation(
    federation: Federation | Sequence[Federation],
    methods: Sequence[Method] | Mapping[str, Method],
    *,
    seeds: int | Sequence[int] = 5,
    rounds: int | None = None,
    average_last: float | None = None,
    answer: str = "auto",
    eval_every: int | None = None,
    record_clients: bool = False,
    memory: Memory | str | None = "auto",
    together: bool | None = None,
    progress: bool | None = None,
) -> Sweep:
    """As ``sweep``, where the clients are given as an oracle: one federation for all seeds, or a list with one a seed.

    The other arguments are those of ``sweep``.

    Args:
        federation: an oracle with the parameters to start from; or one for each seed.
        methods: the methods to compare, in a list or by names of your own.
        seeds: how many, from 0 on, or which.
        rounds: K of every run.
        average_last: average over the feasible rounds of this last share of the rounds only, in (0, 1].
        answer: which iterate is the answer: "average", "last", "best", or "auto".
        eval_every: rounds from one evaluation at all clients to the next; 0: never.
        record_clients: keep what every participant reported in every round.
        memory: whether the server remembers its clients' reports, as for ``solve``.
        together: compute all runs of one kind side by side as one program; by default on accelerators only.
        progress: show a progress bar; by default on a terminal only.
    """
    labelled, numbers = _labelled(methods), _numbered(seeds)
    told = {
        "rounds": rounds,
        "average_last": average_last,
        "answer": answer,
        "eval_every": eval_every,
        "record_clients": record_clients,
        "memory": memory,
    }
    each: list[tuple[Any, tuple[int, ...]]] = [(federation, numbers)]
    if isinstance(federation, Sequence):
        each = [(one, (s,)) for one, s in zip(_a_seed("federation", federation, numbers), numbers, strict=True)]

    def shares(methods: tuple[Method, ...]) -> list[tuple[Share, tuple[Method, ...]]]:
        made = []
        for one, seeds in each:
            filled, _, settings, choice = completed_for(one, methods, told)
            made.append((Share(request_of(one, filled, settings, choice=choice), seeds), filled))
        return made

    return _swept(labelled, numbers, shares, together, progress)


def _swept(
    labelled: dict[str, Method],
    seeds: tuple[int, ...],
    shares: Callable[[tuple[Method, ...]], list[tuple[Share, tuple[Method, ...]]]],
    together: bool | None,
    progress: bool | None,
) -> Sweep:
    """Run the rules that have a step size, and apart from them those that have none."""
    results: dict[str, tuple[Result, ...]] = {}
    for chooses in (False, True):
        labels = [label for label, method in labelled.items() if (method.step_size is None) == chooses]
        if not labels:
            continue
        if chooses and together:
            raise ValueError("together must be False or None where a rule has no step_size: it is chosen run by run")
        made = shares(tuple(labelled[label] for label in labels))
        # What is filled in may differ from data set to data set: those of the same rules run together.
        for methods, group in groupby(made, key=lambda one: one[1]):
            found = run_all([share for share, _ in group], methods, False if chooses else together, progress)
            for label, own in zip(labels, found, strict=True):
                results[label] = results.get(label, ()) + own
    return Sweep(tuple(labelled), seeds, tuple(results[label] for label in labelled))


def _labelled(methods: Any) -> dict[str, Method]:
    """The rules by their labels, checked."""
    if isinstance(methods, Method) or not isinstance(methods, Mapping | Sequence):
        raise TypeError(f"methods must be a list of rules or a dict from labels to rules, but is {methods!r}")
    for method in methods.values() if isinstance(methods, Mapping) else methods:
        checks.expect("method", method, Method)
    labelled = (
        dict(methods) if isinstance(methods, Mapping) else {_label(method, methods): method for method in methods}
    )
    if not labelled or (not isinstance(methods, Mapping) and len(labelled) < len(methods)):
        raise ValueError(f"methods must hold at least one rule and no rule twice, but is {methods!r}")
    return labelled


def _numbered(seeds: Any) -> tuple[int, ...]:
    """The seeds, checked."""
    if np.ndim(seeds) == 0:
        seeds = range(checks.whole_number("seeds", seeds, at_least=1))
    numbers = tuple(checks.seed("seeds", seed) for seed in np.atleast_1d(seeds).tolist())
    if not numbers:
        raise ValueError("seeds must hold at least one seed, but is empty")
    return numbers


def _a_seed(name: str, given: Any, seeds: Sequence[int]) -> Sequence[Any]:
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
