"""One objective and inequalities: problems from Hock & Schittkowski's collection, bounds as further constraints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from benchmarks.optima.constrained_minimax import (
    WONG1,
    WONG2,
    wong1_constraints,
    wong1_objective,
    wong2_constraints,
    wong2_objective,
)
from benchmarks.optima.known import Functions, KnownProblem, vector
from benchmarks.optima.minimax import rosen_suzuki_constraints, rosen_suzuki_objective

INF = np.inf


def bounded(constraints: Callable[..., Any], lower: Any, upper: Any = INF) -> Functions:
    """The constraints ``constraints(*x) >= 0``, and each finite bound as one more."""

    def below_zero(x: Any) -> Any:
        low, high = np.broadcast_to(lower, x.shape), np.broadcast_to(upper, x.shape)
        bounds = (low - x)[np.isfinite(low)], (x - high)[np.isfinite(high)]
        return jnp.concatenate([-jnp.stack(constraints(*x)), *bounds])

    return below_zero


def problem(
    number: int,
    objective: Callable[..., Any],
    constraints: Callable[..., Any],
    start: Any,
    optimum: float,
    convex: bool,
    lower: Any = -INF,
    upper: Any = INF,
) -> KnownProblem:
    """One of the collection as it is written there: ``constraints(*x) >= 0``, a list, and bounds."""
    return KnownProblem(
        f"HS {number}",
        f"Hock & Schittkowski 1981, {number}",
        lambda x: objective(*x)[None],
        vector(*start),
        optimum,
        convex,
        bounded(constraints, lower, upper),
    )


def colville_1(x: Any) -> Any:
    """The first of Colville's objectives."""
    return (COLVILLE_E @ x + x @ COLVILLE_C @ x + COLVILLE_D @ x**3)[None]


def colville_1_constraints(x: Any) -> Any:
    """Ten linear constraints, and x >= 0."""
    return jnp.concatenate([COLVILLE_B - COLVILLE_A @ x, -x])


COLVILLE_A = np.array(
    [
        [-16, 2, 0, 1, 0],
        [0, -2, 0, 0.4, 2],
        [-3.5, 0, 2, 0, 0],
        [0, -2, 0, -4, -1],
        [0, -9, -2, 1, -2.8],
        [2, 0, -4, 0, 0],
        [-1, -1, -1, -1, -1],
        [-1, -2, -3, -2, -1],
        [1, 2, 3, 4, 5],
        [1, 1, 1, 1, 1],
    ]
)
COLVILLE_B = np.array([-40, -2, -0.25, -4, -4, -1, -40, -60, 5, 1])
COLVILLE_C = np.array(
    [
        [30, -20, -10, 32, -10],
        [-20, 39, -6, -31, 32],
        [-10, -6, 10, -6, -10],
        [32, -31, -6, 39, -20],
        [-10, 32, -10, -20, 30],
    ]
)
COLVILLE_D = np.array([4, 8, 10, 6, 2])
COLVILLE_E = np.array([-15, -27, -36, -18, -12])


