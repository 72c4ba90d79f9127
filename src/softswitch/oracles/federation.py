"""Federation: clients with initial parameters, as solvers take them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax

from softswitch.data.client_data import ClientData
from softswitch.data.sampling import Batching, make_batching
from softswitch.oracles.base import Oracle
from softswitch.oracles.evaluation import plan_evaluation, slice_size
from softswitch.oracles.gradient import GradientOracle
from softswitch.oracles.losses import Losses
from softswitch.oracles.options import Compute, Sampling
from softswitch.problem.domains import Domain, check_domain
from softswitch.problem.parameters import Params, check_start, float_dtype
from softswitch.problem.problem import Problem
from softswitch.support import checks
from softswitch.support.row_blocks import estimate_activation_bytes


@dataclass(frozen=True, eq=False)
class Federation:
    """Clients of any kind with initial parameters, for ``solve`` and ``sweep``.

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
        object.__setattr__(self, "start", check_start("start", self.start))
        if self.domain is not None:
            check_domain(self.domain, self.start)
        object.__setattr__(self, "names", tuple(self.names))
        n = self.oracle.client_count
        if len(self.names) != n:
            raise ValueError(f"names must have one label for each of {n} clients, but has {len(self.names)}")


def make_gradient_oracle(
    problem: Problem,
    clients: ClientData,
    sampling: Sampling,
    compute: Compute | None = None,
    held_out: ClientData | None = None,
) -> GradientOracle:
    """Check a problem and its clients, and return their oracle."""
    compute = compute or Compute()
    checks.check_instance("problem", problem, Problem)
    checks.check_instance("clients", clients, ClientData)
    dtype, losses = float_dtype(problem.start), Losses.of(problem)
    report, update = _make_batchings(sampling, clients, sampling.replace)
    traced = problem.trace(clients.batch_shapes(report.width, dtype))
    ignoring = traced.ignore_weight
    if ignoring and sampling.replace is None and not (report.equal and update.equal):
        report, update = _make_batchings(sampling, clients, True)  # with replacement, all drawn rows weigh the same
    if ignoring and not (report.equal and update.equal):
        reason = "clients have different sizes and batch_size=None pads the smaller ones with rows of weight 0"
        if len(clients.strata) > 1:
            reason = "strata are drawn in other proportions than the client's own"
        raise ValueError(
            f"{' and '.join(ignoring)} must read batch['weight'], because {reason}; write means as "
            "jnp.average(loss, weights=batch['weight'])"
        )
    participants, together = sampling.participants(len(clients)), compute.client_batch_size
    if together is None:
        # Memory of a client: its batch; three more times that, or a network's activations if they are larger; and for
        # E > 1 its iterate, gradient and their sum.
        iterate = sum(leaf.nbytes for leaf in jax.tree.leaves(problem.start)) if sampling.local_steps > 1 else 0
        width = max(report.width, update.width)
        activations = estimate_activation_bytes(
            lambda batch: losses.objective(problem.start, batch) + losses.constraints(problem.start, batch),
            clients.batch_shapes(width, dtype),
        )
        batch = width * clients.rows.row_bytes
        together = slice_size(participants, batch + max(3 * batch, activations) + 3 * iterate)
    if held_out is not None:
        checks.check_instance("held_out", held_out, ClientData)
        check_columns(held_out, clients)
    return GradientOracle(
        rows=clients.rows,
        evaluation_plan=plan_evaluation(clients, ignoring),
        losses=losses,
        constraints=traced.constraints,
        participants=participants,
        local_steps=sampling.local_steps,
        report_batching=report,
        update_batching=update,
        slice_size=together,
        held_out=None if held_out is None else (plan_evaluation(held_out, ignoring), held_out.rows),
        by_size=compute.group_by_size and not (losses.is_random or losses.has_pooled_constraint or ignoring),
        compute_dtype=compute.dtype,
    )


def make_federation(
    problem: Problem, clients: ClientData, sampling: Sampling | None = None, compute: Compute | None = None
) -> Federation:
    """Return a problem and its clients as ``solve`` combines them, for functions that take a federation.

    Args:
        problem: Objective, constraint, start and domain.
        clients: The clients' rows.
        sampling: Which clients take part in a round, and which rows they use. Default: all.
        compute: How they compute.
    """
    oracle = make_gradient_oracle(problem, clients, sampling or Sampling(), compute)
    return Federation(oracle, problem.start, clients.names, problem.domain)


def _make_batchings(sampling: Sampling, clients: ClientData, replace: bool | None) -> tuple[Batching, Batching]:
    size, report_size = sampling.batch_size, sampling.value_batch_size
    if size == "auto" or report_size == "auto":
        raise ValueError("batch_size and value_batch_size must be numbers or None here, but one is 'auto'")
    update = make_batching(size, replace, clients.stratum_sizes)
    return update if report_size == "same" else make_batching(report_size, replace, clients.stratum_sizes), update


def check_columns(held_out: ClientData, clients: ClientData) -> None:
    """Raise ValueError unless the held-out data has the columns of the clients."""
    given, expected = (
        {key: (column.shape[1:], column.dtype.name) for key, column in data.rows.columns.items()}
        for data in (held_out, clients)
    )
    if given != expected:
        raise ValueError(f"held_out must have the clients' columns {expected}, but has {given}")
