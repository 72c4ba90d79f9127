"""Federation: clients with initial parameters, as solvers take them."""

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
    """Clients of any kind with initial parameters, for ``solve_federation`` and ``sweep_federation``.

    ``solve`` makes one from a problem and data. Construct one directly if clients are not rows and gradients, such as
    simulators with a policy.

    Attributes:
        oracle: The clients.
        start: Initial parameters w_0, a pytree of floating arrays.
        names: Labels of the clients.
        domain: Set Θ onto which every server step is projected: ``Ball``, ``Box``, anything with a ``project``, or
            None.
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
COMPUTE_DTYPES = ("bfloat16", "float16")


@dataclass(frozen=True, kw_only=True)
class ClientSettings:
    """How clients are sampled and what each of them computes in a round.

    Attributes:
        local_steps: Number of gradient steps E of a client in a round.
        participation: Fraction m/n of clients sampled for each round, in (0, 1].
        batch_size: Rows B_g of a gradient batch; None for all rows; "auto" to be chosen later.
        value_batch_size: Rows B_ζ of a report batch. Default: ``batch_size``.
        replace: Whether rows are drawn with replacement. None: with replacement, but a client with no more rows than
            a batch uses each row once.
        client_batch_size: Number of clients computed together. Default: as many as memory allows.
        by_size: Compute clients of similar size together if all clients take one step on all rows. This saves work
            for clients of different sizes, and rounds differently.
        compute_dtype: Dtype of the clients' computations, "bfloat16" or "float16". Default: that of the parameters.
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
        keywords = {"batch_size": ("auto",), "value_batch_size": ("same", "auto"), "client_batch_size": ()}
        for name, accepted in keywords.items():
            if getattr(self, name) is not None and getattr(self, name) not in accepted:
                checks.whole_number(name, getattr(self, name), at_least=1)
        if self.compute_dtype is not None:
            checks.one_of("compute_dtype", self.compute_dtype, COMPUTE_DTYPES)

    @property
    def batches(self) -> Mapping[str, Any]:
        """The settings of batches only."""
        return {name: getattr(self, name) for name in ("batch_size", "value_batch_size", "replace")}


def count_participants(participation: float, clients: int) -> int:
    """Return the number of clients m in a round, at least one."""
    return max(1, round(participation * clients))


def make_gradient_oracle(
    problem: Problem, clients: ClientData, settings: ClientSettings, held_out: ClientData | None = None
) -> GradientOracle:
    """Check a problem and its clients, and return their oracle."""
    checks.expect("problem", problem, Problem)
    checks.expect("clients", clients, ClientData)
    dtype = float_dtype(problem.start)
    report, update = _make_batchings(settings, clients, settings.replace)
    traced = problem.trace(clients.batch_shapes(report.width, dtype))
    ignoring = traced.ignore_weight
    if ignoring and settings.replace is None and not (report.equal and update.equal):
        report, update = _make_batchings(settings, clients, True)  # with replacement, all drawn rows weigh the same
    if ignoring and not (report.equal and update.equal):
        reason = (
            "strata are drawn in other proportions than the client's own"
            if len(clients.strata) > 1
            else "clients have different sizes and batch_size=None pads the smaller ones with rows of weight 0"
        )
        raise ValueError(
            f"{' and '.join(ignoring)} must read batch['weight'], because {reason}; write means as "
            "jnp.average(loss, weights=batch['weight'])"
        )
    participants = count_participants(settings.participation, len(clients))
    losses, together = Losses.of(problem), settings.client_batch_size
    if together is None:
        # Memory of a client: its batch; three more times that, or a network's activations if they are larger; and for
        # E > 1 its iterate, gradient and their sum.
        iterate = sum(leaf.nbytes for leaf in jax.tree.leaves(problem.start)) if settings.local_steps > 1 else 0
        width = max(report.width, update.width)
        activations = bytes_computed(
            lambda batch: losses.objective(problem.start, batch) + losses.constraints(problem.start, batch),
            clients.batch_shapes(width, dtype),
        )
        batch = width * clients.rows.row_bytes
        together = slice_size(participants, batch + max(3 * batch, activations) + 3 * iterate)
    return GradientOracle(
        rows=clients.rows,
        evaluation_plan=plan_evaluation(clients, ignoring),
        losses=losses,
        constraints=traced.constraints,
        participants=participants,
        local_steps=settings.local_steps,
        report_batching=report,
        update_batching=update,
        slice_size=together,
        held_out=None if held_out is None else _plan_held_out(held_out, clients, ignoring),
        by_size=settings.by_size and not (losses.is_random or losses.has_pooled_constraint or ignoring),
        compute_dtype=settings.compute_dtype,
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
    """Return a problem and its clients as a federation.

    Args:
        problem: Problem to solve.
        clients: Data of the clients.
        local_steps: Number of gradient steps E of a client in a round.
        participation: Fraction of clients sampled for each round, in (0, 1].
        batch_size: Rows of a gradient batch. Default: all rows.
        value_batch_size: Rows of a report batch. Default: ``batch_size``.
        replace: Whether rows are drawn with replacement. Default: with replacement, but a client with no more rows
            than a batch uses each row once.
        client_batch_size: Number of clients computed together. Default: as many as memory allows.
        compute_dtype: Dtype of the clients' computations, "bfloat16" or "float16". Default: that of the parameters.
    """
    settings = ClientSettings(
        local_steps=local_steps,
        participation=participation,
        batch_size=batch_size,
        value_batch_size=value_batch_size,
        replace=replace,
        client_batch_size=client_batch_size,
        compute_dtype=compute_dtype,
    )
    oracle = make_gradient_oracle(problem, clients, settings)
    return Federation(oracle, problem.start, clients.names, problem.domain)


def _make_batchings(settings: ClientSettings, clients: ClientData, replace: bool | None) -> tuple[Batching, Batching]:
    batch_size, value_batch_size = settings.batch_size, settings.value_batch_size
    if batch_size == "auto" or value_batch_size == "auto":
        raise ValueError("batch_size and value_batch_size must be numbers or None here, but one is 'auto'")
    update = batching(batch_size, replace, clients.stratum_sizes)
    return update if value_batch_size == "same" else batching(value_batch_size, replace, clients.stratum_sizes), update


def _plan_held_out(held_out: Any, clients: ClientData, ignoring: tuple[str, ...]) -> tuple[Rows, EvaluationPlan]:
    checks.expect("held_out", held_out, ClientData)
    given, expected = (
        {key: (column.shape[1:], column.dtype.name) for key, column in data.rows.columns.items()}
        for data in (held_out, clients)
    )
    if given != expected:
        raise ValueError(f"held_out must have the clients' columns {expected}, but has {given}")
    return held_out.rows, plan_evaluation(held_out, ignoring)
