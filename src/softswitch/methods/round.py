"""The mathematics of a round, shared by all engines: what the server keeps, and how one round changes it."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from softswitch.methods import robust
from softswitch.methods.base import Method
from softswitch.methods.compression import Compression, sending_changes
from softswitch.methods.consistency import Consistency, minimised, nothing_compared
from softswitch.methods.directions import Branches
from softswitch.methods.memory import Remembered, moved
from softswitch.methods.messages import Decision, Reports
from softswitch.methods.weighting import maximum
from softswitch.problem.domains import Domain
from softswitch.problem.parameters import Params, float_dtype
from softswitch.support.arrays import delay_until, is_large, select, update_if


class Average(NamedTuple):
    """A running mean of iterates, summed with compensation (Kahan) so that 10⁶ rounds lose no digits in float32.

    Attributes:
        total: Σ w_k.
        lost: the part of it that did not fit in its digits.
        rounds: how many.
    """

    total: Params
    lost: Params
    rounds: Int[Array, ""]

    def add(self, params: Params, joins: Bool[Array, ""]) -> Average:
        """Add w_k where ``joins``."""

        def added(so_far: Average) -> Average:
            value = jax.tree.map(lambda w, lost: w.astype(lost.dtype) - lost, params, so_far.lost)
            total = jax.tree.map(jnp.add, so_far.total, value)
            lost = jax.tree.map(lambda new, old, v: (new - old) - v, total, so_far.total, value)
            return Average(total, lost, so_far.rounds + 1)

        if is_large(self.total):
            return update_if(joins, added, self)
        new = added(self)
        return Average(
            select(joins, new.total, self.total),
            select(joins, new.lost, self.lost),
            self.rounds + joins.astype(jnp.int32),
        )

    def mean(self) -> Params:
        """Σ w_k / rounds; zeros where nothing was added."""
        count = jnp.maximum(self.rounds, 1)
        return jax.tree.map(lambda s, lost: (s - lost) / count.astype(s.dtype), self.total, self.lost)


class BestSeen(NamedTuple):
    """The iterate to answer with where there is no average: the best feasible one, before that the nearest to it.

    Attributes:
        params: the feasible iterate with the smallest reported worst-client objective; while there is none, the one
            with the smallest criterion.
        score: that objective; +∞ while there is none.
        criterion: the smallest criterion of any iterate, feasible or not; +∞ before the first.
    """

    params: Params
    score: Float[Array, ""]
    criterion: Float[Array, ""]

    def offer(
        self,
        params: Params,
        score: Float[Array, ""],
        feasible: Bool[Array, ""],
        criterion: Float[Array, ""],
        counts: Bool[Array, ""],
    ) -> BestSeen:
        """Keep ``params`` instead, where they are feasible and better, or nearer while nothing was feasible."""
        better = feasible & (score < self.score)
        nearer = counts & (criterion < self.criterion)
        takes = better | (nearer & jnp.isposinf(self.score))

        def taken(so_far: tuple[Params, Array]) -> tuple[Params, Array]:
            return params, select(better, score, so_far[1])

        if is_large(self.params):
            kept, best = update_if(takes, taken, (self.params, self.score))
        else:
            kept, best = select(takes, params, self.params), select(better, score, self.score)
        return BestSeen(kept, best, select(nearer, criterion, self.criterion))


class State(NamedTuple):
    """All that the server knows between two rounds.

    Attributes:
        params: w_k.
        optimizer: the server optimiser's state.
        method: the rule's memory.
        average: of the feasible iterates.
        best: the best feasible iterate by its reports; while there is none, the one with the smallest criterion.
        diverged_at: the round in which something was not finite; −1 while all is well.
        memory: what is remembered of every client, where the server remembers; else None.
        buffers: what goes with the parameters and no step changes, a network's running means, say; None where there is
            none, or where it is to be found anew.
        consistency: whether clients' reports agree with their directions, where the rule is robust; else None.
        directions: what the rule's way to make directions remembers, where it has one; else None.
        at_clients: what every client keeps, where the rule asks for it; else None.
        before: w_{k−1}, where reports are compared with those at the iterate before; else None.
    """

    params: Params
    optimizer: Any
    method: Any
    average: Average
    best: BestSeen
    diverged_at: Int[Array, ""]
    memory: Remembered | None = None
    buffers: Any = None
    consistency: Consistency | None = None
    directions: Branches | None = None
    at_clients: Any = None
    before: Params | None = None


def start(
    params: Params, method: Method, constraints: int, memory: Remembered | None = None, *, clients: int = 0
) -> State:
    """The state before round 0, of a run with so many clients."""
    infinite = jnp.full((), jnp.inf, float_dtype(params))
    trusting = method.robust is None
    compares = method.compares or (memory is not None and memory.forecasts is not None)
    return State(
        params=params,
        optimizer=server_optimizer(method, 0).init(params),
        method=method.begin(clients, constraints),
        average=no_average(params),
        best=BestSeen(params, infinite, infinite),
        diverged_at=jnp.int32(-1),
        memory=memory,
        consistency=None if trusting else nothing_compared(clients, constraints, float_dtype(params)),
        directions=Branches.begun(method.direction, params, method.switches),
        at_clients=None if method.at_clients is None else method.at_clients.init(params, clients, method.switches),
        before=params if compares else None,
    )


def first_to_average(rounds: int, share: float) -> int:
    """The first round that may join an average over the last share of so many rounds."""
    return rounds - math.ceil(share * rounds)


def no_average(params: Params) -> Average:
    """A mean of no iterates yet."""
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, float_dtype(leaf)), params)
    return Average(zeros, zeros, jnp.int32(0))


def server_optimizer(method: Method, k: Any) -> optax.GradientTransformationExtraArgs:
    """The rule's optimiser at round k's step size; one that wants a ``value`` is given it, the others ignore it."""
    plain = optax.with_extra_args_support(method.server_optimizer(method.step_size_at(k)))
    if isinstance(method.at_clients, Compression) and method.at_clients.changes is not None:
        return sending_changes(plain, method.at_clients.changes)
    return plain


def check_optimizer(method: Method, params: Params) -> None:
    """Raise where the rule's optimiser asks for more than a server knows. Nothing is computed."""
    made: list[Any] = []

    def update(k: Array, params: Params) -> Any:
        made.append(method.server_optimizer(method.step_size_at(k)))
        optimizer = optax.with_extra_args_support(made[0])
        return optimizer.update(params, optimizer.init(params), params, value=jnp.zeros((), float_dtype(params)))

    try:
        jax.eval_shape(update, jnp.int32(0), params)
    except (TypeError, AttributeError) as error:
        if made and not isinstance(made[0], optax.GradientTransformation):
            raise TypeError(
                f"optimizer must be a function from a step size to an optax transformation, but makes {made[0]!r}"
            ) from error
        if isinstance(error, AttributeError):
            raise
        raise ValueError(
            "optimizer must be content with a direction, the parameters and a value, but "
            f"{method.server_optimizer!r} is not: {error}. A server cannot evaluate functions for it, as a line search "
            "would need"
        ) from error


