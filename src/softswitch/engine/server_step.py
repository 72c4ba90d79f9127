"""Algorithm 1: one round of the server and its clients, for every engine.

    report:  sampled clients report f_i(w_k) and g_i(w_k)
    decide:  G_k <= λ ?  weights and local losses from the objective : from the constraint
    update:  the same clients return directions u_i after local steps
    apply:   w_{k+1} = Π_Θ(w_k − η Σ r_i u_i);  feasible iterates join the average

``run_round`` is a whole round of clients in this process. Over a network the two exchanges are messages, and the
server calls ``decide`` and ``apply``. Optional parts (``methods.parts.Part``) change a round by their hooks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from softswitch.methods.base import Method
from softswitch.methods.client_selection import clients_in_turn, represented_clients, select_clients, update_turns
from softswitch.methods.client_state import RoundAtClients
from softswitch.methods.compression import CompressedSteps, Compression, check_compression, message_sizes
from softswitch.methods.compressors import split_byte_counts
from softswitch.methods.memory import Memory, Places
from softswitch.methods.messages import Decision, Reports
from softswitch.methods.parts import Decide, Part, PreviousIterate, Round, Update
from softswitch.methods.robust import combine, trim
from softswitch.methods.state import State, active_parts, server_optimizer
from softswitch.methods.weighting import maximum
from softswitch.oracles.base import Oracle
from softswitch.oracles.evaluation import ClientSummary, summarize_clients
from softswitch.problem.domains import Domain
from softswitch.results.history import ClientHistory, Record
from softswitch.support.arrays import select, take_clients, weighted_sum

METHOD_STREAM = 3  # number folded into a round's random key for a method that draws clients
UPDATE_STREAM = 2  # number folded into a round's random key for rows of clients of the second exchange only


class Evaluated(NamedTuple):
    """The evaluation of w_k on all data; NaN in rounds without one."""

    full: ClientSummary  # worst and mean client on all training data
    held_out: ClientSummary | None = None  # worst and mean client on held-out data; None if there is none


class Cost(NamedTuple):
    """Numbers of rows of a round, for its ``Record``."""

    rows: Any = None  # rows of the participants; None if the cost of a round does not depend on them
    values: Any = None  # rows on which f and g were evaluated; None for ``Oracle.cost``


class Setup(NamedTuple):
    """Clients, method and options of a run, as the argument of compiled programs. Their numbers are traced."""

    oracle: Oracle | None  # the clients; None if they are called outside of the program
    method: Method
    domain: Domain | None = None  # set Θ onto which steps are projected; None for no projection
    memory: Memory | None = None  # settings of the server's memory of reports; None for no memory
    weight_cap: Any = None  # largest weight of a client, in (0, 1]; None for no cap

    @property
    def parts(self) -> tuple[Part, ...]:
        """The optional parts of a round that the settings use."""
        pool = None if self.oracle is None else self.oracle.pool
        return active_parts(self.method, self.memory, pool, self.weight_cap)

    @property
    def places(self) -> Places | None:
        """How a server with a memory selects the participants; None without a memory."""
        return None if self.memory is None or self.oracle is None else self.memory.places(self.oracle.participants)


def run_round(
    setup: Setup,
    averaging_from: Any,
    record_clients: bool,
    evaluate: Callable[[Any, Array, Reports], Evaluated],
    key: Array,
    state: State,
    k: Int[Array, ""],
    draws: Any,
) -> tuple[State, Record]:
    """Run round k of compiled clients: report, decide, update, apply. Return the next state and the round's record.

    ``evaluate`` is called with w_k, k and the reports, and evaluates all data in some rounds. ``key`` is the run's.
    """
    oracle: Any = setup.oracle
    reports, kept = oracle.report(state.params, draws)
    reports = complete_reports(setup, key, state, k, draws, reports)
    played = decide(setup, state, k, draws.clients, reports)
    update = collect_updates(oracle, setup.method, state, key, draws, kept, played)
    evaluated = evaluate(state.params, k, reports)
    cost = count_rows(oracle, draws, reports)
    return apply(setup, averaging_from, state, played, update, evaluated, cost, record_clients)


def decide(setup: Setup, state: State, k: Int[Array, ""], clients: Int[Array, " m"], reports: Reports) -> Round:
    """Decide by the reports of round k between objective and constraint, and weight the participants ``clients``."""
    method, parts = setup.method, setup.parts
    choose: Decide = method.decide
    trusted, heard = reports, dict(state.parts)
    for part in parts:
        if part.name in heard:
            heard[part.name] = part.hear(heard[part.name], k, clients, reports)
        trusted = part.trust(trusted)
        choose = part.wrap(choose, heard.get(part.name), clients)
    decision, method_state = choose(state.method, reports)
    return Round(k, clients, reports, trusted, decision, method_state, heard)


def apply(
    setup: Setup,
    averaging_from: Int[Array, ""] | int,
    state: State,
    played: Round,
    update: Update,
    evaluated: Evaluated,
    cost: Cost,
    record_clients: bool,
) -> tuple[State, Record]:
    """Take the server's step w_{k+1} = Π_Θ(w_k − η Σ r_i u_i), and return the next state and the round's record.

    A void round, without any objective or without any constraint, changes nothing. A round with a value that is not
    finite marks the run as diverged; the last finite iterate stays.
    """
    method, k = setup.method, played.k
    parts = [part for part in setup.parts if part.name in state.parts]
    reports, decision, proposed = played.trusted, played.decision, dict(played.parts)
    direction = update.direction
    for part in parts:
        direction, proposed[part.name] = part.redirect(proposed[part.name], decision, direction, update)
    value = local_value(method, reports, decision)
    steps, optimizer = server_optimizer(method, k).update(direction, state.optimizer, state.params, value=value)
    params = optax.apply_updates(state.params, steps)
    if setup.domain is not None:
        params = setup.domain.project(params)

    must_be_finite = [proposed[part.name] for part in parts if part.must_be_finite]
    leaves = jax.tree.leaves((params, optimizer, must_be_finite))
    is_finite = jnp.stack([jnp.isfinite(leaf).all() for leaf in leaves]).all()
    running = (state.diverged_at < 0) & ~reports.void
    counts = running & is_sound(reports, decision)
    joins = counts & decision.feasible
    for part in parts:
        joins &= part.may_average(proposed[part.name])
        proposed[part.name] = part.move(proposed[part.name], state.params, params)
    average = state.average.add(state.params, joins & (k >= averaging_from))
    best = state.best.offer(state.params, maximum(reports.objective, reports.mask), joins, decision.criterion, counts)
    taken = counts & is_finite
    settled = {part.name: part.settle(taken, proposed[part.name], state.parts[part.name]) for part in parts}
    params, optimizer = select(taken, (params, optimizer), (state.params, state.optimizer))
    for part in parts:
        settled[part.name] = part.compare(settled[part.name], played, update, state.params, params)
    after = State(
        params=params,
        optimizer=optimizer,
        method=select(taken, played.method_state, state.method),
        average=average,
        best=best,
        diverged_at=jnp.where(running & ~taken, k, state.diverged_at),
        parts=state.parts | settled,
    )
    record = record_round(parts, played, update, evaluated, cost, record_clients)
    return after, record


def record_round(
    parts: Sequence[Part], played: Round, update: Update, evaluated: Evaluated, cost: Cost, record_clients: bool
) -> Record:
    """Return the record of a round; ``parts`` add their entries."""
    trusted, reports, decision, clients = played.trusted, played.reports, played.decision, played.clients
    recorded = ClientHistory(clients, reports.objective, reports.constraint, reports.metrics)
    more: dict[str, Any] = {}
    for part in parts:
        more |= part.record(played.parts[part.name], played.k)
    return Record(
        objective=maximum(trusted.objective, trusted.mask),
        constraint=maximum(trusted.constraint, trusted.mask[:, None]),
        criterion=decision.criterion,
        feasible=decision.feasible & is_sound(trusted, decision),
        worst_client=clients[jnp.argmax(jnp.where(trusted.mask, trusted.objective, -jnp.inf))],
        full=evaluated.full,
        held_out=evaluated.held_out,
        absent=(trusted.mask & ~(trusted.has_objective & trusted.has_constraint.all(axis=1))).sum(),
        rows=cost.rows,
        values=cost.values,
        clients=recorded if record_clients else None,
        traffic=update.traffic,
        **more,
    )


def select_by_memory(
    state: State, key: Array, k: Int[Array, ""], places: Places, rest: Any
) -> tuple[State, Int[Array, " m"]]:
    """Return the state with its memory advanced to round k, and the indices of the participants that it selects."""
    memory = update_turns(state.parts["memory"], key, k, places)
    clients = select_clients(memory, clients_in_turn(memory.order, k, places), places, k, rest)
    return state.with_part("memory", memory), clients


def complete_reports(
    setup: Setup, key: Array, state: State, k: Int[Array, ""], draws: Any, reports: Reports
) -> Reports:
    """Return the reports with ``stand_for``, ``clients``, ``earlier`` and ``key``, if method or memory need them."""
    method, oracle = setup.method, setup.oracle
    assert oracle is not None
    if (places := setup.places) is not None:
        everyone = state.parts["memory"].objective.shape[0]
        reports = reports._replace(stand_for=represented_clients(places, everyone, reports.objective.dtype))
    if method.knows_clients:
        reports = reports._replace(clients=draws.clients)
    if PreviousIterate.name in state.parts:
        earlier = oracle.report(state.parts[PreviousIterate.name], draws)[0]
        reports = reports._replace(earlier=(earlier.objective, earlier.constraint, earlier.sums))
    if method.draws_clients:
        reports = reports._replace(key=jax.random.fold_in(jax.random.fold_in(key, k), METHOD_STREAM))
    return reports


def count_rows(oracle: Any, draws: Any, reports: Reports) -> Cost:
    """Return the numbers of rows of a round; reports at two iterates count twice."""
    rows = oracle.count_rows(draws)
    return Cost(rows, None if reports.earlier is None else 2 * jnp.asarray(oracle.cost(rows)[0], jnp.int32))


def local_value(method: Method, reports: Reports, decision: Decision) -> Float[Array, ""]:
    """Return the value of the function on which a round descends: Σ r_i (a·f_i + <b_i, g_i> + c·Σ max(0, g_i − ε)).

    λ is subtracted in an infeasible round of a switching method.
    """
    values = reports.local_losses(decision.local_loss)
    value = jnp.dot(decision.weights, values.astype(decision.weights.dtype))
    return value - jnp.where(decision.feasible, 0, method.switch_at) if method.switches else value


def surviving_weights(
    setup: Setup, state: State, played: Round, reports: Reports, survived: Bool[Array, " m"]
) -> Float[Array, " m"]:
    """Return the weights of the participants after some that reported did not return an update.

    The method weights the others again by their reports, with the same switch bit. Their old weights cannot be
    renormalised: if the worst client is lost and α is large, all others had weight 0.
    """
    remaining = reports._replace(mask=reports.mask & survived, bit=played.decision.feasible)
    return decide(setup._replace(memory=None), state, played.k, played.clients, remaining).decision.weights


@partial(jax.jit, inline=True)
def summarize(method: Method, objective: Float[Array, " n"], constraint: Float[Array, "n c"]) -> ClientSummary:
    """Return the worst and the mean client's values; trimmed if the method is robust."""
    if method.robust is not None:
        everyone = Reports(objective, constraint, None, jnp.ones(objective.shape, bool))
        objective, constraint = trim(everyone, method.robust)[:2]
    return summarize_clients(objective, constraint)


