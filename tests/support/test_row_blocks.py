"""Functions of many rows, computed some rows at a time."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import softswitch as ss
from softswitch.support.row_blocks import (
    Program,
    apply_in_blocks,
    estimate_activation_bytes,
    evaluate_steps,
    partition_steps,
)

ROWS, WIDTH = 103, 6
GENERATOR = np.random.default_rng(0)
BATCH = {
    "x": jnp.asarray(GENERATOR.normal(size=(ROWS, WIDTH)).astype(np.float32)),
    "y": jnp.asarray(GENERATOR.integers(2, size=ROWS)),
    "weight": jnp.asarray(GENERATOR.random(ROWS).astype(np.float32)),
}
IN, HIDDEN = (jnp.asarray(GENERATOR.normal(size=shape).astype(np.float32)) for shape in ((WIDTH, 32), (32, 32)))


def layers(batch):
    return jax.nn.relu(jax.nn.relu(batch["x"] @ IN + 0.1) @ HIDDEN + jnp.arange(32.0)) @ jnp.ones(32)


def class_loss(batch):
    return ss.mean_over(ss.logistic_loss(layers(batch), batch["y"]), batch["weight"] * (batch["y"] == 1))


def fit_multiclass_label(batch):
    scores = jax.nn.log_softmax(jax.nn.gelu(batch["x"] @ IN), axis=-1)
    return -jnp.average(jnp.take_along_axis(scores, batch["y"][:, None], axis=1)[:, 0], weights=batch["weight"])


def gap(batch):
    """A difference of two means of decisions: no mean over rows."""
    odds = jax.nn.sigmoid(layers(batch))
    return jnp.stack([jnp.average(odds, weights=batch["weight"] * (batch["y"] == label)) for label in (0, 1)])


def images(batch):
    pixels = (batch["x"] @ IN).reshape(-1, 4, 8, 1)
    kernel = jnp.ones((3, 3, 1, 2)) / 9
    seen = jax.lax.conv_general_dilated(pixels, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    best = jax.lax.reduce_window(seen, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return (batch["weight"] * best.reshape(len(best), -1).mean(axis=1)).sum()


def looks_across(batch):
    """Rows by their rank: nothing can be cut after the sort, and all before it can."""
    return jnp.sort(layers(batch))[::2].sum() + jnp.cumsum(batch["weight"]).max()


def deviations(batch):
    """Each row against all rows' mean, in the midst of the layers."""
    scores = layers(batch)
    return {"spread": ((scores - scores.mean()) ** 2 @ batch["weight"]), "constant": jnp.float32(3)}


FUNCTIONS = [class_loss, fit_multiclass_label, gap, images, looks_across, deviations]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("at_once", [1, 10, ROWS - 1, ROWS])
def test_the_same_values(function, at_once):
    found = jax.jit(lambda batch: apply_in_blocks(function, batch, at_once))(BATCH)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5), found, function(BATCH))


@pytest.mark.parametrize("function", [class_loss, gap, images, looks_across])
def test_no_layer_is_ever_held_for_all_rows(function):
    """Of what comes out of the layers only a few numbers a row are there for all rows."""
    program = jax.make_jaxpr(lambda batch: apply_in_blocks(function, batch, 10))(BATCH)
    whole = [
        variable.aval.shape for step in program.eqns for variable in step.outvars if ROWS in variable.aval.shape[:1]
    ]
    assert max(np.prod(shape) for shape in whole) <= ROWS * WIDTH


def test_what_is_taken_as_row_by_row_really_is():
    """Every operation that counts as such: another row's change changes nothing of a row."""
    tried = set()
    for function in FUNCTIONS:
        program = Program(function, BATCH)
        alone = partition_steps(program, ROWS)[1]
        columns = (BATCH[key] for key in sorted(BATCH))
        values = program.constants | dict(zip(program.inputs, columns, strict=True))
        moved = values | {number: values[number].at[0].add(1) for number in program.inputs}
        for step in program.steps:
            for here in (values, moved):
                evaluate_steps([step], here)
            if any(step is one for one in alone):
                tried.add(step.name)
                for one in step.outputs:
                    np.testing.assert_array_equal(values[one][1:], moved[one][1:], err_msg=step.name)
    assert {"dot_general", "conv_general_dilated", "reduce_window_max", "broadcast_in_dim", "reshape"} <= tried


def test_bytes_are_those_of_the_layers():
    assert estimate_activation_bytes(lambda batch: batch["x"].sum(), BATCH) == 0
    assert estimate_activation_bytes(class_loss, BATCH) == 3 * 4 * ROWS * (32 + 32 + 1)
