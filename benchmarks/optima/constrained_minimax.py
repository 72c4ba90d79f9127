"""Minimax problems with linear constraints, and those of Wong, who penalises some constraints and may keep others."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from benchmarks.optima.known import Functions, KnownProblem, vector
from benchmarks.optima.minimax import COLLECTION, penalised


def madsen_trigonometric(x: Any) -> Any:
    """Madsen and Schjær-Jacobsen's first three functions."""
    return jnp.stack([x[0] ** 2 + x[1] ** 2 + x[0] * x[1] - 1, jnp.sin(x[0]), -jnp.cos(x[1])])


def madsen_exponential(x: Any) -> Any:
    """Their other three."""
    return jnp.stack([-jnp.exp(x[0] - x[1]), jnp.sinh(x[0] - 1) - 1, -jnp.log(x[1]) - 1])


def half_plane(a: float, b: float, c: float) -> Functions:
    """a x₁ + b x₂ + c >= 0."""
    return lambda x: -(a * x[0] + b * x[1] + c)[None]


def pentagon(x: Any) -> Any:
    """The negative distances of three points."""
    points = x.reshape(3, 2)
    return -jnp.sqrt(((points - jnp.roll(points, -1, axis=0)) ** 2).sum(axis=1))


def in_pentagon(x: Any) -> Any:
    """All three points lie in the pentagon."""
    angles = 2 * np.pi * np.arange(5) / 5
    return (x.reshape(3, 2) @ np.stack([np.cos(angles), np.sin(angles)]) - 1).ravel()


def wong1_objective(x: Any) -> Any:
    """Wong's first objective, one entry."""
    a, b, c, d, e, f, g = x
    return (
        (a - 10) ** 2
        + 5 * (b - 12) ** 2
        + c**4
        + 3 * (d - 11) ** 2
        + 10 * e**6
        + 7 * f**2
        + g**4
        - 4 * f * g
        - 10 * f
        - 8 * g
    )[None]


def wong1_constraints(x: Any) -> Any:
    """Its constraints."""
    a, b, c, d, e, f, g = x
    return jnp.stack(
        [
            2 * a**2 + 3 * b**4 + c + 4 * d**2 + 5 * e - 127,
            7 * a + 3 * b + 10 * c**2 + d - e - 282,
            23 * a + b**2 + 6 * f**2 - 8 * g - 196,
            4 * a**2 + b**2 - 3 * a * b + 2 * c**2 + 5 * f - 11 * g,
        ]
    )


def wong2_objective(x: Any) -> Any:
    """Wong's second objective, one entry."""
    return (
        x[0] ** 2
        + x[1] ** 2
        + x[0] * x[1]
        - 14 * x[0]
        - 16 * x[1]
        + (x[2] - 10) ** 2
        + 4 * (x[3] - 5) ** 2
        + (x[4] - 3) ** 2
        + 2 * (x[5] - 1) ** 2
        + 5 * x[6] ** 2
        + 7 * (x[7] - 11) ** 2
        + 2 * (x[8] - 10) ** 2
        + (x[9] - 7) ** 2
        + 45
    )[None]


def wong2_constraints(x: Any) -> Any:
    """Its constraints: five curved ones, three linear ones."""
    a, b = x[0], x[1]
    return jnp.stack(
        [
            3 * (a - 2) ** 2 + 4 * (b - 3) ** 2 + 2 * x[2] ** 2 - 7 * x[3] - 120,
            5 * a**2 + 8 * b + (x[2] - 6) ** 2 - 2 * x[3] - 40,
            0.5 * (a - 8) ** 2 + 2 * (b - 4) ** 2 + 3 * x[4] ** 2 - x[5] - 30,
            a**2 + 2 * (b - 2) ** 2 - 2 * a * b + 14 * x[4] - 6 * x[5],
            -3 * a + 6 * b + 12 * (x[8] - 8) ** 2 - 7 * x[9],
            4 * a + 5 * b - 3 * x[6] + 9 * x[7] - 105,
            10 * a - 8 * b - 17 * x[6] + 2 * x[7],
            -8 * a + 2 * b + 5 * x[8] - 2 * x[9] - 12,
        ]
    )