def evaluate_all(oracle: Any, method: Method, params: Any, reports: Any = None) -> Evaluated:
    """Summarise the clients at ``params`` on all training and held-out data; reports on all data are reused."""
    held_out = oracle.evaluate_held_out(params)
    is_reported = reports is not None and oracle.reports_full_data
    full = (reports.objective, reports.constraint) if is_reported else oracle.evaluate(params)
    return Evaluated(summarize(method, *full), None if held_out is None else summarize(method, *held_out))


def is_healthy(reports: Reports) -> Bool[Array, " m"]:
    """Return whether each participant's values are finite, or −∞ for a missing value; True if it did not report."""
    objective, constraint = (jnp.isfinite(v) | jnp.isneginf(v) for v in (reports.objective, reports.constraint))
    return ~reports.mask | (objective & constraint.all(axis=1))


def is_sound(reports: Reports, decision: Decision) -> Bool[Array, ""]:
    """Return whether all reports are healthy and the criterion is finite."""
    return is_healthy(reports).all() & jnp.isfinite(decision.criterion)


def collect_updates(
    oracle: Oracle, method: Method, state: State, key: Array, draws: Any, kept: Any, played: Round
) -> Update:
    """Run the second exchange: return Σ r_i u_i, or the method's combination of the directions u_i."""
    decision, clients, k = played.decision, played.clients, played.k
    if decision.clients is not None:
        clients = decision.clients
        randomness = oracle.draw_randomness(jax.random.fold_in(jax.random.fold_in(key, k), UPDATE_STREAM))
        draws = oracle.draw_for(clients, randomness)
    step_size = method.local_step_size_at(k, oracle.local_steps)
    arguments = (draws, kept, decision, method.switches, step_size if oracle.is_compiled else float(step_size))
    if method.at_clients is not None:
        return _update_client_states(oracle, method, state, clients, arguments, played)
    if method.robust is not None:
        directions = oracle.directions(state.params, *arguments)
        return Update(combine(directions, decision.weights), directions)
    if method.sees_each:
        directions = oracle.directions(state.params, *arguments)
        return Update(method.combine(k, played.trusted, decision, directions))
    return Update(oracle.direction(state.params, *arguments))


