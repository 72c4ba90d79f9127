"""A function of many rows computed some rows at a time, where what it makes of them would not fit into memory.

A function of a batch first makes something of each row by itself, a network's layers and a loss, and then puts rows
together. The first part is found in the traced program, and computed block by block; what is left of it, usually a
number or two a row, goes into the second part as it stands. So any function can be cut, also one that is no mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Literal

LAYERS = ("dot_general", "conv_general_dilated")
"""What large arrays come from; what follows each is computed in place, or beside it."""
COPIES = 3
"""A layer's output, what is made of it, and the next one's input."""
ROW_BY_ROW = """
    abs acos acosh add and asin asinh atan atan2 atanh cbrt ceil clamp convert_element_type copy cos cosh digamma div
    eq erf erf_inv erfc exp exp2 expm1 floor ge gt integer_pow is_finite le lgamma log log1p logistic lt max min mul
    ne neg nextafter not or pow rem round rsqrt select_n shift_left shift_right_logical sign sin sinh sqrt square
    stop_gradient sub tan tanh xor
"""
"""Operations that make each number of the numbers in the same place;"""
REDUCTIONS = "argmax argmin reduce_and reduce_max reduce_min reduce_or reduce_prod reduce_sum"
RUNNING = "cumlogsumexp cummax cummin cumprod cumsum"
"""such as go along some axes, and along one."""


class Step(NamedTuple):
    """One operation of a program.

    Attributes:
        primitive: which.
        inputs: numbers of the values it takes, or the values themselves.
        outputs: numbers of the values it makes.
        params: its settings.
        shapes: of the inputs,
        made: and of the outputs.
    """

    primitive: Any
    inputs: tuple[Any, ...]
    outputs: tuple[int, ...]
    params: dict[str, Any]
    shapes: tuple[tuple[int, ...], ...]
    made: tuple[Any, ...]

    @property
    def name(self) -> str:
        """The operation's."""
        return str(self.primitive.name)


