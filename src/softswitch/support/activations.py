"""An estimate of the memory that a network's activations need, from its traced program."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import jax

LAYERS = ("dot_general", "conv_general_dilated")  # the operations with large outputs
LAYER_COPIES = 3  # a layer's output, its activation, and the input of the next layer
CALLS = ("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call", "remat2")  # they contain a jaxpr


def estimate_activation_bytes(function: Callable[[Any], Any], rows: Any) -> int:
    """Estimate the memory in bytes of the activations of ``function(rows)``; ``rows`` may be shapes, nothing is run."""
    outputs = _layer_outputs(jax.make_jaxpr(function)(rows).jaxpr)
    return LAYER_COPIES * sum(math.prod(array.shape) * array.dtype.itemsize for array in outputs)


def _layer_outputs(jaxpr: Any) -> Iterator[Any]:
    """Yield the abstract output arrays of all matrix products and convolutions, including those in nested calls."""
    for equation in jaxpr.eqns:
        inner = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
        if equation.primitive.name in CALLS and inner is not None:
            yield from _layer_outputs(getattr(inner, "jaxpr", inner))
        elif equation.primitive.name in LAYERS:
            yield from (variable.aval for variable in equation.outvars)
