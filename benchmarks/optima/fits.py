"""Curves to be fitted in the largest absolute error: minimax problems of many pieces, none with constraints."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from benchmarks.optima.known import Functions, KnownProblem, vector
from benchmarks.optima.minimax import COLLECTION


def largest(residuals: Functions) -> Functions:
    """The residuals and their negatives: the largest of them is the largest absolute error."""

    def objectives(x: Any) -> Any:
        values = residuals(x)
        return jnp.concatenate([values, -values])

    return objectives


BARD_Y = np.array([0.14, 0.18, 0.22, 0.25, 0.29, 0.32, 0.35, 0.39, 0.37, 0.58, 0.73, 0.96, 1.34, 2.10, 4.39])


def bard(x: Any) -> Any:
    """x₁ + u/(v x₂ + w x₃) through Bard's 15 points."""
    u = np.arange(1, 16)
    return x[0] + u / ((16 - u) * x[1] + np.minimum(u, 16 - u) * x[2]) - BARD_Y


KOWALIK_U = np.array([4, 2, 1, 0.5, 0.25, 0.167, 0.125, 0.1, 0.0833, 0.0714, 0.0625])
KOWALIK_Y = np.array([0.1957, 0.1947, 0.1735, 0.16, 0.0844, 0.0627, 0.0456, 0.0342, 0.0323, 0.0235, 0.0246])


def kowalik_osborne(x: Any) -> Any:
    """A rational function through Kowalik and Osborne's 11 points."""
    u = KOWALIK_U
    return x[0] * (u**2 + x[1] * u) / (u**2 + x[2] * u + x[3]) - KOWALIK_Y


def davidon2(x: Any) -> Any:
    """Brown and Dennis's 20 functions, none negative."""
    t = 0.2 * np.arange(1, 21)
    return (x[0] + x[1] * t - np.exp(t)) ** 2 + (x[2] + x[3] * np.sin(t) - np.cos(t)) ** 2


def oet5(x: Any) -> Any:
    """x₄ less the square of a parabola, for √t."""
    t = 0.25 + 0.75 * np.arange(21) / 20
    return x[3] - (x[0] * t**2 + x[1] * t + x[2]) ** 2 - np.sqrt(t)


def oet6(x: Any) -> Any:
    """Two exponentials for 1/(1 + t)."""
    t = -0.5 + np.arange(21) / 20
    return x[0] * jnp.exp(x[2] * t) + x[1] * jnp.exp(x[3] * t) - 1 / (1 + t)


def pbc1(x: Any) -> Any:
    """A rational function for a curve with a kink that is rounded."""
    t = -1 + 2 * np.arange(30) / 29
    curve = np.sqrt((8 * t - 1) ** 2 + 1) * np.arctan(8 * t) / (8 * t)
    return (x[0] + x[1] * t + x[2] * t**2) / (1 + x[3] * t + x[4] * t**2) - curve


def evd61(x: Any) -> Any:
    """A damped oscillation and a decay for the answer of a system of high order."""
    t = 0.1 * np.arange(51)
    oscillating = 1.5 * np.exp(-1.5 * t) * np.sin(7 * t) + np.exp(-2.5 * t) * np.sin(5 * t)
    curve = 0.5 * np.exp(-t) - np.exp(-2 * t) + 0.5 * np.exp(-3 * t) + oscillating
    return x[0] * jnp.exp(-x[1] * t) * jnp.cos(x[2] * t + x[3]) + x[4] * jnp.exp(-x[5] * t) - curve


FITS = (
    KnownProblem("Bard", f"{COLLECTION}, 2.8", largest(bard), np.ones(3), 0.50816327e-1, False),
    KnownProblem(
        "Kowalik-Osborne",
        f"{COLLECTION}, 2.9",
        largest(kowalik_osborne),
        vector(0.25, 0.39, 0.415, 0.39),
        0.80843684e-2,
        False,
    ),
    KnownProblem("Davidon 2", f"{COLLECTION}, 2.10", davidon2, vector(25, 5, -5, -1), 115.70644, True),
    KnownProblem("OET5", f"{COLLECTION}, 2.11", largest(oet5), np.ones(4), 0.26359735e-2, False),
    KnownProblem("OET6", f"{COLLECTION}, 2.12", largest(oet6), vector(1, 1, -3, -1), 0.20160753e-2, False),
    KnownProblem("PBC1", f"{COLLECTION}, 2.15", largest(pbc1), vector(0, -1, 10, 1, 10), 0.22340496e-1, False),
    KnownProblem("EVD61", f"{COLLECTION}, 2.16", largest(evd61), vector(2, 2, 7, 0, -2, 1), 0.34904926e-1, False),
)
