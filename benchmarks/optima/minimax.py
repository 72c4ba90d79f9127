"""Minimax problems without constraints, of few pieces."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from benchmarks.optima.known import Functions, KnownProblem, vector

COLLECTION = "Lukšan & Vlček 2000"


def cb2(x: Any) -> Any:
    """Charalambous and Bandler's second."""
    return jnp.stack([x[0] ** 2 + x[1] ** 4, (2 - x[0]) ** 2 + (2 - x[1]) ** 2, 2 * jnp.exp(x[1] - x[0])])


def cb3(x: Any) -> Any:
    """The same with the powers exchanged."""
    return jnp.stack([x[0] ** 4 + x[1] ** 2, (2 - x[0]) ** 2 + (2 - x[1]) ** 2, 2 * jnp.exp(x[1] - x[0])])


def dem(x: Any) -> Any:
    """Demyanov and Malozemov's."""
    return jnp.stack([5 * x[0] + x[1], -5 * x[0] + x[1], x[0] ** 2 + x[1] ** 2 + 4 * x[1]])


def ql(x: Any) -> Any:
    """A quadratic function and two linear penalties."""
    square = x @ x
    return square + jnp.stack([0 * square, 10 * (-4 * x[0] - x[1] + 4), 10 * (-x[0] - 2 * x[1] + 6)])


def lq(x: Any) -> Any:
    """A linear function and a quadratic penalty."""
    return -x.sum() + jnp.stack([0 * x[0], x @ x - 1])


def mifflin1(x: Any) -> Any:
    """−x₁ with 20 times the violation of the unit disc."""
    return -x[0] + jnp.stack([0 * x[0], 20 * (x @ x - 1)])


def mifflin2(x: Any) -> Any:
    """−x₁ + 2 c + 1.75 |c| with c = |x|² − 1."""
    return -x[0] + jnp.stack([3.75 * (x @ x - 1), 0.25 * (x @ x - 1)])


def crescent(x: Any) -> Any:
    """A narrow curved valley."""
    square = x[0] ** 2 + (x[1] - 1) ** 2
    return jnp.stack([square + x[1] - 1, -square + x[1] + 1])


def hald_madsen_1(x: Any) -> Any:
    """Rosenbrock's valley in the largest absolute value."""
    residuals = jnp.stack([10 * (x[1] - x[0] ** 2), 1 - x[0]])
    return jnp.concatenate([residuals, -residuals])


def madsen(x: Any) -> Any:
    """Three smooth functions in absolute value."""
    values = jnp.stack([x[0] ** 2 + x[1] ** 2 + x[0] * x[1], jnp.sin(x[0]), jnp.cos(x[1])])
    return jnp.concatenate([values, -values])


def evd52(x: Any) -> Any:
    """El-Attar, Vidyasagar and Dutta's 5.2."""
    a, b, c = x
    return jnp.stack(
        [
            a**2 + b**2 + c**2 - 1,
            a**2 + b**2 + (c - 2) ** 2,
            a + b + c - 1,
            a + b - c + 1,
            2 * a**3 + 6 * b**2 + 2 * (5 * c - a + 1) ** 2,
            a**2 - 9 * c,
        ]
    )


def penalised(objective: Functions, constraints: Functions) -> Functions:
    """f and f + 10 g_j for all j: the largest of them is an exact penalty."""

    def objectives(x: Any) -> Any:
        return objective(x) + jnp.concatenate([jnp.zeros(1), 10 * constraints(x)])

    return objectives


def rosen_suzuki_objective(x: Any) -> Any:
    """Rosen and Suzuki's objective, one entry."""
    a, b, c, d = x
    return (a**2 + b**2 + 2 * c**2 + d**2 - 5 * a - 5 * b - 21 * c + 7 * d)[None]


def rosen_suzuki_constraints(x: Any) -> Any:
    """Rosen and Suzuki's constraints."""
    a, b, c, d = x
    return jnp.stack(
        [
            a**2 + b**2 + c**2 + d**2 + a - b + c - d - 8,
            a**2 + 2 * b**2 + c**2 + 2 * d**2 - a - d - 10,
            2 * a**2 + b**2 + c**2 + 2 * a - b - d - 5,
        ]
    )


rosen_suzuki = penalised(rosen_suzuki_objective, rosen_suzuki_constraints)


def polak1(x: Any) -> Any:
    """Two wells side by side, hardly curved along x₁."""
    return jnp.exp(x[0] ** 2 / 1000 + (x[1] - np.array([1.0, -1.0])) ** 2)


def polak2(x: Any) -> Any:
    """Likewise in ten variables, the first of which hardly matters."""
    scale = np.array([1e-8, 1, 1, 4, 1, 1, 1, 1, 1, 1])
    shift = 2 * np.eye(10)[1]
    return jnp.exp(((x + np.stack([shift, -shift])) ** 2 * scale).sum(axis=1))