def _update_client_states(
    oracle: Oracle, method: Method, state: State, clients: Array, arguments: tuple[Any, ...], played: Round
) -> Update:
    way, (draws, kept, decision, switches, step_size) = method.at_clients, arguments
    assert way is not None
    changes = state.optimizer.changes if isinstance(state.optimizer, CompressedSteps) else 0
    server_step = method.step_size_at(played.k)
    at_clients = RoundAtClients(
        state.params, decision.feasible, decision.weights, oracle.local_steps, step_size, server_step, changes
    )
    every = state.parts["at_clients"]
    before, traffic = take_clients(every, clients), None

    def put(after: Any) -> Any:
        return jax.tree.map(lambda old, new: old.at[clients].set(new.astype(old.dtype)), every, after)

    if isinstance(way, Compression):
        up, down = message_sizes(way, state.params, before, changes, clients.shape[0])
        up = jnp.where(played.reports.void, 0, up)
        traffic = jnp.stack([jnp.stack(split_byte_counts(each)) for each in (up, down)])
        if way.up is None:  # bit for bit as without compression
            direction = oracle.direction(state.params, *arguments)
            return Update(direction, at_clients=put(way.after(before, at_clients, None, direction)[1]), traffic=traffic)
    shift = way.shift(before, at_clients)
    shifted = decision._replace(local_loss=decision.local_loss._replace(linear=shift, pull=way.pull))
    directions = oracle.directions(state.params, draws, kept, shifted, switches, step_size)
    sent, after = way.after(before, at_clients, shift, directions)
    return Update(weighted_sum(sent, decision.weights), at_clients=put(after), traffic=traffic)


