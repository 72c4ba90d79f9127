"""Runs that keep clients' rows private: what is chosen without a look at them, what is refused, and what was spent."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from softswitch.certification.private import count_applicable_rows
from softswitch.data.client_data import ClientData
from softswitch.engine.auto_tuning import SMOOTHING
from softswitch.engine.defaults import default_alpha
from softswitch.engine.loop import run
from softswitch.engine.request import Request, RunSettings, request_of
from softswitch.methods.base import Method
from softswitch.methods.memory import Memory
from softswitch.methods.schedules import FallingStep
from softswitch.methods.softmax_sgm import SoftmaxSGM
from softswitch.oracles.evaluation import slice_size
from softswitch.oracles.federation import Federation
from softswitch.oracles.losses import Losses
from softswitch.oracles.options import Logging, Sampling
from softswitch.privacy.accounting import PrivacyAccount, calibrate_noise, compute_epsilon, count_affordable_rounds
from softswitch.privacy.checks import given_batches, refuse_options
from softswitch.privacy.jax_rows import poisson_capacity
from softswitch.privacy.oracle import NoiseDeviations, NoisyOracle, PrivateOracle, with_secret
from softswitch.privacy.settings import SIZE_THRESHOLD, Drawing, NoiseLevels, RecordPrivacy, Releases, count_drawn_rows
from softswitch.problem.problem import Problem
from softswitch.problem.ranges import endpoints, expand_ranges
from softswitch.results.checkpoints import Checkpoints
from softswitch.results.history import ClientHistory
from softswitch.results.result import Result
from softswitch.results.status import Diagnostic, DiagnosticCode

ROUNDS = 100
"""More rounds mean more noise in each."""
FIRST_WAY = 2.0
"""How far a direction of clipped rows can take the parameters in the first round; steps fall to 0 from there."""
MARGIN = 0.5
"""λ is below the tolerance by so many deviations of what noise remembered reports have, at the client that has most.
It need not be more: the largest of noisy numbers is above the largest without noise on average, so that the switch is
careful already."""


def private_settings(settings: RunSettings) -> RunSettings:
    """Return the settings of a private run with the defaults filled in."""
    memory = settings.memory
    return RunSettings(
        rounds=ROUNDS if settings.rounds is None else settings.rounds,
        average_last=0.5 if settings.average_last is None else settings.average_last,
        answer="average" if settings.answer == "auto" else settings.answer,
        eval_every=0,
        record_clients=True,
        memory=Memory(smoothing=SMOOTHING) if isinstance(memory, str) else memory,
    )


def _left_by(memory: Memory | None) -> float:
    """What is left of the noise on reports by smoothing: the deviation of a running mean of many."""
    smoothing = 0.0 if memory is None else float(memory.smoothing)
    return math.sqrt((1 - smoothing) / (1 + smoothing))


def private_rule(method: Method, oracle: NoisyOracle, settings: RunSettings) -> Method:
    """The rule with nothing left out.

    Args:
        method: as it was given.
        oracle: the clients.
        settings: of the run.
    """
    chosen: dict[str, Any] = {}
    if method.threshold is None and method.slack is None:
        deviations = oracle.report_deviations[:, 1:]
        largest = float(deviations.max(where=np.isfinite(deviations), initial=0))
        chosen["threshold"] = method.tolerance - MARGIN * largest * _left_by(settings.memory)
    if method.step_size is None:
        first = FIRST_WAY / float(oracle.clip_gradient)
        chosen["step_size"] = FallingStep(first=first, rounds=settings.rounds)
        if isinstance(method, SoftmaxSGM) and method.criterion is None:
            chosen["criterion"] = "max"
    if isinstance(method, SoftmaxSGM) and method.alpha is None:
        chosen["alpha"] = default_alpha(oracle.client_count, method.tolerance)
    return replace(method, **chosen)


WORTH = Diagnostic(
    DiagnosticCode.UNKNOWN_BENEFIT,
    "nothing was compared with a constant prediction, nor with a model without the constraint: that would look at "
    "rows, uncounted",
    "Try on rows that need no privacy which rounds and step size do, and features scaled to where most values lie",
)
ANEW = "A private run cannot be made longer: more rounds are a run of its own, at full ε again"


def with_findings(result: Result) -> Result:
    """The result, with what can be said of any private run; advice that a private run cannot follow is put right.

    Args:
        result: of the run.
    """
    told = [
        replace(found, advice=f"{found.advice}. {ANEW}") if found.suggests_more_rounds else found
        for found in result.diagnostics
    ]
    return replace(result, diagnostics=(*told, WORTH))


def by_ranges(problem: Problem, privacy: RecordPrivacy, result: Result) -> Result:
    """The result, with what the ranges of its constraints say of clips and of noise.

    Args:
        problem: with its ranges.
        privacy: how rows are kept private.
        result: of the run.
    """
    ranges = expand_ranges(problem.constraint_range, result.client_constraint.shape[1])
    known = [endpoints(bounds) for bounds in ranges if bounds is not None]
    largest = max((max(map(abs, bounds)) for bounds in known), default=0.0)
    more = []
    if largest > privacy.clip_value:
        more.append(
            Diagnostic(
                DiagnosticCode.CLIPPED_ROWS,
                f"a row may tell of a constraint up to {largest:.3g}, and counts for {privacy.clip_value:g} at most: "
                "constraints may be larger than they look",
                f"Raise clip_value to what rows tell, {largest:.3g} at most; with several functions of the same rows "
                "more",
            )
        )
    least = min((low for low, _ in known), default=float("-inf"))
    if (at := float(result.method.switch_at)) <= least:
        more.append(
            Diagnostic(
                DiagnosticCode.NOISE_EXCEEDS_BOUND,
                f"to be on the safe side of the noise the switch is at {at:.3g}, and no constraint can be below "
                f"{least:.3g}: only noise makes a round feasible",
                "Fewer rounds, more rows at each client, a larger ε, or a larger tolerance",
            )
        )
    return replace(result, diagnostics=(*result.diagnostics, *more))


POINTS = 12
"""ε is computed after so many different numbers of rounds at most, and taken from the next larger one between."""


def spent_by_rounds(
    privacy: RecordPrivacy, levels: NoiseLevels, drawing: Drawing, rounds: int, local_steps: int
) -> np.ndarray:
    """ε of a client that took part in 0, 1, … rounds, no judging included; between computed points an upper bound.

    Args:
        privacy: the settings.
        levels: the noise.
        drawing: how rows are drawn.
        rounds: the most.
        local_steps: E.
    """
    points = sorted({0, 1, rounds, *(math.ceil(rounds ** (i / POINTS)) for i in range(POINTS)), *_even(rounds)})
    found = [
        compute_epsilon(Releases.planned(privacy, many, local_steps, 0), levels, drawing, privacy.delta)
        for many in points
    ]
    at = np.searchsorted(points, np.arange(rounds + 1))
    return np.maximum.accumulate(np.asarray(found))[at]


def _even(rounds: int) -> set[int]:
    return {math.ceil(rounds * i / POINTS) for i in range(1, POINTS)}


def with_spending(told: ClientHistory, curves: np.ndarray, kinds: np.ndarray) -> tuple[ClientHistory, np.ndarray]:
    """The rounds with what each participant had spent after them; and in how many rounds each client took part.

    Args:
        told: who took part in which round.
        curves: what so many rounds cost, one row a kind of client.
        kinds: of which kind each client is.
    """
    so_far = np.zeros(len(kinds), int)
    spent = np.full(told.clients.shape, np.nan)
    for k, participants in enumerate(told.clients):
        own = participants[participants >= 0]
        so_far[own] += 1
        spent[k, participants >= 0] = curves[kinds[own], so_far[own]]
    return replace(told, epsilon=spent), so_far


FOR_JUDGING, FOR_SIZES = 0x7FFFFFFE, 0x7FFFFFFD
"""Folded into a run's key for the noise on evaluations and on sizes: no round has these numbers."""