def polak6(x: Any) -> Any:
    """Rosen and Suzuki's in curved coordinates."""
    a = x[0] - (x[3] + 1) ** 4
    return rosen_suzuki(jnp.stack([a, x[1] - a**4, x[2], x[3]]))


def shor(x: Any) -> Any:
    """Ten balls of different weights."""
    return SHOR_WEIGHTS * ((x - SHOR_CENTRES) ** 2).sum(axis=1)


SHOR_WEIGHTS = np.array([1, 5, 10, 2, 4, 3, 1.7, 2.5, 6, 3.5])
SHOR_CENTRES = np.array(
    [
        [0, 0, 0, 0, 0],
        [2, 1, 1, 1, 3],
        [1, 2, 1, 1, 2],
        [1, 4, 1, 2, 2],
        [3, 2, 1, 0, 1],
        [0, 2, 1, 0, 1],
        [1, 1, 1, 1, 1],
        [1, 0, 1, 2, 1],
        [0, 0, 2, 1, 0],
        [1, 1, 2, 0, 0],
    ]
)


def _maxquad() -> tuple[np.ndarray, np.ndarray]:
    """Lemaréchal's five matrices and vectors."""
    k = np.arange(1, 6)[:, None, None]
    i, j = np.arange(1, 11)[:, None], np.arange(1, 11)
    off = np.exp(np.minimum(i, j) / np.maximum(i, j)) * np.cos(i * j) * np.sin(k) * (i != j)
    diagonal = i[:, 0] / 10 * np.abs(np.sin(k[:, 0])) + np.abs(off).sum(axis=2)
    linear = np.exp(j / k[:, 0]) * np.sin(j * k[:, 0])
    return off + diagonal[:, :, None] * np.eye(10), linear


QUADRATIC, LINEAR = _maxquad()


def maxquad(x: Any) -> Any:
    """Five convex quadratic functions."""
    return jnp.einsum("i,kij,j->k", x, QUADRATIC, x) - LINEAR @ x


def maxl(x: Any) -> Any:
    """The largest absolute value."""
    return jnp.concatenate([x, -x])


def maxq(x: Any) -> Any:
    """The largest square."""
    return x**2


RAMP = np.where(np.arange(1, 21) <= 10, 1, -1) * np.arange(1, 21.0)

MINIMAX = (
    KnownProblem("CB2", f"{COLLECTION}, 2.1", cb2, vector(2, 2), 1.9522245, True),
    KnownProblem("CB3", f"{COLLECTION}, 3.4", cb3, vector(2, 2), 2.0, True),
    KnownProblem("DEM", f"{COLLECTION}, 3.5", dem, vector(1, 1), -3.0, True),
    KnownProblem("QL", f"{COLLECTION}, 3.6", ql, vector(-1, 5), 7.2, True),
    KnownProblem("LQ", f"{COLLECTION}, 3.7", lq, vector(-0.5, -0.5), -np.sqrt(2), True),
    KnownProblem("Mifflin 1", f"{COLLECTION}, 3.8", mifflin1, vector(0.8, 0.6), -1.0, True),
    KnownProblem("Mifflin 2", f"{COLLECTION}, 3.9", mifflin2, vector(-1, -1), -1.0, True),
    KnownProblem("Crescent", f"{COLLECTION}, 3.2", crescent, vector(-1.5, 2), 0.0, False),
    KnownProblem("Hald-Madsen 1", "Hald & Madsen 1981, 1", hald_madsen_1, vector(-1.2, 1), 0.0, False),
    KnownProblem("Madsen", "Madsen 1975; CUTE MADSEN", madsen, vector(3, 1), 0.6164324, False),
    KnownProblem("EVD52", f"{COLLECTION}, 2.4", evd52, vector(1, 1, 1), 3.5997193, False),
    KnownProblem("Rosen-Suzuki", f"{COLLECTION}, 2.5", rosen_suzuki, np.zeros(4), -44.0, True),
    KnownProblem("Polak 1", "Polak, Mayne & Higgins 1991; CUTE POLAK1", polak1, vector(50, 0.05), np.e, True),
    KnownProblem("Polak 2", f"{COLLECTION}, 2.22", polak2, vector(100, *[0.1] * 9), 54.598150, True),
    KnownProblem("Polak 6", f"{COLLECTION}, 2.6", polak6, np.zeros(4), -44.0, False),
    KnownProblem("Shor", f"{COLLECTION}, 3.12", shor, vector(0, 0, 0, 0, 1), 22.600162, True),
    KnownProblem("Maxquad", f"{COLLECTION}, 3.16", maxquad, np.ones(10), -0.8414083, True),
    KnownProblem("Maxl", f"{COLLECTION}, 3.20", maxl, RAMP, 0.0, True),
    KnownProblem("Maxq", f"{COLLECTION}, 3.19", maxq, RAMP, 0.0, True),
)