def check_exchanges(method: Method, oracle: Oracle, *, memory: Memory | None, domain: Domain | None = None) -> None:
    """Raise ValueError if the method needs what the oracle does not support, or if options are incompatible."""
    if method.at_clients is not None:
        check_compression(method.at_clients, domain, method.robust)
    name, kind = type(method).__name__, type(oracle).__name__
    if method.needs_derivatives:
        raise ValueError(f"method must not be {name} here: it needs second derivatives, which only solve() provides")
    needs = {"robust": method.robust, "at_clients": method.at_clients, "a combination of its own": method.sees_each}
    several = [need for need, given in needs.items() if given is not None and given is not False]
    if len(several) > 1:
        raise ValueError(f"{' and '.join(several)} cannot be combined, but {name} has both")
    if method.at_clients is not None and not oracle.can_repeat_updates:
        raise ValueError(f"{name} with at_clients needs clients with a state, but {kind} has none")
    if (method.draws_clients or method.compares) and not oracle.can_repeat_updates:
        raise ValueError(f"{name} needs reports or clients that {kind} does not support")
    if (method.draws_clients or method.compares) and memory is not None:
        raise ValueError(f"memory must be None with {name}, which has a state of each client, but is {memory}")
    if memory is not None and memory.corrected and not oracle.can_repeat_reports:
        raise ValueError(
            f"memory must not be corrected with {kind}, whose clients cannot report at two iterates on the same data, "
            f"but is {memory}; use Memory(smoothing=...)"
        )