class PrivatePlan(NamedTuple):
    """What is settled before a private run.

    Attributes:
        privacy: the settings.
        drawings: how each client draws rows.
        levels: how much noise there is.
        settings: of the run, with as many rounds as the budget allows,
        uses_regret: of so many.
    """

    privacy: RecordPrivacy
    drawings: tuple[Drawing, ...]
    levels: NoiseLevels
    settings: RunSettings
    uses_regret: int


def solve_privately(
    problem: Problem,
    clients: ClientData,
    method: Method,
    privacy: RecordPrivacy,
    sampling: Sampling,
    settings: RunSettings,
    seed: int,
    logging: Logging,
    checkpoints: Checkpoints | None = None,
    secret: Sequence[int] = (),
) -> tuple[Result, PrivatePlan]:
    """Solve with clients whose rows stay private; and what was settled before the run.

    Args:
        problem: what to solve; objective and constraints are means over rows.
        clients: whose rows.
        method: the method.
        privacy: how rows are kept private.
        sampling: which clients take part.
        settings: of the run.
        seed: of all random choices.
        logging: callbacks and progress bar.
        checkpoints: where the run is kept. The same noise comes of the same seed, so that rounds that are played again
            after a kill tell nothing more; an answer is judged at the end only.
        secret: words of 32 bits that rows and noise are drawn by beside the seed, for models that leave the house.
    """
    federation, plan = _settled(problem, clients, privacy, sampling, settings, seed, secret)
    charged = run_planned(federation, method, plan, seed, logging, checkpoints)
    return by_ranges(problem, privacy, charged), plan


