"""Runs that keep clients' rows private: what is chosen without a look at them, what is refused, and what was spent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from softswitch.clients.client_data import ClientData
from softswitch.clients.federation import Federation
from softswitch.clients.losses import Losses
from softswitch.clients.private.privacy_account import PrivacyAccount
from softswitch.clients.private.private_draws import capacity_for
from softswitch.clients.private.private_oracle import PrivateOracle, with_secret
from softswitch.clients.private.record_privacy import RecordPrivacy
from softswitch.clients.private.releases import TOO_FEW, Drawing, NoiseLevels, Releases, rows_taken
from softswitch.clients.private.tells_with_noise import NoiseDeviations, TellsWithNoise
from softswitch.clients.slices import slice_size
from softswitch.clients.taking_part import TakingPart, participants_of
from softswitch.engines.loop import run
from softswitch.engines.private.private_choice import private_rule, private_settings
from softswitch.engines.private.private_findings import by_ranges, with_findings
from softswitch.engines.private.private_refusals import batches_given, refuse_looks
from softswitch.engines.request import Request, RunSettings, request_of
from softswitch.guarantees.privacy.accountant import epsilon_of, levels_for, rounds_within
from softswitch.guarantees.privacy.row_means import concerned_rows
from softswitch.guarantees.privacy.spending import spent_by_rounds, with_spending
from softswitch.method.rules import Rule
from softswitch.problem.problem import Problem
from softswitch.results.result import Result
from softswitch.runs.checkpoints import Checkpoints
from softswitch.runs.watching import Callback, ProgressBar

FOR_JUDGING, FOR_SIZES = 0x7FFFFFFE, 0x7FFFFFFD
"""Folded into a run's key for the noise on judgings and on sizes: no round has these numbers."""


class PrivatePlan(NamedTuple):
    """What is settled before a private run.

    Attributes:
        privacy: the settings.
        drawings: how each client draws rows.
        levels: how much noise there is.
        settings: of the run, with as many rounds as the budget allows,
        asked_for: of so many.
    """

    privacy: RecordPrivacy
    drawings: tuple[Drawing, ...]
    levels: NoiseLevels
    settings: RunSettings
    asked_for: int


def solve_privately(
    problem: Problem,
    clients: ClientData,
    rule: Rule,
    privacy: RecordPrivacy,
    how: TakingPart,
    told: Mapping[str, Any],
    seed: int,
    callbacks: Sequence[Callback],
    progress: bool | None,
    checkpoints: Checkpoints | None = None,
    secret: Sequence[int] = (),
) -> tuple[Result, PrivatePlan]:
    """Solve with clients whose rows stay private; and what was settled before the run.

    Args:
        problem: what to solve; objective and constraints are means over rows.
        clients: whose rows.
        rule: the method.
        privacy: how rows are kept private.
        how: how clients take part, as far as it is told.
        told: the settings of the run, as far as they are told.
        seed: of all random choices.
        callbacks: called after every chunk of rounds.
        progress: whether to show a progress bar.
        checkpoints: where the run is kept. The same noise comes of the same seed, so that rounds that are played again
            after a kill tell nothing more; an answer is judged at the end only.
        secret: words of 32 bits that rows and noise are drawn by beside the seed, for models that leave the house.
    """
    federation, plan = _settled(problem, clients, privacy, how, told, seed, secret)
    charged = run_planned(federation, rule, plan, seed, callbacks, progress, checkpoints)
    return by_ranges(problem, privacy, charged), plan


def refuse_private(
    problem: Problem,
    clients: ClientData,
    rule: Rule,
    privacy: RecordPrivacy,
    how: TakingPart,
    told: Mapping[str, Any],
) -> None:
    """Raise for whatever ``solve`` would refuse with privacy; the arguments are those of ``solve_privately``.

    Args:
        problem: what to solve.
        clients: whose rows.
        rule: the method.
        privacy: how rows are kept private.
        how: how clients take part.
        told: the settings of the run.
    """
    refuse_looks({"seconds": told.get("seconds"), **batches_given(how)})
    _asked(*_settled(problem, clients, privacy, how, told, 0), rule)


