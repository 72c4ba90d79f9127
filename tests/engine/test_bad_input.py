"""Invalid input raises an error that names the argument, the value and what is accepted, before any computation."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import softswitch as ss
from benchmarks import flat
from softswitch.engine import compiled as engine
from softswitch.support.checks import limits
from softswitch_experiments.tasks.partitions import split_dirichlet, split_iid

X = np.ones((6, 2))
OWNER = [0, 0, 1, 1, 1, 1]
CLIENTS = ss.ClientData.from_arrays({"x": X}, client=OWNER)
RULE = ss.AverageSGM(step_size=0.1, tolerance=0.1)


def scalar(w, b):
    return (w * b["x"].mean(axis=0)).sum()


PROBLEM = ss.Problem(scalar, scalar, jnp.zeros(2))


@pytest.fixture(autouse=True)
def no_compute(monkeypatch):
    """Fail if a round is computed."""

    def fail(*_, **__):
        raise AssertionError("computation began before the input was rejected")

    monkeypatch.setattr(engine.CompiledEngine, "run_chunk", fail)
    monkeypatch.setattr(engine, "run_many", fail)


def raises(error, message):
    return pytest.raises(error, match=message)


# --- data ---


def test_no_clients():
    with raises(ValueError, "clients must hold at least one client, but is empty"):
        ss.ClientData.from_list([])
    with raises(ValueError, "no clients: data must have at least one row"):
        ss.ClientData.from_arrays({"x": np.zeros((0, 2))}, client=[])
    with raises(TypeError, "data must be a dict of arrays with at least one column"):
        ss.ClientData.from_arrays({}, client=[])


def test_client_without_rows():
    with raises(ValueError, "client 'north' has no rows"):
        ss.ClientData.from_list([{"x": X}, {"x": X[:0]}], names=["south", "north"])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_in_data(bad):
    x = X.copy()
    x[3, 1] = bad
    with raises(ValueError, r"data\['x'\] must be finite, but 1 rows hold NaN or infinity \(the first at client 'b'\)"):
        ss.ClientData.from_arrays({"x": x}, client=["a", "a", "b", "b", "b", "b"])


def test_mismatched_lengths():
    with raises(ValueError, "one entry a sample, but have lengths {'x': 6, 'y': 5}"):
        ss.ClientData.from_arrays({"x": X, "y": np.ones(5)}, client=OWNER)
    with raises(ValueError, r"client must have one label for each of 6 samples, but has shape \(2,\)"):
        ss.ClientData.from_arrays({"x": X}, client=[0, 1])
    with raises(ValueError, "client 1 has rows of shapes .*'y'.*, but the first client has .*'x'"):
        ss.ClientData.from_list([{"x": X}, {"y": X}])
    with raises(ValueError, "names must have one label for each of 1 clients, but has 2"):
        ss.ClientData.from_list([{"x": X}], names=["a", "b"])


def test_invalid_column_types():
    with raises(TypeError, r"data\['x'\] must hold numbers, but has dtype <U1; encode it first"):
        ss.ClientData.from_arrays({"x": np.array(["a"] * 6)}, client=OWNER)
    with raises(ValueError, "must not have a column 'weight'"):
        ss.ClientData.from_arrays({"weight": X}, client=OWNER)
    with raises(ValueError, "strata must name a column of data \\('x'\\), but is 'sex'"):
        ss.ClientData.from_arrays({"x": X}, client=OWNER, strata="sex")
    with raises(ValueError, "client must have a label for every sample, but some are NaN"):
        ss.ClientData.from_arrays({"x": X}, client=[0, 0, 0, np.nan, 1, 1])
    with raises(TypeError, "client must hold labels of one kind"):
        ss.ClientData.from_arrays({"x": X}, client=np.array(["a", None, 1, 2, 3, 4], dtype=object))


def test_lossy_columns_are_rejected():
    with raises(ValueError, r"data\['x'\] must fit in int32, but holds 1099511627776"):
        ss.ClientData.from_arrays({"x": np.array([1, 2**40])}, client=[0, 1])
    with raises(TypeError, "names that are text, but one is 0"):
        ss.ClientData.from_arrays({0: X}, client=OWNER)
    with raises(ValueError, "client 1 has rows of shapes .*'x': \\(3,\\).*, but the first client has .*\\(2,\\)"):
        ss.ClientData.from_list([{"x": X}, {"x": np.ones((2, 3))}])
    with raises(ValueError, "names must be different for all clients"):
        ss.ClientData.from_list([{"x": X}, {"x": X}], names=["a", "a"])
    with raises(TypeError, "clients must be a list with one dict"):
        ss.ClientData.from_list({"a": {"x": X}})
    named = ss.ClientData.from_list([{"x": X, "y": X}, {"y": X, "x": X}], names=[1, "a"])
    assert named.names == (1, "a")


def test_invalid_splits():
    with raises(ValueError, "clients must be an integer >= 1, but is 0"):
        split_iid([0, 1], 0)
    with raises(ValueError, "at least clients = 5 rows"):
        split_iid([0, 1], 5)
    with raises(ValueError, "concentration must be a finite number and > 0, but is -1"):
        split_dirichlet([0, 1], 2, concentration=-1)


# --- problem ---


def test_integer_start():
    with raises(TypeError, r"start\['layer'\]\[1\] must be a floating array, but has dtype int32"):
        ss.Problem(scalar, scalar, {"layer": [jnp.zeros(2), jnp.zeros(2, jnp.int32)]})
    with raises(TypeError, "start must be a floating array, but has dtype int32; write 0.0"):
        ss.Problem(scalar, scalar, 0)


def test_other_invalid_starts():
    with raises(ValueError, "start must be finite"):
        ss.Problem(scalar, scalar, jnp.array([0.0, jnp.nan]))
    with raises(ValueError, "start must hold at least one floating array, but is {}"):
        ss.Problem(scalar, scalar, {})
    with raises(TypeError, "start must be a floating array, but is 'zero'"):
        ss.Problem(scalar, scalar, "zero")


def test_non_callable_functions():
    with raises(TypeError, r"objective must be a function \(params, batch\) -> scalar, but is 3"):
        ss.Problem(3, scalar, 0.0)
    with raises(TypeError, r"domain must be a Ball, a Box, anything with project\(params\), or None, but is 3"):
        ss.Problem(scalar, scalar, 0.0, 3)


def test_vector_objective():
    problem = ss.Problem(lambda w, b: b["x"] @ w, scalar, jnp.zeros(2))
    with raises(ValueError, r"objective must return one number \(a scalar\) .* an array of shape \(3,\)"):
        flat.solve(problem, CLIENTS, RULE, batch_size=3)


def test_other_invalid_outputs():
    with raises(ValueError, r"constraint must return a scalar, or a vector .* of shape \(1, 1\)"):
        flat.solve(ss.Problem(scalar, lambda w, b: scalar(w, b)[None, None], jnp.zeros(2)), CLIENTS, RULE)
    with raises(ValueError, "objective must return one number .*, but returns 2 arrays"):
        flat.solve(ss.Problem(lambda w, b: (scalar(w, b), scalar(w, b)), scalar, jnp.zeros(2)), CLIENTS, RULE)
    with raises(ValueError, "objective must return floating values, but returns bool"):
        flat.solve(ss.Problem(lambda w, b: scalar(w, b) > 0, scalar, jnp.zeros(2)), CLIENTS, RULE)


def test_tracing_error_names_function():
    with pytest.raises(KeyError) as caught:
        flat.solve(ss.Problem(lambda w, b: b["label"].sum() * w, scalar, jnp.zeros(2)), CLIENTS, RULE, replace=True)
    where = "raised while tracing objective(params, batch) with a batch of {x: (32, 2) float32"
    assert any(where in note for note in caught.value.__notes__)
    for method in (
        RULE,
        ss.Automatic(tolerance=0.1, method=ss.AverageSGM),
    ):  # all rows of the clients, if a batch would be larger
        with pytest.raises(KeyError) as caught:
            flat.solve(ss.Problem(lambda w, b: b["label"].sum() * w, scalar, jnp.zeros(2)), CLIENTS, method)
        assert any("with a batch of {x: (4, 2) float32" in note for note in caught.value.__notes__)


# --- rules ---


@pytest.mark.parametrize("bad", [-1, -1e-9, np.nan, np.inf, "six", True])
def test_invalid_alpha(bad):
    with raises(ValueError, f"alpha must be a finite number and >= 0 and <= 1e\\+30, but is {bad!r}"):
        ss.SoftmaxSGM(alpha=bad, step_size=0.1, tolerance=0.1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"constraint_alpha": -1}, "constraint_alpha must be a finite number and >= 0 and <= 1e\\+30, but is -1"),
        ({"step_size": 0}, "step_size must be a finite number and > 0, but is 0"),
        ({"local_step_size": -1}, "local_step_size must be a finite number and > 0, but is -1"),
        ({"tolerance": -0.1}, "tolerance must be a finite number and >= 0, but is -0.1"),
        ({"slack": 0.5}, "slack must be a finite number and >= 1, but is 0.5"),
        ({"threshold": np.nan}, "threshold must be a finite number, but is nan"),
        ({"criterion": "median"}, "criterion must be one of 'softmax', 'max', 'mean', 'pooled', but is 'median'"),
    ],
)
def test_invalid_method_settings(changes, message):
    with raises(ValueError, message):
        ss.SoftmaxSGM(**{"alpha": 1, "step_size": 0.1, "tolerance": 0.1} | changes)


def test_invalid_baseline_settings():
    with raises(ValueError, "penalty must be"):
        ss.Penalty(penalty=-1, step_size=0.1, tolerance=0.1)
    with raises(ValueError, "multiplier must be"):
        ss.PrimalDual(multiplier=-1, dual_step_size=1, step_size=0.1, tolerance=0.1)
    with raises(ValueError, "dual_step_size must be"):
        ss.PrimalDual(multiplier=1, dual_step_size=0, step_size=0.1, tolerance=0.1)


def test_optimizer_instance_is_rejected():
    with raises(TypeError, r"pass optax.adam, not optax.adam\(0.001\)"):
        ss.AverageSGM(step_size=0.1, tolerance=0.1, optimizer=optax.adam(0.001))


def test_invalid_domains():
    with raises(ValueError, "radius must be a finite number and > 0, but is 0"):
        ss.Ball(0)
    with raises(ValueError, "upper must be a finite number and > 1, but is 1"):
        ss.Box(1, 1)


# --- solve ---


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"participation": 0}, "participation must be a finite number and > 0 and <= 1, but is 0"),
        ({"participation": 1.5}, "participation must be a finite number and > 0 and <= 1, but is 1.5"),
        ({"rounds": 0}, "rounds must be an integer >= 1, but is 0"),
        ({"rounds": 1.5}, "rounds must be an integer >= 1, but is 1.5"),
        ({"local_steps": 0}, "local_steps must be an integer >= 1, but is 0"),
        ({"batch_size": 0}, "batch_size must be an integer >= 1, but is 0"),
        ({"value_batch_size": -3}, "value_batch_size must be an integer >= 1, but is -3"),
        ({"seed": -1}, "seed must be an integer >= 0, but is -1"),
        ({"average_last": 0}, "average_last must be a finite number and > 0 and <= 1, but is 0"),
        ({"eval_every": -1}, "eval_every must be an integer >= 0, but is -1"),
        ({"client_batch_size": 0}, "client_batch_size must be an integer >= 1, but is 0"),
        (
            {"batch_size": 3, "replace": False},
            "batch_size = 3 without replacement needs 3 rows, but a client has only 2",
        ),
    ],
)
def test_invalid_solve_settings(changes, message):
    with raises(ValueError, message):
        flat.solve(PROBLEM, CLIENTS, RULE, **changes)


def test_other_invalid_arguments():
    with raises(TypeError, "callbacks must be a list of functions of a Chunk"):
        flat.solve(PROBLEM, CLIENTS, RULE, callbacks=print)
    with raises(ValueError, r"seed must be an integer below 2\*\*32"):
        flat.solve(PROBLEM, CLIENTS, RULE, seed=2**40)
    with raises(TypeError, "params must be a floating array, but has dtype int32"):
        ss.evaluate(PROBLEM, CLIENTS, 3)
    with raises(ValueError, "start must lie in the domain Ball"):
        ss.Problem(scalar, scalar, jnp.ones(2) * 9, ss.Ball(1.0))
    pooled = ss.PooledConstraint(lambda w, b: {"a": scalar(w, b)}, lambda s: s["a"])
    with raises(ValueError, r"statistics must return one vector, but returns an array of shape \(\)"):
        flat.solve(ss.Problem(scalar, pooled, jnp.zeros(2)), CLIENTS, RULE)


def test_swapped_arguments():
    with raises(TypeError, "method must be a Method.*but is 'softmax'"):
        flat.solve(PROBLEM, CLIENTS, "softmax")
    with raises(TypeError, "clients must be a ClientData, but is"):
        flat.solve(PROBLEM, {"x": X}, RULE)
    with raises(TypeError, "problem must be a Problem or a Federation, but is"):
        flat.solve(CLIENTS, PROBLEM, RULE)


def test_pooled_criterion_without_statistics():
    with raises(ValueError, "criterion='pooled' needs a constraint that is a function of additive statistics"):
        flat.solve(PROBLEM, CLIENTS, ss.AverageSGM(step_size=0.1, tolerance=0.1, criterion="pooled"))


def test_unused_weights_are_rejected():
    with raises(
        ValueError, "objective and constraint must read batch\\['weight'\\], because clients have different sizes"
    ):
        flat.solve(PROBLEM, CLIENTS, RULE, batch_size=None)
    stratified = ss.ClientData.from_arrays({"x": X}, client=OWNER, strata=[0, 1, 0, 1, 1, 1])
    with raises(ValueError, "objective and constraint must read batch\\['weight'\\], because strata are drawn"):
        flat.solve(PROBLEM, stratified, RULE, batch_size=4)
    with raises(ValueError, "batch_size must be at least the number of strata \\(2\\), but is 1"):
        flat.solve(PROBLEM, stratified, RULE, batch_size=1)


def test_limits_of_user_defined_settings():
    """Limits are those of the metadata, whatever the annotation is called."""
    fields = [
        ("width", "Level", dataclasses.field(default=None, metadata=limits(above=0))),
        ("height", "None", dataclasses.field(default=1.0, metadata=limits(above=0))),
        ("pace", "Rate", dataclasses.field(default=2.0, metadata=limits(above=0, schedule=True))),
    ]
    make = dataclasses.make_dataclass("UserMethod", fields, bases=(ss.SoftmaxSGM,), frozen=True, kw_only=True)
    common = {"alpha": 1.0, "step_size": 0.1, "tolerance": 0.1}
    assert make(**common).width is None
    assert make(width=2, pace=abs, **common).pace is abs
    for wrong in ({"width": -1}, {"width": abs}, {"height": None}, {"pace": None}):
        with raises(ValueError, f"{next(iter(wrong))} must be a finite number and > 0"):
            make(**wrong, **common)