def wong2_linear(x: Any) -> Any:
    """The linear ones alone."""
    return wong2_constraints(x)[5:]


def wong2_curved(x: Any) -> Any:
    """The curved ones alone."""
    return wong2_constraints(x)[:5]


def wong3_objective(x: Any) -> Any:
    """Wong's third objective, one entry."""
    weights = np.array([1, 10, 5, 4, 27, 1, 13, 1, 1])
    centres = np.array([9, 1, 7, 14, 1, 2, 2, 3, 0])
    others = jnp.concatenate([x[10:15], x[16:]])
    return wong2_objective(x) + (weights * (others - centres) ** 2).sum() + x[15] ** 4 + 50


def wong3_constraints(x: Any) -> Any:
    """Its constraints."""
    a, b = x[0], x[1]
    further = jnp.stack(
        [
            a + b + 4 * x[10] - 21 * x[11],
            a**2 + 15 * x[10] - 8 * x[11] - 28,
            4 * a + 9 * b + 5 * x[12] ** 2 - 9 * x[13] - 87,
            3 * a + 4 * b + 3 * (x[12] - 6) ** 2 - 14 * x[13] - 10,
            14 * a**2 + 35 * x[14] - 79 * x[15] - 92,
            15 * b**2 + 11 * x[14] - 61 * x[15] - 54,
            5 * a**2 + 2 * b + 9 * x[16] ** 4 - x[17] - 68,
            a**2 - b + 19 * x[18] - 20 * x[19] + 19,
            7 * a**2 + 5 * b**2 + x[18] ** 2 - 30 * x[19],
        ]
    )
    return jnp.concatenate([wong2_constraints(x), further])


WONG1 = vector(1, 2, 0, 4, 0, 1, 1)
WONG2 = vector(2, 3, 5, 5, 1, 2, 7, 3, 6, 10)
WONG3 = vector(*WONG2, 2, 2, 6, 15, 1, 2, 1, 2, 1, 3)

CONSTRAINED_MINIMAX = (
    KnownProblem(
        "MAD1",
        f"{COLLECTION}, 4.1",
        madsen_trigonometric,
        vector(1, 2),
        -0.38965952,
        False,
        half_plane(1, 1, -0.5),
    ),
    KnownProblem(
        "MAD2",
        f"{COLLECTION}, 4.2",
        madsen_trigonometric,
        vector(-2, -1),
        -0.33035714,
        False,
        half_plane(-3, -1, -2.5),
    ),
    KnownProblem(
        "MAD4",
        f"{COLLECTION}, 4.3",
        madsen_exponential,
        vector(-1, 0.01),
        -0.44891079,
        False,
        half_plane(0.05, -1, 0.5),
    ),
    KnownProblem(
        "MAD5",
        f"{COLLECTION}, 4.4",
        madsen_exponential,
        vector(-1, 3),
        -0.42928061,
        False,
        half_plane(-0.9, 1, -1),
    ),
    KnownProblem(
        "Pentagon", f"{COLLECTION}, 4.5", pentagon, vector(-1, 0, 0, -1, 1, 1), -1.8596187, False, in_pentagon
    ),
    KnownProblem(
        "Wong 1", f"{COLLECTION}, 2.19", penalised(wong1_objective, wong1_constraints), WONG1, 680.63006, False
    ),
    KnownProblem(
        "Wong 2", f"{COLLECTION}, 2.20", penalised(wong2_objective, wong2_constraints), WONG2, 24.306209, True
    ),
    KnownProblem(
        "Wong 2 linear",
        f"{COLLECTION}, 4.8",
        penalised(wong2_objective, wong2_curved),
        WONG2,
        24.306209,
        True,
        wong2_linear,
    ),
    KnownProblem(
        "Wong 3", f"{COLLECTION}, 2.21", penalised(wong3_objective, wong3_constraints), WONG3, 133.72828, True
    ),
)
