"""Evaluation of a function of many rows in blocks of rows, to save memory.

Most functions of a batch compute something for each row (a network's layers, a loss) and then combine the rows. The
row-wise part is found in the traced program and computed block by block. Its outputs, usually a few numbers per row,
are the input of the rest. So the function need not be a mean over rows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Literal

LAYERS = ("dot_general", "conv_general_dilated")  # the operations with large outputs
LAYER_COPIES = 3  # a layer's output, its activation, and the input of the next layer
CALLS = ("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call", "remat2")


class Step(NamedTuple):
    """One operation of a program: an equation of its jaxpr, and the numbers of its inputs and outputs."""

    equation: Any
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    @property
    def name(self) -> str:
        """Name of the operation."""
        return str(self.equation.primitive.name)


class Program:
    """A traced function as one list of steps, with inner functions inlined. All values are numbered."""

    def __init__(self, function: Callable[[Any], Any], rows: Any) -> None:
        closed, shapes = jax.make_jaxpr(function, return_shape=True)(rows)
        self.steps: list[Step] = []
        self.constants: dict[int, Any] = {}
        self._numbers = itertools.count()
        self.inputs = [next(self._numbers) for _ in closed.jaxpr.invars]
        self.outputs = self._add(closed, self.inputs)
        self.structure = jax.tree.structure(shapes)

    def _add(self, closed: Any, inputs: Sequence[int]) -> list[int]:
        """Append the steps of a closed jaxpr; return the numbers of its results."""
        numbers: dict[Any, int] = dict(zip(closed.jaxpr.invars, inputs, strict=True))
        for variable, value in zip(closed.jaxpr.constvars, closed.consts, strict=True):
            numbers[variable] = self._add_constant(value)

        def number(atom: Any) -> int:
            return self._add_constant(atom.val) if isinstance(atom, Literal) else numbers[atom]

        for equation in closed.jaxpr.eqns:
            taken = [number(atom) for atom in equation.invars]
            inner = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
            is_call = equation.primitive.name in CALLS and hasattr(inner, "consts")
            if is_call and len(inner.jaxpr.invars) == len(taken):
                results = self._add(inner, taken)
            else:
                results = [next(self._numbers) for _ in equation.outvars]
                self.steps.append(Step(equation, tuple(taken), tuple(results)))
            numbers.update(zip(equation.outvars, results, strict=True))
        return [number(atom) for atom in closed.jaxpr.outvars]

    def _add_constant(self, value: Any) -> int:
        self.constants[number := next(self._numbers)] = value
        return number


def estimate_activation_bytes(function: Callable[[Any], Any], rows: Any) -> int:
    """Return about how many bytes the layers of ``function`` need for ``rows`` (arrays or shapes)."""
    layers = [step.equation for step in Program(function, rows).steps if step.name in LAYERS]
    outputs = [variable.aval for equation in layers for variable in equation.outvars]
    return LAYER_COPIES * sum(math.prod(array.shape) * array.dtype.itemsize for array in outputs)


def apply_in_blocks(function: Callable[[Any], Any], rows: Any, at_once: int) -> Any:
    """Return ``function(rows)``, with its row-wise part computed for ``at_once`` rows (first axes) at a time."""
    columns = jax.tree.leaves(rows)
    many = columns[0].shape[0]
    if at_once >= many:
        return function(rows)
    program = Program(function, rows)
    before, row_wise, after = partition_steps(program, many)
    shared = dict(program.constants)
    evaluate_steps(before, shared)
    wanted = {number for step in after for number in step.inputs} | set(program.outputs)
    kept = sorted(number for step in row_wise for number in step.outputs if number in wanted)

    def evaluate_block(block: list[Any]) -> list[Any]:
        values = shared | dict(zip(program.inputs, block, strict=True))
        evaluate_steps(row_wise, values, (many, block[0].shape[0]))
        return [values[number] for number in kept]

    whole = many - many % at_once
    blocks = [column[:whole].reshape(whole // at_once, at_once, *column.shape[1:]) for column in columns]
    results = [result.reshape(whole, *result.shape[2:]) for result in lax.map(evaluate_block, blocks)]
    if whole < many:
        last = evaluate_block([column[whole:] for column in columns])
        results = [jnp.concatenate(pair) for pair in zip(results, last, strict=True)]
    values = shared | dict(zip(program.inputs, columns, strict=True)) | dict(zip(kept, results, strict=True))
    evaluate_steps(after, values)
    return jax.tree.unflatten(program.structure, [values[number] for number in program.outputs])


def partition_steps(program: Program, many: int) -> tuple[list[Step], list[Step], list[Step]]:
    """Partition the steps into those that use no row, those that are row-wise, and those that combine rows."""
    by_row, combined = set(program.inputs), set[int]()
    before, row_wise, after = [], [], []
    for step in program.steps:
        inputs = set(step.inputs)
        if not inputs & combined and is_row_wise(step, by_row, many):
            row_wise.append(step)
            by_row.update(step.outputs)
        elif inputs & (by_row | combined):
            after.append(step)
            combined.update(step.outputs)
        else:
            before.append(step)
    return before, row_wise, after


def evaluate_steps(steps: Sequence[Step], values: dict[int, Any], sizes: tuple[int, int] | None = None) -> None:
    """Evaluate steps and add their results to ``values``; ``sizes`` are the traced and the actual number of rows."""
    for step in steps:
        params = step.equation.params
        for name in ("shape", "new_sizes", "limit_indices"):
            if sizes is not None and name in params and params[name][0] == sizes[0]:
                params = params | {name: (sizes[1], *params[name][1:])}
        primitive, functions = step.equation.primitive, ()
        params = primitive.get_bind_params(params)
        if isinstance(params, tuple):  # in JAX before 0.11
            functions, params = params
        result = primitive.bind(*functions, *(values[number] for number in step.inputs), **params)
        values.update(zip(step.outputs, result if primitive.multiple_results else [result], strict=True))


def is_row_wise(step: Step, by_row: set[int], many: int) -> bool:
    """Return whether each row of the outputs depends on the same row of the inputs only; rows are the first axis."""
    params, rows = step.equation.params, [number in by_row for number in step.inputs]
    shapes = [tuple(atom.aval.shape) for atom in step.equation.invars]
    if any(variable.aval.shape[:1] != (many,) for variable in step.equation.outvars):
        return False
    if step.name == "broadcast_in_dim" and not any(rows):  # the same for every row
        return len(rows) == 1 and (params["broadcast_dimensions"][:1] != (0,) or shapes[0][0] == 1)
    if step.name in ELEMENTWISE.split():
        return any(rows) and all(row or shape[:1] in ((), (1,)) for row, shape in zip(rows, shapes, strict=True))
    return any(rows) and step.name in RULES and bool(RULES[step.name](params, rows))


ELEMENTWISE = """
    abs acos acosh add and asin asinh atan atan2 atanh cbrt ceil clamp convert_element_type copy cos cosh digamma div
    eq erf erf_inv erfc exp exp2 expm1 floor ge gt integer_pow is_finite le lgamma log log1p logistic lt max min mul
    ne neg nextafter not or pow rem round rsqrt select_n shift_left shift_right_logical sign sin sinh sqrt square
    stop_gradient sub tan tanh xor
