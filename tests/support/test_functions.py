"""A function's digest: what it computes counts, what it is called or says of itself does not."""

import os
import subprocess
import sys
from functools import partial

import numpy as np
import torch

import softswitch as ss
from softswitch.support.tracing import function_digest

SCALE = 2.0


def made(factor, text="x * {factor} + offset"):
    """A function of a text, with its own surroundings."""
    around = {"__name__": "made", "offset": 1.0}
    exec(f"def f(x):\n    'some words'\n    return {text.format(factor=factor)}\n", around)
    return around


def test_what_a_function_computes_counts():
    assert function_digest(made(2)["f"]) == function_digest(made(2)["f"])
    assert function_digest(made(2)["f"]) != function_digest(made(3)["f"])
    other = made(2)
    other["offset"] = 5.0
    assert function_digest(made(2)["f"]) != function_digest(other["f"])
    said = made(2)
    exec("def f(x):\n    'other words'\n    return x * 2 + offset\n", said)
    assert function_digest(said["f"]) == function_digest(made(2)["f"])


def test_what_it_closes_over_counts():
    def around(array, inner=np.sin, power=2):
        def f(x, shift=power):
            return inner(x @ array) + shift * SCALE

        return f

    ones = np.ones(3)
    assert function_digest(around(ones)) == function_digest(around(ones.copy()))
    for other in (around(ones + 1e-9), around(ones, np.cos), around(ones, power=3), around(torch.ones(3))):
        assert function_digest(around(ones)) != function_digest(other)


def test_helpers_methods_and_objects_count():
    def helper_of(text):
        around = {"__name__": "made"}
        exec(f"def helper(x):\n    return {text}\ndef f(x):\n    return helper(x)\n", around)
        return around["f"]

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
    return ones_like(x) if x is None else x  # it refers to itself


def test_partials_pooled_constraints_modules_and_inner_functions_count():
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
    inner = [made(2, "sum(offset * v for v in [x])") for _ in range(2)]
    inner[1]["offset"] = 7.0
    assert function_digest(inner[0]["f"]) != function_digest(inner[1]["f"])
    endless = []
    endless.append(endless)
    assert function_digest(endless, torch.ones(2, dtype=torch.bfloat16))


def test_a_set_has_the_same_digest_in_every_process():
    program = (
        "from softswitch.support.tracing import function_digest\n"
        "print(function_digest(lambda x: x in {'alpha', 'beta', 'gamma'}, {'delta', 'epsilon'}))"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(told) == 1


def test_every_function_of_many_counts():
    """Whatever is looked at on the way is kept until the end: what takes a freed place is not taken for it."""

    def several(changed=None):
        functions = []
        for i in range(50):
            around = made(2)
            around["offset"] = 100.0 if i == changed else float(i)
            functions.append(around["f"])
        return function_digest(*functions)

    plain = several()
    assert several() == plain
    assert len({plain, *(several(i) for i in range(50))}) == 51