def _settled(
    problem: Problem,
    clients: ClientData,
    privacy: RecordPrivacy,
    how: TakingPart,
    told: Mapping[str, Any],
    seed: int,
    secret: Sequence[int] = (),
) -> tuple[Federation, PrivatePlan]:
    """The clients of a private run, and what is settled before it."""
    counts = concerned_rows(problem, clients)
    plan = planned(privacy, clients.sizes, private_settings(told), how.local_steps)
    oracle = private_oracle(problem, clients, plan, how, counts, seed, secret)
    return Federation(oracle, problem.start, clients.names, problem.domain), plan


def _asked(federation: Federation, plan: PrivatePlan, rule: Rule) -> tuple[Request, Rule]:
    """What is asked of the engine, and the rule with nothing left out."""
    assert isinstance(federation.oracle, TellsWithNoise)
    rule = private_rule(rule, federation.oracle, plan.settings)
    known_by = f"{plan.privacy} for {plan.asked_for} rounds"
    return request_of(federation, (rule,), plan.settings, privacy=known_by), rule


def run_planned(
    federation: Federation,
    rule: Rule,
    plan: PrivatePlan,
    seed: int,
    callbacks: Sequence[Callback],
    progress: bool | None,
    checkpoints: Checkpoints | None,
) -> Result:
    """Run what is settled, and charge it.

    Args:
        federation: private clients, and the start.
        rule: the method, as it was given.
        plan: what is settled.
        seed: of all random choices.
        callbacks: called after every chunk of rounds.
        progress: whether to show a progress bar.
        checkpoints: where the run is kept; None: nowhere.
    """
    oracle = federation.oracle
    assert isinstance(oracle, TellsWithNoise)
    asked, rule = _asked(federation, plan, rule)
    with ProgressBar(asked.rounds, progress) as bar:
        result = run(asked, rule, seed, (bar, *callbacks), checkpoints)
    return with_findings(_charged(result, oracle, plan))


def planned(privacy: RecordPrivacy, sizes: Iterable[int], settings: RunSettings, local_steps: int) -> PrivatePlan:
    """Noise for all rounds asked for, and how many of them a budget allows: each client may be asked in each.

    All clients have the same noise: that of the one whose drawing costs most.

    Args:
        privacy: the settings of privacy,
        settings: and of the run.
        sizes: how many rows each client has.
        local_steps: E.
    """
    drawings, rounds = tuple(Drawing.of(privacy, int(rows)) for rows in sizes), settings.rounds
    worst = dearest(drawings)
    levels = levels_for(privacy, Releases.planned(privacy, rounds, local_steps), worst)
    within = rounds_within(privacy, levels, worst, rounds, local_steps)
    if not within:
        raise ValueError(
            f"epsilon = {privacy.epsilon:g} does not allow a single round with noise = {levels.step:.3g}: raise the "
            "noise, or leave it out, and it is found"
        )
    return PrivatePlan(privacy, drawings, levels, replace(settings, rounds=within), rounds)


def dearest(drawings: Sequence[Drawing]) -> Drawing:
    """The drawing that costs most: that of the largest share of rows.

    Args:
        drawings: one a client.
    """
    return max(drawings, key=lambda one: one.taken / max(1, one.rows))