@dataclass
class Program:
    """A traced function as one list of operations: functions within functions are written out.

    Attributes:
        every: the operations, in order.
        known: values that are there from the start, by number.
        count: how many numbers were given out.
    """

    every: list[Step] = field(default_factory=list)
    known: dict[int, Any] = field(default_factory=dict)
    count: int = 0

    def number(self) -> int:
        """A new one."""
        self.count += 1
        return self.count - 1

    def add(self, jaxpr: Any, consts: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
        """Write a program down, and say which values come out of it."""
        numbers: dict[Any, Any] = dict(zip(jaxpr.invars, inputs, strict=True))
        for variable, value in zip(jaxpr.constvars, consts, strict=True):
            numbers[variable] = self.number()
            self.known[numbers[variable]] = value

        def read(atom: Any) -> Any:
            return Ready(atom.val) if isinstance(atom, Literal) else numbers[atom]

        for equation in jaxpr.eqns:
            taken = [read(atom) for atom in equation.invars]
            inner = _inner(equation)
            if inner is not None:
                made = self.add(inner.jaxpr, inner.consts, taken)
            else:
                made = [self.number() for _ in equation.outvars]
                shapes = tuple(tuple(atom.aval.shape) for atom in equation.invars)
                results = tuple(variable.aval for variable in equation.outvars)
                step = Step(equation.primitive, tuple(taken), tuple(made), dict(equation.params), shapes, results)
                self.every.append(step)
            numbers.update(zip(equation.outvars, made, strict=True))
        return [read(atom) for atom in jaxpr.outvars]


class Ready(NamedTuple):
    """A value that is written into the program."""

    value: Any


def _inner(equation: Any) -> Any:
    """The program that an operation only calls, with what it is given; None for any other operation."""
    if equation.primitive.name not in ("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call", "remat2"):
        return None
    inner = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
    return inner if hasattr(inner, "consts") and len(inner.jaxpr.invars) == len(equation.invars) else None


def estimate_activation_bytes(function: Callable[[Any], Any], rows: Any) -> int:
    """About how many bytes a function needs beside its rows: what a network's layers make of them.

    Args:
        function: of rows.
        rows: arrays with the rows as their first axis, or their shapes.
    """
    steps, closed = Program(), jax.make_jaxpr(function)(rows)
    steps.add(closed.jaxpr, closed.consts, [steps.number() for _ in closed.jaxpr.invars])
    return COPIES * sum(
        math.prod(array.shape) * array.dtype.itemsize
        for step in steps.every
        if step.name in LAYERS
        for array in step.made
    )


def apply_in_blocks(function: Callable[[Any], Any], rows: Any, at_once: int) -> Any:
    """``function(rows)``, with the part of it that is made of each row by itself computed some rows at a time.

    Args:
        function: of rows.
        rows: arrays with the rows as their first axis.
        at_once: how many rows at a time.
    """
    columns = jax.tree.leaves(rows)
    many = columns[0].shape[0]
    if at_once >= many:
        return function(rows)
    closed, shape = jax.make_jaxpr(function, return_shape=True)(rows)
    steps = Program()
    given = [steps.number() for _ in columns]
    results = steps.add(closed.jaxpr, closed.consts, given)
    before, apart, after = partition_steps(steps.every, set(given), many)
    wanted = {one for step in after for one in step.inputs if _is_number(one)}
    wanted |= {one for one in results if _is_number(one)}
    values = dict(zip(given, columns, strict=True)) | steps.known
    for step in before:
        evaluate_step(step, values, step.params)
    kept = sorted(one for step in apart for one in step.outputs if one in wanted)
    common = {number: value for number, value in values.items() if number not in given}

    def of_some(some: list[Any]) -> list[Any]:
        here = common | dict(zip(given, some, strict=True))
        for step in apart:
            evaluate_step(step, here, _narrowed(step, many, some[0].shape[0]))
        return [here[number] for number in kept]

    values |= zip(kept, _mapped(of_some, columns, at_once), strict=True)
    for step in after:
        evaluate_step(step, values, step.params)
    leaves = [_value(one, values) for one in results]
    return jax.tree.unflatten(jax.tree.structure(shape), leaves)


def partition_steps(steps: Sequence[Step], given: set[int], many: int) -> tuple[list[Step], list[Step], list[Step]]:
    """The operations that are of no row, those that are of each row by itself, and those that put rows together."""
    by_row, late = set(given), set[int]()
    before, apart, after = [], [], []
    for step in steps:
        taken = {one for one in step.inputs if _is_number(one)}
        if not taken & late and is_row_wise(step, by_row, many):
            apart.append(step)
            by_row.update(step.outputs)
        elif taken & (by_row | late):
            after.append(step)
            late.update(step.outputs)
        else:
            before.append(step)
    return before, apart, after


def is_row_wise(step: Step, by_row: set[int], many: int) -> bool:
    """Whether an operation makes of each row something by itself, rows being the first axis before and after."""
    rows = [_is_number(one) and one in by_row for one in step.inputs]
    if any(array.shape[:1] != (many,) for array in step.made):
        return False
    if step.name == "broadcast_in_dim" and not any(rows):
        places = step.params["broadcast_dimensions"]
        return len(step.inputs) == 1 and (places[:1] != (0,) or step.shapes[0][0] == 1)  # the same for every row
    if not any(rows):
        return False
    if step.name in ROW_BY_ROW.split():
        return all(alone or shape[:1] in ((), (1,)) for alone, shape in zip(rows, step.shapes, strict=True))
    method = RULES.get(step.name)
    if method is not None:
        return bool(method(step, rows))
    if step.name in REDUCTIONS.split():
        return all(rows) and 0 not in step.params["axes"]
    return step.name in RUNNING.split() and all(rows) and step.params["axis"] != 0


def _product(step: Step, rows: list[bool]) -> bool:
    contracted, batched = step.params["dimension_numbers"]
    return rows == [True, False] and 0 not in contracted[0] and not batched[0]


def _convolution(step: Step, rows: list[bool]) -> bool:
    places = step.params["dimension_numbers"]
    first = places.lhs_spec[0] == 0 and places.out_spec[0] == 0
    return rows == [True, False] and first and step.params["batch_group_count"] == 1


def _windows(step: Step, rows: list[bool]) -> bool:
    params = step.params
    still = all(params[name][0] == 1 for name in ("window_dimensions", "window_strides", "base_dilation"))
    return all(rows) and still and params["padding"][0] == (0, 0)


RULES: dict[str, Callable[[Step, list[bool]], bool]] = {
    "dot_general": _product,
    "conv_general_dilated": _convolution,
    "reduce_window_max": _windows,
    "reduce_window_sum": _windows,
    "broadcast_in_dim": lambda step, rows: rows == [True] and step.params["broadcast_dimensions"][:1] == (0,),
    "reshape": lambda step, rows: rows == [True] and step.params["dimensions"] is None,
    "squeeze": lambda step, rows: all(rows) and 0 not in step.params["dimensions"],
    "expand_dims": lambda step, rows: all(rows) and 0 not in step.params["dimensions"],
    "transpose": lambda step, rows: all(rows) and step.params["permutation"][0] == 0,
    "concatenate": lambda step, rows: all(rows) and step.params["dimension"] != 0,
    "slice": lambda step, rows: all(rows) and (step.params["strides"] or (1,))[0] == 1,
    "pad": lambda step, rows: rows == [True, False] and tuple(step.params["padding_config"][0]) == (0, 0, 0),
    "rev": lambda step, rows: all(rows) and 0 not in step.params["dimensions"],
    "split": lambda step, rows: all(rows) and step.params["axis"] != 0,
}
"""Other operations, and when they make of each row something by itself."""


def _narrowed(step: Step, many: int, some: int) -> dict[str, Any]:
    """An operation's settings for fewer rows."""
    params = step.params
    for name in ("shape", "new_sizes", "limit_indices"):
        if name in params and params[name][0] == many:
            params = params | {name: (some, *params[name][1:])}
    return params


def _mapped(function: Callable[[list[Any]], list[Any]], columns: list[Any], at_once: int) -> list[Any]:
    """The function of blocks of rows, one after the other, put together; of the rows left over by itself."""
    whole, rest = divmod(columns[0].shape[0], at_once)
    stacked = [column[: whole * at_once].reshape(whole, at_once, *column.shape[1:]) for column in columns]
    found = [one.reshape(whole * at_once, *one.shape[2:]) for one in lax.map(function, stacked)]
    if rest:
        last = function([column[whole * at_once :] for column in columns])
        found = [jnp.concatenate(pair) for pair in zip(found, last, strict=True)]
    return found


def evaluate_step(step: Step, values: dict[int, Any], params: dict[str, Any]) -> None:
    """Compute an operation, and write down what it makes."""
    settings = step.primitive.get_bind_params(params)
    functions: Sequence[Any] = ()
    if isinstance(settings, tuple):  # in JAX before 0.11
        functions, settings = settings
    made = step.primitive.bind(*functions, *(_value(one, values) for one in step.inputs), **settings)
    values.update(zip(step.outputs, made if step.primitive.multiple_results else [made], strict=True))


def _is_number(one: Any) -> bool:
    return not isinstance(one, Ready)


def _value(one: Any, values: dict[int, Any]) -> Any:
    return one.value if isinstance(one, Ready) else values[one]
