"""The tasks of the leaderboard."""

from __future__ import annotations

from softswitch.data.client_data import ClientData
from softswitch.problem.fairness import demographic_parity, equal_opportunity
from softswitch.problem.networks import probability
from softswitch.problem.problem import Problem
from softswitch_experiments.leaderboard import contest_tables as tables
from softswitch_experiments.leaderboard.bench_task import BenchTask, Stage, of_rows
from softswitch_experiments.leaderboard.contest_tables import on_table
from softswitch_experiments.leaderboard.known_optimum import (
    ROSEN_SUZUKI,
    TOLERANCE,
    optimum_of_quadratics,
    quadratics,
    rosen_suzuki,
)
from softswitch_experiments.leaderboard.scheme import Scheme
from softswitch_experiments.tasks.fair_classification import adult
from softswitch_experiments.tasks.neyman_pearson import breast_cancer


def _cancer() -> tuple[Problem, ClientData]:
    made = breast_cancer()
    return made.problem, made.train


def _adult_parity() -> tuple[Problem, ClientData]:
    made = adult(constraint=demographic_parity(probability), strata="group")
    return made.problem, made.train


def _adult_opportunity() -> tuple[Problem, ClientData]:
    made = adult(by="occupation", constraint=equal_opportunity(probability), strata=("group", "y"))
    return made.problem, made.train


def _carts(scheme: Scheme) -> Stage:
    from softswitch_experiments.tasks.safe_rl.task import cartpole

    federation = cartpole(
        local_steps=scheme.local_steps,
        participation=scheme.participation,
        gradient_episodes=5,
        estimation_episodes=5,
        evaluation_episodes=40,
        fisher_every=5,
    )
    values, gradients = federation.oracle.cost(None)
    return Stage(federation, int(values + gradients))


TASKS: tuple[BenchTask, ...] = (
    BenchTask("Neyman–Pearson, breast cancer", 0.1, of_rows(_cancer), 600, several=True),
    BenchTask("Adult, parity, network", 0.05, of_rows(_adult_parity), 12, convex=False),
    BenchTask("Adult, opportunity by occupation, network", 0.1, of_rows(_adult_opportunity), 12, convex=False),
    BenchTask("birds, misses", 0.5, of_rows(on_table(tables.birds, "neyman-pearson")), 60),
    BenchTask(
        "churn, misses",
        0.5,
        of_rows(on_table(tables.churn, "neyman-pearson")),
        200,
        several=True,
    ),
    BenchTask("digits, misses", 0.3, of_rows(on_table(tables.digits, "neyman-pearson")), 200),
    BenchTask("exam, group loss", 0.7, of_rows(on_table(tables.exam, "group-loss")), 200),
    BenchTask("loans, misses", 0.5, of_rows(on_table(tables.loans, "neyman-pearson")), 120),
    BenchTask("votes, group loss", 0.53, of_rows(on_table(tables.votes, "group-loss")), 60),
    BenchTask(
        "wages, parity",
        0.1,
        of_rows(on_table(tables.wages, "demographic-parity")),
        40,
        convex=False,
    ),
    BenchTask(
        "women, parity",
        0.05,
        of_rows(on_table(tables.women, "demographic-parity")),
        60,
        convex=False,
        several=True,
    ),
    BenchTask("quadratics", TOLERANCE, of_rows(quadratics), 600, several=True, optimum=optimum_of_quadratics()),
    BenchTask("Rosen–Suzuki", TOLERANCE, of_rows(rosen_suzuki), 2000, optimum=ROSEN_SUZUKI),
    BenchTask("safe cart-poles", 0.0, _carts, 60, convex=False, gradients=False),
)