def private_oracle(
    problem: Problem,
    clients: ClientData,
    plan: PrivatePlan,
    how: TakingPart,
    counts: np.ndarray,
    seed: int,
    secret: Sequence[int] = (),
) -> PrivateOracle:
    """The clients of a private run.

    Args:
        problem: what to solve.
        clients: whose rows.
        plan: what is settled.
        how: how they take part.
        counts: how many rows f and each g concern at each client.
        seed: of all random choices.
        secret: words that rows and noise are drawn by beside it.
    """
    privacy, levels = plan.privacy, plan.levels
    words = jnp.asarray(secret, jnp.uint32)
    key = with_secret(jax.random.key(seed), words)
    counts = told_sizes(plan, counts, key)
    width, participants = int(clients.sizes.max()), participants_of(how.participation, len(clients))
    taken = np.array([rows_taken(privacy.rate, int(rows)) for rows in clients.sizes])
    fixed, everything = privacy.sampling == "fixed", privacy.rate == 1
    capacity = width if everything else int(taken.max()) if fixed else capacity_for(privacy.rate, width)
    parameters = sum(leaf.nbytes for leaf in jax.tree.leaves(problem.start))
    a_client = capacity * (4 * clients.rows.row_bytes) + 8 * width + 3 * parameters
    dtype = jnp.result_type(float)
    return PrivateOracle(
        rows=clients.rows,
        counts=jnp.asarray(counts, dtype),
        taken=jnp.asarray(taken, jnp.int32),
        shares=jnp.asarray(taken / clients.sizes if fixed else np.full(len(clients), privacy.rate), dtype),
        noise=NoiseDeviations(
            jnp.asarray(levels.report * privacy.clip_value, dtype),
            jnp.asarray(levels.step * privacy.clip_gradient, dtype),
            jnp.asarray(levels.judging * privacy.clip_value, dtype),
        ),
        clip_value=jnp.asarray(privacy.clip_value, dtype),
        clip_gradient=jnp.asarray(privacy.clip_gradient, dtype),
        judging_key=jax.random.fold_in(key, FOR_JUDGING),
        secret=words,
        losses=Losses.of(problem),
        constraints=counts.shape[1] - 1,
        participants=participants,
        local_steps=how.local_steps,
        sampling="all" if everything else privacy.sampling,
        rate=privacy.rate,
        width=width,
        capacity=capacity,
        slice_size=how.clients_at_once or slice_size(participants, a_client),
    )


def told_sizes(plan: PrivatePlan, counts: np.ndarray, key: Array) -> np.ndarray:
    """How many rows functions concern, as clients tell it: as it is where sizes are public, else with noise.

    Args:
        plan: what is settled.
        counts: as they are; clients × functions.
        key: the run's.
    """
    if plan.privacy.public_sizes:
        return counts
    deviation = plan.levels.sizes * np.sqrt(counts.shape[1])  # one row may concern all functions
    noised = counts + deviation * np.asarray(jax.random.normal(jax.random.fold_in(key, FOR_SIZES), counts.shape))
    return np.where(noised > TOO_FEW * deviation, noised, 0)


def _charged(result: Result, oracle: TellsWithNoise, plan: PrivatePlan) -> Result:
    """The result with what each client has spent, round by round and in all."""
    privacy, levels, steps = plan.privacy, plan.levels, oracle.local_steps
    told = result.history.per_client
    assert told is not None
    most = int(np.bincount(told.clients.ravel(), minlength=1).max())
    kinds = sorted(set(plan.drawings))
    curves = np.stack([spent_by_rounds(privacy, levels, drawing, most, steps) for drawing in kinds])
    per_client, rounds = with_spending(told, curves, np.array([kinds.index(own) for own in plan.drawings]))
    judged = not np.isnan(result.client_objective).all()  # else the run was interrupted, and may go on
    releases = [Releases.planned(privacy, int(many), steps, int(judged)) for many in rounds]
    spent = [
        epsilon_of(own, levels, drawing, privacy.delta) for own, drawing in zip(releases, plan.drawings, strict=True)
    ]
    account = PrivacyAccount(
        epsilon=tuple(spent),
        delta=privacy.delta,
        budget=privacy.epsilon,
        neighbours=privacy.neighbours,
        sampling=privacy.sampling,
        rate=privacy.rate,
        releases=tuple(releases),
        noise=levels,
        clip_value=privacy.clip_value,
        clip_gradient=privacy.clip_gradient,
        public_sizes=privacy.public_sizes,
        deviations=tuple(
            tuple(float(one) if np.isfinite(one) else None for one in own) for own in oracle.judging_deviations
        ),
    )
    noisy = account.of_values if judged else "the answer is judged once, at the end of the run: its checkpoints go on"
    status = replace(result.status, message=f"{result.status.message}; {noisy}")
    if plan.asked_for > plan.settings.rounds:
        spent_after = f"after {plan.settings.rounds} of {plan.asked_for} rounds"
        why = f"{status.message}. The budget ε = {privacy.epsilon:g} was spent {spent_after}"
        status = replace(status, message=why)
    return replace(result, status=status, history=replace(result.history, per_client=per_client), privacy=account)
