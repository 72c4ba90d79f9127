"""Memory of a network's activations, from the traced program of a function."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import jax

LAYERS = ("dot_general", "conv_general_dilated")  # the operations with large outputs
LAYER_COPIES = 3  # a layer's output, its activation, and the input of the next layer
CALLS = ("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call", "remat2")


def estimate_activation_bytes(function: Callable[[Any], Any], rows: Any) -> int:
    """Return about how many bytes the layers of ``function`` need for ``rows`` (arrays or shapes)."""
    outputs = _layer_outputs(jax.make_jaxpr(function)(rows).jaxpr)
    return LAYER_COPIES * sum(math.prod(array.shape) * array.dtype.itemsize for array in outputs)


def _layer_outputs(jaxpr: Any) -> Iterator[Any]:
    for equation in jaxpr.eqns:
        inner = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
        if equation.primitive.name in CALLS and inner is not None:
            yield from _layer_outputs(getattr(inner, "jaxpr", inner))
        elif equation.primitive.name in LAYERS:
            yield from (variable.aval for variable in equation.outvars)
