"""A function's digest: what it computes counts, what it is called or says of itself does not."""

import numpy as np
import torch

from softswitch.support.functions import function_digest

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
