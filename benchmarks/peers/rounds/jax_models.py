"""The models in JAX: every row's loss, and the labels a model gives. Of use under any version of JAX."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def outputs(model: str, params: dict[str, Any], x: Any, windows: bool = False) -> Any:
    """One number a row, the log odds; of the images one a class.

    Args:
        model: which.
        params: its parameters by name.
        x: rows.
        windows: how the largest of every two by two is found. Each peer has the way that is faster for it.
    """
    if model == "logistic":
        return x @ params["w"]
    if model == "mlp":
        return jax.nn.relu(x @ params["w1"] + params["b1"]) @ params["w2"] + params["b2"]
    halve = halved_by_windows if windows else halved
    for kernel, bias in (("k1", "c1"), ("k2", "c2")):
        x = halve(jax.nn.relu(convolved(x, params[kernel]) + params[bias]))
    return x.reshape(len(x), -1) @ params["w"] + params["b"]


def convolved(x: Any, kernel: Any) -> Any:
    """A convolution as one product of matrices, which on a processor is faster than JAX's operation for it."""
    high, wide, inner, outer = kernel.shape
    _, h, w, _ = x.shape
    padded = jnp.pad(x, ((0, 0), (high // 2, high // 2), (wide // 2, wide // 2), (0, 0)))
    patches = [padded[:, i : i + h, j : j + w] for i in range(high) for j in range(wide)]
    return jnp.concatenate(patches, axis=-1) @ kernel.reshape(high * wide * inner, outer)


def halved(x: Any) -> Any:
    """The largest of every two by two."""
    rows, h, w, channels = x.shape
    return x.reshape(rows, h // 2, 2, w // 2, 2, channels).max(axis=(2, 4))


def halved_by_windows(x: Any) -> Any:
    """The same by another operation."""
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def losses(model: str, params: dict[str, Any], x: Any, y: Any, windows: bool = False) -> Any:
    """Every row's: the logistic loss, or the cross-entropy of ten classes."""
    score = outputs(model, params, x, windows)
    if model == "cnn":
        return jax.nn.logsumexp(score, axis=-1) - jnp.take_along_axis(score, y[:, None], axis=1)[:, 0]
    return softplus(score) - y * score


@jax.custom_jvp
def softplus(score: Any) -> Any:
    """log(1 + exp(score)); its derivative is written out, since JAX's own takes three times as long."""
    return jnp.logaddexp(score, 0)


@softplus.defjvp
def _slope(primals: Any, tangents: Any) -> Any:
    return softplus(primals[0]), jax.nn.sigmoid(primals[0]) * tangents[0]


def labels(model: str, params: dict[str, Any], x: Any) -> Any:
    """What a model says rows are."""
    score = outputs(model, params, x)
    return jnp.argmax(score, axis=-1) if model == "cnn" else (score > 0).astype(jnp.int32)
