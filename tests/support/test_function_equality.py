"""Equal functions share compiled programs, and functions that may differ do not."""

import functools
from dataclasses import dataclass
from functools import partial

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import softswitch as ss
from benchmarks import flat
from softswitch.engine import compiled
from softswitch.support.function_equality import ComparableFunction

SCALE = 1.0


def loss(w, batch, scale=1.0):
    return scale * jnp.average((w - batch["x"]) ** 2, weights=batch["weight"])


def is_below(w, batch):
    return -1.0 + 0 * w


def make_closure(value):
    return lambda w: value * w


def make_global_reader():
    return lambda w: SCALE * w


@dataclass(frozen=True)
class Holder:
    function: object


@pytest.mark.parametrize(
    "make",
    [
        lambda x: optax.cosine_decay_schedule(x, 500),
        lambda x: optax.warmup_cosine_decay_schedule(0.0, x, 10, 100),
        lambda x: optax.join_schedules([optax.constant_schedule(x), optax.constant_schedule(0.1)], [10]),
        lambda x: partial(loss, scale=x),
        lambda x: partial(partial(loss), scale=x),
        lambda x: lambda w, batch: loss(w, batch, x),
        lambda x: lambda size: optax.chain(optax.clip(x), optax.adam(size)),
        lambda x: Holder(partial(loss, scale=x)),
        make_closure,
    ],
)
def test_equality_depends_on_captured_values(make):
    assert ComparableFunction(make(0.5)) == ComparableFunction(make(0.5))
    assert hash(ComparableFunction(make(0.5))) == hash(ComparableFunction(make(0.5)))
    assert ComparableFunction(make(0.5)) != ComparableFunction(make(0.25))
    assert ComparableFunction(make(1)) != ComparableFunction(make(True)), "equal numbers of other types must differ"


class Config:
    weight = 1.0


def make_class_reader():
    return lambda w: Config.weight * w


@functools.wraps(optax.squared_error)
def scaled(*arguments):
    return SCALE * optax.squared_error(*arguments)


@pytest.mark.parametrize(
    "value", [[1.0], {"a": 1.0}, np.ones(3), Holder([1.0]), object(), Config, {"a": 1.0}.get, np.poly1d([1.0])]
)
def test_mutable_values_equal_themselves_only(value):
    function = make_closure(value)
    assert ComparableFunction(function) == ComparableFunction(function)
    assert ComparableFunction(function) != ComparableFunction(make_closure(value))


def test_read_only_arrays_are_compared_by_identity():
    array = jnp.ones(3)
    assert ComparableFunction(make_closure(array)) == ComparableFunction(make_closure(array))
    assert ComparableFunction(make_closure(array)) != ComparableFunction(make_closure(jnp.ones(3)))


def test_globals_are_compared_by_current_value(monkeypatch):
    original = ComparableFunction(make_global_reader())
    assert original == ComparableFunction(make_global_reader())
    monkeypatch.setitem(globals(), "SCALE", 2.0)
    assert original != ComparableFunction(make_global_reader())


def test_class_attributes_may_change():
    assert ComparableFunction(make_class_reader()) != ComparableFunction(make_class_reader())


def test_wrapper_with_library_name_is_user_code(monkeypatch):
    assert scaled.__module__.startswith("optax")
    original = ComparableFunction(make_closure(scaled))
    monkeypatch.setitem(globals(), "SCALE", 2.0)
    assert original != ComparableFunction(make_closure(scaled))


def test_traversal_is_limited():
    function = loss
    for _ in range(60):
        function = (lambda first, second: lambda w, batch: first(w, batch) + second(w, batch))(function, function)
    assert ComparableFunction(function) == ComparableFunction(function)


def test_recursive_functions():
    def odd(n):
        return even(n - 1)

    def even(n):
        return n == 0 or odd(n - 1)

    assert ComparableFunction(odd) == ComparableFunction(odd)


def test_equal_schedules_and_partials_do_not_recompile():
    clients = ss.ClientData.from_arrays({"x": np.arange(4.0)}, client=[0, 0, 1, 1])

    def run(scale):
        problem = ss.Problem(partial(loss, scale=scale), is_below, 0.0)
        method = ss.SoftmaxSGM(alpha=1.0, tolerance=0.1, step_size=optax.cosine_decay_schedule(0.1, 20))
        return flat.solve(problem, clients, method, rounds=5, eval_every=0)

    run(1.0)
    programs = compiled.CompiledEngine.run_chunk._cache_size()
    repeated = run(1.0)
    assert compiled.CompiledEngine.run_chunk._cache_size() == programs
    other_scale = run(2.0)
    assert compiled.CompiledEngine.run_chunk._cache_size() == programs + 1
    assert other_scale.worst_objective != repeated.worst_objective