HOCK_SCHITTKOWSKI = (
    problem(10, lambda a, b: a - b, lambda a, b: [-3 * a**2 + 2 * a * b - b**2 + 1], (-10, 10), -1.0, True),
    problem(11, lambda a, b: (a - 5) ** 2 + b**2 - 25, lambda a, b: [b - a**2], (4.9, 0.1), -8.498464223, True),
    problem(
        12,
        lambda a, b: 0.5 * a**2 + b**2 - a * b - 7 * a - 7 * b,
        lambda a, b: [25 - 4 * a**2 - b**2],
        (0, 0),
        -30.0,
        True,
    ),
    problem(22, lambda a, b: (a - 2) ** 2 + (b - 1) ** 2, lambda a, b: [2 - a - b, b - a**2], (2, 2), 1.0, True),
    problem(
        23,
        lambda a, b: a**2 + b**2,
        lambda a, b: [a + b - 1, a**2 + b**2 - 1, 9 * a**2 + b**2 - 9, a**2 - b, b**2 - a],
        (3, 1),
        2.0,
        False,
        -50,
        50,
    ),
    problem(
        24,
        lambda a, b: ((a - 3) ** 2 - 9) * b**3 / (27 * np.sqrt(3)),
        lambda a, b: [a / np.sqrt(3) - b, a + np.sqrt(3) * b, 6 - a - np.sqrt(3) * b],
        (1, 0.5),
        -1.0,
        False,
        0,
    ),
    problem(
        29,
        lambda a, b, c: -a * b * c,
        lambda a, b, c: [48 - a**2 - 2 * b**2 - 4 * c**2],
        (1, 1, 1),
        -16 * np.sqrt(2),
        False,
    ),
    problem(
        30,
        lambda a, b, c: a**2 + b**2 + c**2,
        lambda a, b, c: [a**2 + b**2 - 1],
        (1, 1, 1),
        1.0,
        False,
        np.array([1, -10, -10]),
        10,
    ),
    problem(
        31,
        lambda a, b, c: 9 * a**2 + b**2 + 9 * c**2,
        lambda a, b, c: [a * b - 1],
        (1, 1, 1),
        6.0,
        False,
        np.array([-10, 1, -10]),
        np.array([10, 10, 1]),
    ),
    problem(
        34,
        lambda a, b, c: -a,
        lambda a, b, c: [b - jnp.exp(a), c - jnp.exp(b)],
        (0, 1.05, 2.9),
        -np.log(np.log(10)),
        True,
        0,
        np.array([100, 100, 10]),
    ),
    problem(
        35,
        lambda a, b, c: 9 - 8 * a - 6 * b - 4 * c + 2 * a**2 + 2 * b**2 + c**2 + 2 * a * b + 2 * a * c,
        lambda a, b, c: [3 - a - b - 2 * c],
        (0.5, 0.5, 0.5),
        1 / 9,
        True,
        0,
    ),
    KnownProblem(
        "HS 43",
        "Hock & Schittkowski 1981, 43",
        rosen_suzuki_objective,
        np.zeros(4),
        -44.0,
        True,
        rosen_suzuki_constraints,
    ),
    problem(
        65,
        lambda a, b, c: (a - b) ** 2 + (a + b - 10) ** 2 / 9 + (c - 5) ** 2,
        lambda a, b, c: [48 - a**2 - b**2 - c**2],
        (-5, 5, 0),
        0.9535288567,
        True,
        -np.array([4.5, 4.5, 5]),
        np.array([4.5, 4.5, 5]),
    ),
    problem(
        66,
        lambda a, b, c: 0.2 * c - 0.8 * a,
        lambda a, b, c: [b - jnp.exp(a), c - jnp.exp(b)],
        (0, 1.05, 2.9),
        0.5181632741,
        True,
        0,
        np.array([100, 100, 10]),
    ),
    problem(
        76,
        lambda a, b, c, d: a**2 + 0.5 * b**2 + c**2 + 0.5 * d**2 - a * c + c * d - a - 3 * b + c - d,
        lambda a, b, c, d: [5 - a - 2 * b - c - d, 4 - 3 * a - b - 2 * c + d, b + 4 * c - 1.5],
        (0.5, 0.5, 0.5, 0.5),
        -4.681818181,
        True,
        0,
    ),
    KnownProblem(
        "HS 86",
        "Hock & Schittkowski 1981, 86",
        colville_1,
        vector(0, 0, 0, 0, 1),
        -32.34867897,
        False,
        colville_1_constraints,
    ),
    KnownProblem(
        "HS 100", "Hock & Schittkowski 1981, 100", wong1_objective, WONG1, 680.6300573, False, wong1_constraints
    ),
    problem(
        108,
        lambda a, b, c, d, e, f, g, h, i: -0.5 * (a * d - b * c + c * i - e * i + e * h - f * g),
        lambda a, b, c, d, e, f, g, h, i: [
            1 - c**2 - d**2,
            1 - i**2,
            1 - e**2 - f**2,
            1 - a**2 - (b - i) ** 2,
            1 - (a - e) ** 2 - (b - f) ** 2,
            1 - (a - g) ** 2 - (b - h) ** 2,
            1 - (c - e) ** 2 - (d - f) ** 2,
            1 - (c - g) ** 2 - (d - h) ** 2,
            1 - g**2 - (h - i) ** 2,
            a * d - b * c,
            c * i,
            -e * i,
            e * h - f * g,
        ],
        np.ones(9),
        -0.8660254038,
        False,
        np.array([*[-INF] * 8, 0]),
    ),
    KnownProblem(
        "HS 113", "Hock & Schittkowski 1981, 113", wong2_objective, WONG2, 24.3062091, True, wong2_constraints
    ),
)
