"""Functions that are made anew and yet the same share what was compiled; those that may differ never do."""

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


def below(w, batch):
    return -1.0 + 0 * w


def around(value):
    return lambda w: value * w


def by_global():
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
        around,
    ],
)
def test_made_twice_they_are_alike_and_with_another_number_they_are_not(make):
    assert ComparableFunction(make(0.5)) == ComparableFunction(make(0.5))
    assert hash(ComparableFunction(make(0.5))) == hash(ComparableFunction(make(0.5)))
    assert ComparableFunction(make(0.5)) != ComparableFunction(make(0.25))
    assert ComparableFunction(make(1)) != ComparableFunction(make(True)), (
        "equal numbers of another kind compute something else"
    )


class Config:
    weight = 1.0


def by_class():
    return lambda w: Config.weight * w


@functools.wraps(optax.squared_error)
def scaled(*arguments):
    return SCALE * optax.squared_error(*arguments)


@pytest.mark.parametrize(
    "value", [[1.0], {"a": 1.0}, np.ones(3), Holder([1.0]), object(), Config, {"a": 1.0}.get, np.poly1d([1.0])]
)
def test_what_may_change_is_like_itself_only(value):
    function = around(value)
    assert ComparableFunction(function) == ComparableFunction(function)
    assert ComparableFunction(function) != ComparableFunction(around(value))


def test_arrays_that_nobody_can_write_to_are_told_apart_by_being_the_same():
    array = jnp.ones(3)
    assert ComparableFunction(around(array)) == ComparableFunction(around(array))
    assert ComparableFunction(around(array)) != ComparableFunction(around(jnp.ones(3)))


def test_a_name_of_the_module_counts_with_what_it_means_now(monkeypatch):
    before = ComparableFunction(by_global())
    assert before == ComparableFunction(by_global())
    monkeypatch.setitem(globals(), "SCALE", 2.0)
    assert before != ComparableFunction(by_global())


def test_what_a_class_holds_may_change():
    assert ComparableFunction(by_class()) != ComparableFunction(by_class())


def test_a_wrapper_that_takes_a_librarys_name_is_still_the_users(monkeypatch):
    assert scaled.__module__.startswith("optax")
    before = ComparableFunction(around(scaled))
    monkeypatch.setitem(globals(), "SCALE", 2.0)
    assert before != ComparableFunction(around(scaled))


def test_a_function_that_refers_to_very_much_is_not_followed_for_ever():
    function = loss
    for _ in range(60):
        function = (lambda one, other: lambda w, batch: one(w, batch) + other(w, batch))(function, function)
    assert ComparableFunction(function) == ComparableFunction(function)


def test_functions_that_call_themselves_or_each_other_end():
    def odd(n):
        return even(n - 1)

    def even(n):
        return n == 0 or odd(n - 1)

    assert ComparableFunction(odd) == ComparableFunction(odd)


def test_nothing_is_compiled_anew_for_schedules_and_partials_made_anew():
    clients = ss.ClientData.from_arrays({"x": np.arange(4.0)}, client=[0, 0, 1, 1])

    def run(scale):
        problem = ss.Problem(partial(loss, scale=scale), below, 0.0)
        method = ss.SoftmaxSGM(alpha=1.0, tolerance=0.1, step_size=optax.cosine_decay_schedule(0.1, 20))
        return flat.solve(problem, clients, method, rounds=5, eval_every=0)

    run(1.0)
    programs = compiled.CompiledEngine.run_chunk._cache_size()
    again = run(1.0)
    assert compiled.CompiledEngine.run_chunk._cache_size() == programs
    other = run(2.0)
    assert compiled.CompiledEngine.run_chunk._cache_size() == programs + 1
    assert other.worst_objective != again.worst_objective
