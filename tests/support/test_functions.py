"""Digests of functions depend on the computation, not on names and docstrings."""

import os
import subprocess
import sys
from functools import partial

import numpy as np
import torch

import softswitch as ss
from softswitch.support.tracing import function_digest

SCALE = 2.0


def make_function(factor, text="x * {factor} + offset"):
    """Return a function from source text, with a separate namespace."""
    namespace = {"__name__": "made", "offset": 1.0}
    exec(f"def f(x):\n    'some words'\n    return {text.format(factor=factor)}\n", namespace)
    return namespace


def test_digest_depends_on_code():
    assert function_digest(make_function(2)["f"]) == function_digest(make_function(2)["f"])
    assert function_digest(make_function(2)["f"]) != function_digest(make_function(3)["f"])
    other_function = make_function(2)
    other_function["offset"] = 5.0
    assert function_digest(make_function(2)["f"]) != function_digest(other_function["f"])
    same_code = make_function(2)
    exec("def f(x):\n    'other words'\n    return x * 2 + offset\n", same_code)
    assert function_digest(same_code["f"]) == function_digest(make_function(2)["f"])


def test_digest_depends_on_closure():
    def make_closure(array, inner=np.sin, power=2):
        def f(x, shift=power):
            return inner(x @ array) + shift * SCALE

        return f

    ones = np.ones(3)
    assert function_digest(make_closure(ones)) == function_digest(make_closure(ones.copy()))
    for changed in (
        make_closure(ones + 1e-9),
        make_closure(ones, np.cos),
        make_closure(ones, power=3),
        make_closure(torch.ones(3)),
    ):
        assert function_digest(make_closure(ones)) != function_digest(changed)


def test_digest_depends_on_helpers_methods_and_objects():
    def helper_of(text):
        namespace = {"__name__": "made"}
        exec(f"def helper(x):\n    return {text}\ndef f(x):\n    return helper(x)\n", namespace)
        return namespace["f"]

    assert function_digest(helper_of("x + 1")) == function_digest(helper_of("x + 1"))
    assert function_digest(helper_of("x + 1")) != function_digest(helper_of("x + 2"))

    class Loss:
        def __init__(self, weight):
            self.weight = weight

        def __repr__(self):
            return f"Loss({self.weight})"

        def __call__(self, x):
            return self.weight * x

        def method(self, x):
            return x

    assert function_digest(Loss(1)) == function_digest(Loss(1))
    assert function_digest(Loss(1)) != function_digest(Loss(2))
    assert function_digest(Loss(1).method) != function_digest(Loss(2).method)
    assert function_digest(None, [ones_like], {"a": 1}) != function_digest(None, [ones_like], {"a": 2})


def ones_like(x):
    return ones_like(x) if x is None else x  # a recursive function


def test_digest_of_partials_modules_and_inner_functions():
    def square(x):
        return x**2

    def cube(x):
        return x**3

    assert function_digest(partial(square, 1)) == function_digest(partial(square, 1))
    assert function_digest(partial(square, 1)) != function_digest(partial(cube, 1))
    assert function_digest(partial(square, 1)) != function_digest(partial(square, 2))
    assert function_digest(ss.PooledConstraint(square, square)) != function_digest(ss.PooledConstraint(square, cube))

    class Make:
        def __init__(self, gravity):
            self.gravity = gravity

        def __call__(self):
            return self.gravity

    assert function_digest(Make(4.0)) == function_digest(Make(4.0))
    assert function_digest(Make(4.0)) != function_digest(Make(10.0))
    assert function_digest(Make(4.0).__call__) != function_digest(Make(10.0).__call__)
    losses = [torch.nn.CrossEntropyLoss(weight=torch.tensor([1.0, weight])) for weight in (1.0, 1.0, 2.0)]
    assert function_digest(losses[0]) == function_digest(losses[1]) != function_digest(losses[2])
    inner = [make_function(2, "sum(offset * v for v in [x])") for _ in range(2)]
    inner[1]["offset"] = 7.0
    assert function_digest(inner[0]["f"]) != function_digest(inner[1]["f"])
    self_reference = []
    self_reference.append(self_reference)
    assert function_digest(self_reference, torch.ones(2, dtype=torch.bfloat16))


def test_set_digest_is_equal_in_every_process():
    program = (
        "from softswitch.support.tracing import function_digest\n"
        "print(function_digest(lambda x: x in {'alpha', 'beta', 'gamma'}, {'delta', 'epsilon'}))"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


def test_digest_depends_on_every_function():
    """Visited objects stay alive during the traversal, so that reused ids are not mistaken for them."""

    def several(changed_index=None):
        functions = []
        for i in range(50):
            namespace = make_function(2)
            namespace["offset"] = 100.0 if i == changed_index else float(i)
            functions.append(namespace["f"])
        return function_digest(*functions)

    reference = several()
    assert several() == reference
    assert len({reference, *(several(i) for i in range(50))}) == 51
