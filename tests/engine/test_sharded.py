"""Clients divided over devices: the course of one device, in processes with eight devices and in two processes."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import softswitch as ss
from benchmarks import flat
from problems import client_data, least_squares, regression, two_constraints

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def started(script, devices, *arguments):
    """A process with so many devices that prints JSON last; it compiles quickly, as tests do."""
    paths = os.pathsep.join(str(ROOT / folder) for folder in ("src", "tests", "."))
    command = [sys.executable, str(HERE / script), *map(str, arguments)]
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={devices}"
    environment = os.environ | {"PYTHONPATH": paths, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def told(process):
    out, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors[-3000:]
    return json.loads(out.splitlines()[-1])


QUICK = ("few_and_local_steps", "second_order", "work", "refusals")
SLOW = ("pooled_with_memory", "robust_and_random", "several_slices", "single_precision", "chosen_and_resumed_on_others")


def run_on_eight(tmp_path_factory, names):
    return told(started("eight_devices.py", 8, tmp_path_factory.mktemp("checkpoints"), *names))


@pytest.fixture(scope="module")
def on_eight(tmp_path_factory):
    return run_on_eight(tmp_path_factory, QUICK)


@pytest.fixture(scope="module")
def more_on_eight(tmp_path_factory):
    return run_on_eight(tmp_path_factory, SLOW)


@pytest.fixture(scope="module")
def by_two(tmp_path_factory):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = tmp_path_factory.mktemp("shared")
    return [told(process) for process in [started("two_processes.py", 2, place, port, folder) for place in (0, 1)]]


def test_eight_devices_take_the_course_of_one(on_eight):
    assert on_eight["few_and_local_steps"] <= 1e-12


def test_second_order_runs_on_eight_devices(on_eight):
    assert on_eight["second_order"] <= 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("run", SLOW)
def test_more_runs_on_eight_devices(more_on_eight, run):
    assert more_on_eight[run] <= (1e-6 if run == "single_precision" else 1e-12)


def test_a_device_has_as_much_to_do_however_many_there_are(on_eight):
    """With as many clients on each: as the compiler counts one device's program, and in rows that it holds."""
    one, eight = on_eight["work"]["1"], on_eight["work"]["8"]
    assert one["flops"] / eight["flops"] >= 0.9
    assert set(eight["rows"]) == set(one["rows"]) == {16 * 30}


def test_a_round_is_two_sums(on_eight):
    assert on_eight["work"]["8"]["sums"] == 2
    assert on_eight["work"]["8"]["others"] == 0


@pytest.mark.parametrize(
    ("case", "words"),
    {
        "more than clients": r"devices must be at most as many as clients \(5\), but there are 8",
        "twice": "devices must be different",
        "too many": "devices must be at most 8, the number that JAX has, but is 9",
        "none": "devices must be 'all', a number, or some of",
        "word": "devices must be one of 'all', but is 'most'",
    }.items(),
)
def test_devices_that_cannot_be_are_refused(on_eight, case, words):
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(on_eight["refusals"][case])


@pytest.mark.slow
def test_two_processes_take_the_course_of_one_device(by_two):
    first, second = by_two
    assert first["params"] == second["params"]
    assert first["apart"] <= 1e-12
    assert second["apart"] <= 1e-12


@pytest.mark.slow
def test_the_first_process_speaks_for_both(by_two):
    first, second = by_two
    assert first["rounds"] == second["rounds"] == [12, 24, 6]
    assert first["heard"] == [6, 12]
    assert second["heard"] == []


@pytest.mark.slow
def test_the_first_process_alone_writes(by_two):
    first, second = by_two
    assert first["written"][:3] == [6, 12, 12]
    assert second["written"] == []


@pytest.mark.slow
def test_processes_that_were_told_different_things_end(by_two):
    for one in by_two:
        assert one["other folder"].startswith("checkpoints must be in a folder that all processes share")
        assert one["other clients"].startswith("clients must be the same in every process")
        assert one["half"].startswith("devices must include some of each of 2 processes")


@pytest.mark.slow
def test_a_folder_that_the_first_process_cannot_have_is_refused_in_both(by_two):
    first, second = by_two
    assert "is in use by another run" in first["taken"]
    assert second["taken"].startswith("the first process failed")


@pytest.mark.slow
def test_one_device_by_name(x64):
    data, owner = regression()
    problem, clients = ss.Problem(least_squares, two_constraints, jnp.zeros(4)), client_data(data, owner)
    start = jax.device_put(jnp.zeros(4), jax.devices()[0])  # bound to a device
    method = ss.SoftmaxSGM(alpha=20.0, step_size=0.1, tolerance=0.05)
    options = {"rounds": 20, "participation": 0.5, "batch_size": 4, "progress": False}
    one = flat.solve(problem, clients, method, **options)
    named = flat.solve(ss.Problem(least_squares, two_constraints, start), clients, method, devices=1, **options)
    np.testing.assert_allclose(named.params, one.params, rtol=1e-12, atol=1e-14)
    np.testing.assert_array_equal(named.history.feasible, one.history.feasible)
    on = [
        flat.solve(problem, clients, method, devices=d, warm_start=begun, **options)
        for d, begun in ((None, one), (1, named))
    ]
    np.testing.assert_allclose(on[1].params, on[0].params, rtol=1e-12, atol=1e-14)


@pytest.mark.slow
def test_other_generators_draw_alike(x64_isolated):
    """Where words of a stretch cannot be made one by one, all are made."""
    data, owner = regression()
    problem, clients = ss.Problem(least_squares, two_constraints, jnp.zeros(4)), client_data(data, owner)
    method = ss.SoftmaxSGM(alpha=20.0, step_size=0.1, tolerance=0.05)
    options = {"rounds": 20, "participation": 0.5, "batch_size": 4, "progress": False}
    with jax.default_prng_impl("rbg"):
        one, named = (flat.solve(problem, clients, method, devices=devices, **options) for devices in (None, 1))
    np.testing.assert_allclose(named.params, one.params, rtol=1e-12, atol=1e-14)


def test_over_flower_there_are_no_devices():
    data, owner = regression()
    problem, clients = ss.Problem(least_squares, two_constraints, jnp.zeros(4)), client_data(data, owner)
    method = ss.SoftmaxSGM(alpha=20.0, step_size=0.1, tolerance=0.05)
    with pytest.raises(ValueError, match="devices must be None with engine='grid'"):
        flat.solve(problem, clients, method, rounds=2, engine="grid", devices=1)