"""
REDUCTIONS = ("argmax", "argmin", "reduce_and", "reduce_max", "reduce_min", "reduce_or", "reduce_prod", "reduce_sum")
CUMULATIVE = ("cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum")


def _is_row_wise_product(params: dict[str, Any], rows: list[bool]) -> bool:
    contracted, batched = params["dimension_numbers"]
    return rows == [True, False] and 0 not in contracted[0] and not batched[0]


def _is_row_wise_convolution(params: dict[str, Any], rows: list[bool]) -> bool:
    places = params["dimension_numbers"]
    rows_first = places.lhs_spec[0] == 0 and places.out_spec[0] == 0
    return rows == [True, False] and rows_first and params["batch_group_count"] == 1


def _is_row_wise_window(params: dict[str, Any], rows: list[bool]) -> bool:
    sides = (params[name][0] for name in ("window_dimensions", "window_strides", "base_dilation"))
    return all(rows) and all(side == 1 for side in sides) and params["padding"][0] == (0, 0)


RULES: dict[str, Callable[[dict[str, Any], list[bool]], bool]] = {
    "dot_general": _is_row_wise_product,
    "conv_general_dilated": _is_row_wise_convolution,
    "broadcast_in_dim": lambda params, rows: rows == [True] and params["broadcast_dimensions"][:1] == (0,),
    "reshape": lambda params, rows: rows == [True] and params["dimensions"] is None,
    "transpose": lambda params, rows: all(rows) and params["permutation"][0] == 0,
    "concatenate": lambda params, rows: all(rows) and params["dimension"] != 0,
    "slice": lambda params, rows: all(rows) and (params["strides"] or (1,))[0] == 1,
    "pad": lambda params, rows: rows == [True, False] and tuple(params["padding_config"][0]) == (0, 0, 0),
    "split": lambda params, rows: all(rows) and params["axis"] != 0,
    **dict.fromkeys(
        ("squeeze", "expand_dims", "rev"), lambda params, rows: all(rows) and 0 not in params["dimensions"]
    ),
    **dict.fromkeys(("reduce_window_max", "reduce_window_sum"), _is_row_wise_window),
    **dict.fromkeys(REDUCTIONS, lambda params, rows: all(rows) and 0 not in params["axes"]),
    **dict.fromkeys(CUMULATIVE, lambda params, rows: all(rows) and params["axis"] != 0),
}
"""Conditions under which other operations are row-wise."""
