"""Clients of any kind with a start: what a run needs beside a rule and its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import jax

from softswitch.data.client_data import ClientData, Rows
from softswitch.data.sampling import Batching, batching
from softswitch.oracles.base import Oracle
from softswitch.oracles.client_batches import slice_size
from softswitch.oracles.evaluation import EvaluationPlan, plan_evaluation
from softswitch.oracles.gradient import GradientOracle
from softswitch.oracles.losses import Losses
from softswitch.problem.domains import Domain, check_domain
from softswitch.problem.parameters import Params, checked_start, float_dtype
from softswitch.problem.problem import Problem
from softswitch.support import checks
from softswitch.support.row_blocks import bytes_computed


@dataclass(frozen=True, eq=False)
class Federation:
    """Clients that answer as an ``Oracle``, for ``solve_federation`` and ``sweep_federation``.

    ``solve`` makes one of a problem and data. Make one yourself where clients are not rows and gradients: simulated
    robots with a policy, say (``softswitch_experiments.tasks.safe_rl``).

    Attributes:
        oracle: the clients.
        start: w_0, a pytree of floating arrays.
        names: the clients' labels.
        domain: Θ to project onto after every server step: ``Ball``, ``Box``, anything with a ``project``, or None.
    """

    oracle: Oracle
    start: Params
    names: tuple[Any, ...]
    domain: Domain | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.oracle, Oracle):
            raise TypeError(f"oracle must be a subclass of softswitch.oracles.base.Oracle, but is {self.oracle!r}")
        object.__setattr__(self, "start", checked_start("start", self.start))
        check_domain(self.domain, self.start)
        object.__setattr__(self, "names", tuple(self.names))
        if len(self.names) != self.oracle.client_count:
            raise ValueError(
                f"names must have one label for each of {self.oracle.client_count} clients, but has {len(self.names)}"
            )


BatchSize = int | None | Literal["auto"]
ValueBatchSize = int | None | Literal["same", "auto"]
NARROW = ("bfloat16", "float16")
"""Half as wide as float32."""


@dataclass(frozen=True, kw_only=True)
class ClientSettings:
    """How many clients take part in a round, and what each of them does. The settings are those of ``solve``.

    Attributes:
        local_steps: E, gradient steps a client takes in a round.
        participation: r = m/n in (0, 1], the share of clients drawn for each round.
        batch_size: B_g, rows a client draws for a gradient; None: all of its rows; "auto": yet to be chosen.
        value_batch_size: B_ζ, rows it draws for its report; by default as ``batch_size``.
        replace: draw rows with replacement, or without. None: with, but a client that has no more rows than a batch
            takes each of them once.
        client_batch_size: how many clients are computed side by side; None: as many as memory allows.
        by_size: compute clients of similar size together, where all take part with all of their rows in one step: less
            work where sizes differ much, and other rounding.
        compute_dtype: what clients compute in, "bfloat16" or "float16"; None: as the parameters are.
    """

    local_steps: int = 1
    participation: float = 1.0
    batch_size: BatchSize = 32
    value_batch_size: ValueBatchSize = "same"
    replace: bool | None = None
    client_batch_size: int | None = None
    by_size: bool = False
    compute_dtype: str | None = None

    def __post_init__(self) -> None:
        checks.whole_number("local_steps", self.local_steps, at_least=1)
        checks.real_number("participation", self.participation, above=0, at_most=1)
        words = {"batch_size": ("auto",), "value_batch_size": ("same", "auto"), "client_batch_size": ()}
        for name, known in words.items():
            if getattr(self, name) is not None and getattr(self, name) not in known:
                checks.whole_number(name, getattr(self, name), at_least=1)
        if self.compute_dtype is not None:
            checks.one_of("compute_dtype", self.compute_dtype, NARROW)

    @property
    def batches(self) -> Mapping[str, Any]:
        """The settings of the batches alone."""
        return {name: getattr(self, name) for name in ("batch_size", "value_batch_size", "replace")}


def count_participants(participation: float, clients: int) -> int:
    """m, how many of so many clients take part in a round: their share, and one at least."""
    return max(1, round(participation * clients))


def gradient_oracle(
    problem: Problem, clients: ClientData, how: ClientSettings, held_out: ClientData | None = None
) -> GradientOracle:
    """The clients of a problem, once everything is checked that can be checked before any work."""
    checks.expect("problem", problem, Problem)
    checks.expect("clients", clients, ClientData)
    report, update = _batchings(how, clients, how.replace)
    traced = problem.trace(clients.batch_shapes(report.width, float_dtype(problem.start)))
    if traced.ignore_weight and how.replace is None and not (report.equal and update.equal):
        report, update = _batchings(how, clients, True)  # rows that are drawn with replacement weigh the same
    _refuse_ignored_weights(traced.ignore_weight, report, update, clients)
    participants = count_participants(how.participation, len(clients))
    losses, at_once = Losses.of(problem), how.client_batch_size
    if at_once is None:
        # A batch and about three times as much for what is computed from it, or what a network's layers make of it if
        # that is more; a local iterate, its gradient and its sum, where a client has one: a single step is a gradient
        # of all clients' sum.
        iterate = sum(leaf.nbytes for leaf in jax.tree.leaves(problem.start)) if how.local_steps > 1 else 0
        widest = max(report.width, update.width)
        in_layers = bytes_computed(
            lambda batch: losses.objective(problem.start, batch) + losses.constraints(problem.start, batch),
            clients.batch_shapes(widest, float_dtype(problem.start)),
        )
        a_batch = widest * clients.rows.row_bytes
        at_once = slice_size(participants, a_batch + max(3 * a_batch, in_layers) + 3 * iterate)
    return GradientOracle(
        rows=clients.rows,
        evaluation_plan=plan_evaluation(clients, traced.ignore_weight),
        losses=losses,
        constraints=traced.constraints,
        participants=participants,
        local_steps=how.local_steps,
        report_batching=report,
        update_batching=update,
        slice_size=at_once,
        held_out=None if held_out is None else _held_out(held_out, clients, traced.ignore_weight),
        by_size=how.by_size and not (losses.random or losses.has_pooled_constraint or traced.ignore_weight),
        compute_dtype=how.compute_dtype,
        all_rows=batching(None, None, clients.stratum_sizes),
    )


def make_federation(
    problem: Problem,
    clients: ClientData,
    *,
    local_steps: int = 1,
    participation: float = 1.0,
    batch_size: int | None = None,
    value_batch_size: int | Literal["same"] | None = "same",
    replace: bool | None = None,
    client_batch_size: int | None = None,
    compute_dtype: str | None = None,
) -> Federation:
    """A problem and its clients as ``solve`` makes them, for functions that take a federation.

    Args:
        problem: what to solve.
        clients: their data.
        local_steps: E, gradient steps a client takes in a round.
        participation: the share of clients drawn for each round, in (0, 1].
        batch_size: rows a client draws for a gradient; None: all of its rows.
        value_batch_size: rows it draws for its report; "same": as many.
        replace: draw rows with replacement, or without. None: with, but a client that has no more rows than a batch
            takes each of them once.
        client_batch_size: how many clients are computed side by side; None: as many as memory allows.
        compute_dtype: what clients compute in, "bfloat16" or "float16"; None: as the parameters are.
    """
    how = ClientSettings(
        local_steps=local_steps,
        participation=participation,
        batch_size=batch_size,
        value_batch_size=value_batch_size,
        replace=replace,
        client_batch_size=client_batch_size,
        compute_dtype=compute_dtype,
    )
    oracle = gradient_oracle(problem, clients, how)
    return Federation(oracle, problem.start, clients.names, problem.domain)


def _batchings(how: ClientSettings, clients: ClientData, replace: bool | None) -> tuple[Batching, Batching]:
    """How clients draw for their reports, and for their gradients."""
    for_update, for_report = how.batch_size, how.value_batch_size
    if for_update == "auto" or for_report == "auto":
        raise ValueError("batch_size and value_batch_size must be given where nothing is chosen, but are 'auto'")
    update = batching(for_update, replace, clients.stratum_sizes)
    return update if for_report == "same" else batching(for_report, replace, clients.stratum_sizes), update


def _held_out(held_out: Any, clients: ClientData, ignoring: tuple[str, ...]) -> tuple[Rows, EvaluationPlan]:
    """The held-out rows and how to go through them; they must have the columns of the training rows."""
    checks.expect("held_out", held_out, ClientData)
    columns, wanted = (
        {key: (column.shape[1:], column.dtype.name) for key, column in data.rows.columns.items()}
        for data in (held_out, clients)
    )
    if columns != wanted:
        raise ValueError(f"held_out must have the clients' columns {wanted}, but has {columns}")
    return held_out.rows, plan_evaluation(held_out, ignoring)


def _refuse_ignored_weights(ignoring: tuple[str, ...], report: Batching, update: Batching, clients: ClientData) -> None:
    if not ignoring or (report.equal and update.equal):
        return
    why = (
        "strata are drawn in other proportions than the client's own"
        if len(clients.strata) > 1
        else "clients have different sizes and batch_size=None pads the smaller ones with rows of weight 0"
    )
    raise ValueError(
        f"{' and '.join(ignoring)} must read batch['weight'], because {why}; write means as "
        "jnp.average(loss, weights=batch['weight'])"
    )