def descended_on(method: Method, reports: Reports, decision: Decision) -> Float[Array, ""]:
    """The value of what a round descends on, by its reports: Σ r_i (a·f_i + <b_i, g_i> + c·Σ max(0, g_i − ε)).

    In a constraint round of a switching rule it is measured from λ, so that 0 is where the round wants to be.
    """
    each = minimised(reports, decision.local_loss)
    value = jnp.dot(decision.weights, each.astype(decision.weights.dtype))
    return value - jnp.where(decision.feasible, 0, method.switch_at) if method.switches else value


def surviving_weights(
    method: Method, rule_state: Any, reports: Reports, decision: Decision, survived: Bool[Array, " m"]
) -> Float[Array, " m"]:
    """The server's weights once some clients that reported never returned their update.

    The rule weighs the others again by their reports, as the round was decided. To renormalise the weights that they
    had would not do: where the worst client is lost and α is large, all others had weight 0.
    """
    left = reports._replace(mask=reports.mask & survived, bit=decision.feasible)
    return robust.decide(method, rule_state, left)[0].weights


def advance(
    state: State,
    method: Method,
    domain: Domain | None,
    k: Int[Array, ""],
    averaging_from: Int[Array, ""] | int,
    reports: Reports,
    decision: Decision,
    rule_state: Any,
    direction: Params,
    memory: Remembered | None = None,
    at_clients: Any = None,
) -> State:
    """Apply a round: w_{k+1} = Π_Θ(w_k − η Σ r_i u_i), and account for w_k.

    A void round (nobody reported an objective, or nobody a constraint) changes nothing. A round in which a report or
    the step is not finite marks the run as diverged; from then on nothing changes, and the last finite iterate stays.

    Args:
        state: before the round.
        method: the method.
        domain: Θ, or None.
        k: the round.
        averaging_from: rounds before this one do not join the average.
        reports: what the clients reported.
        decision: what the rule made of it.
        rule_state: the rule's memory after it.
        direction: Σ r_i u_i.
        memory: what is remembered after this round's reports, where the server remembers. Rounds do not join the
            average before every client was heard, or all but b where b may lie.
        at_clients: what every client keeps after the round, where the rule asks for it.
    """
    directions = state.directions
    if method.direction is not None and directions is not None:
        own = directions.of(decision.feasible)
        direction, own = method.direction.made(own, state.params, direction)
        directions = directions.after(decision.feasible, own)
    value = descended_on(method, reports, decision)
    updates, optimizer_state = server_optimizer(method, k).update(direction, state.optimizer, state.params, value=value)
    params = optax.apply_updates(state.params, updates)
    if domain is not None:
        params = domain.project(params)

    fine = sound(reports, decision)
    finite = jax.tree.leaves((params, optimizer_state, directions, at_clients))
    stepped = jnp.stack([jnp.isfinite(leaf).all() for leaf in finite]).all()
    running = (state.diverged_at < 0) & ~reports.void
    counts = running & fine
    joins = counts & decision.feasible
    went = None
    if memory is not None:
        joins &= memory.unheard.sum() <= (0 if method.robust is None else method.robust)
        went = moved(memory, state.params, params)
    average = state.average.add(state.params, joins & (k >= averaging_from))
    worst = maximum(reports.objective, reports.mask)
    best = state.best.offer(state.params, worst, joins, decision.criterion, counts)
    read = (average.rounds, best.score, () if went is None else went.travelled)
    moves = delay_until(counts & stepped, read, state.params)
    void_at_clients = state.at_clients
    if method.at_clients is not None and at_clients is not None:
        void_at_clients = method.at_clients.after_void(state.at_clients, at_clients)
    params, optimizer_state = select(moves, (params, optimizer_state), (state.params, state.optimizer))
    return State(
        params=params,
        optimizer=optimizer_state,
        method=select(moves, rule_state, state.method),
        average=average,
        best=best,
        diverged_at=jnp.where(running & ~moves, k, state.diverged_at),
        memory=None if went is None else select(moves, went, state.memory),
        buffers=state.buffers,
        consistency=state.consistency,
        directions=select(moves, directions, state.directions),
        at_clients=select(moves, at_clients, void_at_clients),
        before=None if state.before is None else select(moves, state.params, state.before),
    )


def healthy(reports: Reports) -> Bool[Array, " m"]:
    """Whose reports are finite, or −∞ for what a client does not have; one that did not report counts as healthy."""
    objective, constraint = (jnp.isfinite(v) | jnp.isneginf(v) for v in (reports.objective, reports.constraint))
    return ~reports.mask | (objective & constraint.all(axis=1))


def sound(reports: Reports, decision: Decision) -> Bool[Array, ""]:
    """Whether a round may count: every report is finite, and so is the criterion made of them."""
    return healthy(reports).all() & jnp.isfinite(decision.criterion)
