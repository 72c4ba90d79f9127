"""What a function computes, as a digest: its traced program with every constant in it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, jaxpr_as_fun

from softswitch.support.arrays import is_random_key


def program_digest(function: Callable[..., Any], *arguments: Any) -> str:
    """A digest of what ``function`` computes of arguments of these shapes, whatever their values.

    Two functions with the same text differ where they close over other arrays, and two with the same name where their
    bodies differ: both are in the program. What only happens outside of it (a host callback's Python) is not.
    """
    traced = jax.make_jaxpr(function)(*arguments)
    digest = hashlib.sha256(strip_addresses(str(traced)).encode())
    for constant in _constants(traced):
        array = np.asarray(jax.random.key_data(constant) if is_random_key(constant) else constant)
        digest.update(f"{array.dtype.str} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def strip_addresses(text: str) -> str:
    """A repr that is the same in every process."""
    return re.sub(r" at 0x[0-9a-f]+", "", text)


def _constants(program: Any) -> Iterator[Any]:
    """All arrays that a program holds, in the order of its text: its own, its literals, its inner programs'."""
    if isinstance(program, ClosedJaxpr):
        yield from program.consts
        yield from _constants(program.jaxpr)
    elif isinstance(program, Jaxpr):
        for equation in program.eqns:
            yield from (variable.val for variable in equation.invars if isinstance(variable, Literal))
            yield from _constants(list(equation.params.values()))
    elif isinstance(program, list | tuple):
        for part in program:
            yield from _constants(part)
    elif isinstance(program, np.ndarray | jax.Array):
        yield program


T = TypeVar("T")


def trace_once(function: Callable[..., T], *examples: Any) -> tuple[Callable[..., T], T]:
    """The function as it was traced with arguments like these, and the shapes of what it returns.

    ``jax.eval_shape`` traces it too, and forgets what it traced: tracing is much of what it takes to compile.

    Args:
        function: from trees of arrays to a tree of arrays.
        *examples: arguments of the shapes and types that it will be called with.
    """
    traced, shapes = jax.make_jaxpr(function, return_shape=True)(*examples)
    play, structure = jaxpr_as_fun(traced), jax.tree.structure(shapes)

    def again(*arguments: Any) -> T:
        leaves = jax.tree.leaves(arguments)
        for leaf, like in zip(leaves, traced.in_avals, strict=True):
            if (leaf.shape, leaf.dtype) != (like.shape, like.dtype):
                raise TypeError(
                    f"arguments must be like {like}, with which it was traced, but one is {jax.typeof(leaf)}"
                )
        returned: T = jax.tree.unflatten(structure, play(*leaves))
        return returned

    return again, shapes