def check_private_run(
    problem: Problem,
    clients: ClientData,
    method: Method,
    privacy: RecordPrivacy,
    sampling: Sampling,
    settings: RunSettings,
) -> None:
    """Raise for whatever ``solve_privately`` would refuse; nothing is computed."""
    refuse_options({"seconds": settings.seconds, **given_batches(sampling)})
    _asked(*_settled(problem, clients, privacy, sampling, settings, 0), method)


def _settled(
    problem: Problem,
    clients: ClientData,
    privacy: RecordPrivacy,
    sampling: Sampling,
    settings: RunSettings,
    seed: int,
    secret: Sequence[int] = (),
) -> tuple[Federation, PrivatePlan]:
    """The clients of a private run, and what is settled before it."""
    counts = count_applicable_rows(problem, clients)
    plan = planned(privacy, clients.sizes, private_settings(settings), sampling.local_steps)
    oracle = private_oracle(problem, clients, plan, sampling, counts, seed, secret)
    return Federation(oracle, problem.start, clients.names, problem.domain), plan


def _asked(federation: Federation, plan: PrivatePlan, method: Method) -> tuple[Request, Method]:
    """What is asked of the engine, and the rule with nothing left out."""
    assert isinstance(federation.oracle, NoisyOracle)
    method = private_rule(method, federation.oracle, plan.settings)
    known_by = f"{plan.privacy} for {plan.uses_regret} rounds"
    return request_of(federation, (method,), plan.settings, privacy=known_by), method


def run_planned(
    federation: Federation,
    method: Method,
    plan: PrivatePlan,
    seed: int,
    logging: Logging,
    checkpoints: Checkpoints | None,
) -> Result:
    """Run what is settled, and charge it.

    Args:
        federation: private clients, and the start.
        method: the method, as it was given.
        plan: what is settled.
        seed: of all random choices.
        logging: callbacks and progress bar.
        checkpoints: where the run is kept; None: nowhere.
    """
    oracle = federation.oracle
    assert isinstance(oracle, NoisyOracle)
    asked, method = _asked(federation, plan, method)
    result = run(asked, method, seed, logging, checkpoints)
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
    levels = calibrate_noise(privacy, Releases.planned(privacy, rounds, local_steps), worst)
    within = count_affordable_rounds(privacy, levels, worst, rounds, local_steps)
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
    sampling: Sampling,
    counts: np.ndarray,
    seed: int,
    secret: Sequence[int] = (),
) -> PrivateOracle:
    """The clients of a private run.

    Args:
        problem: what to solve.
        clients: whose rows.
        plan: what is settled.
        sampling: which clients take part.
        counts: how many rows f and each g concern at each client.
        seed: of all random choices.
        secret: words that rows and noise are drawn by beside it.
    """
    privacy, levels = plan.privacy, plan.levels
    words = jnp.asarray(secret, jnp.uint32)
    key = with_secret(jax.random.key(seed), words)
    counts = told_sizes(plan, counts, key)
    width, participants = int(clients.sizes.max()), sampling.participants(len(clients))
    taken = np.array([count_drawn_rows(privacy.rate, int(rows)) for rows in clients.sizes])
    fixed, everything = privacy.sampling == "fixed", privacy.rate == 1
    capacity = width if everything else int(taken.max()) if fixed else poisson_capacity(privacy.rate, width)
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
            jnp.asarray(levels.evaluation * privacy.clip_value, dtype),
        ),
        clip_value=jnp.asarray(privacy.clip_value, dtype),
        clip_gradient=jnp.asarray(privacy.clip_gradient, dtype),
        evaluation_key=jax.random.fold_in(key, FOR_JUDGING),
        secret=words,
        losses=Losses.of(problem),
        constraints=counts.shape[1] - 1,
        participants=participants,
        local_steps=sampling.local_steps,
        sampling="all" if everything else privacy.sampling,
        rate=privacy.rate,
        width=width,
        capacity=capacity,
        slice_size=slice_size(participants, a_client),
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
    return np.where(noised > SIZE_THRESHOLD * deviation, noised, 0)


def _charged(result: Result, oracle: NoisyOracle, plan: PrivatePlan) -> Result:
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
        compute_epsilon(own, levels, drawing, privacy.delta)
        for own, drawing in zip(releases, plan.drawings, strict=True)
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
            tuple(float(one) if np.isfinite(one) else None for one in own) for own in oracle.evaluation_deviations
        ),
    )
    noisy = account.value_note if judged else "the answer is judged once, at the end of the run: its checkpoints go on"
    status = replace(result.status, message=f"{result.status.message}; {noisy}")
    if plan.uses_regret > plan.settings.rounds:
        spent_after = f"after {plan.settings.rounds} of {plan.uses_regret} rounds"
        why = f"{status.message}. The budget ε = {privacy.epsilon:g} was spent {spent_after}"
        status = replace(status, message=why)
    return replace(result, status=status, history=replace(result.history, per_client=per_client), privacy=account)
