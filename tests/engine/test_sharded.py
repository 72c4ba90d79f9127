"""Sharding reproduces the trajectory of one device on eight devices."""

import json
import os
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
from softswitch.oracles.sharded import check_devices

TEST_FOLDER = Path(__file__).parent
ROOT = TEST_FOLDER.parents[1]


def start_process(script, devices, *arguments):
    """Start a process with this number of devices that prints JSON last, with fast compilation as in tests."""
    paths = os.pathsep.join(str(ROOT / folder) for folder in ("src", "tests", "."))
    command = [sys.executable, str(TEST_FOLDER / script), *map(str, arguments)]
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={devices}"
    environment = os.environ | {"PYTHONPATH": paths, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def read_result(process):
    out, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors[-3000:]
    return json.loads(out.splitlines()[-1])


QUICK = ("participation_and_local_steps", "second_order", "work", "refusals")
SLOW = (
    "pooled_with_memory",
    "robust_and_random",
    "several_slices",
    "single_precision",
    "automatic_resumed_on_other_devices",
)


def run_on_eight(tmp_path_factory, names):
    return read_result(start_process("eight_devices.py", 8, tmp_path_factory.mktemp("checkpoints"), *names))


@pytest.fixture(scope="module")
def eight_device_results(tmp_path_factory):
    return run_on_eight(tmp_path_factory, QUICK)


@pytest.fixture(scope="module")
def slow_eight_device_results(tmp_path_factory):
    return run_on_eight(tmp_path_factory, SLOW)


def test_eight_devices_match_one(eight_device_results):
    assert eight_device_results["participation_and_local_steps"] <= 1e-12


def test_second_order_runs_on_eight_devices(eight_device_results):
    assert eight_device_results["second_order"] <= 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("run", SLOW)
def test_slow_runs_on_eight_devices(slow_eight_device_results, run):
    assert slow_eight_device_results[run] <= (1e-6 if run == "single_precision" else 1e-12)


def test_work_of_a_device_is_independent_of_device_count(eight_device_results):
    """With equally many clients on each device: the compiler's cost estimate and the number of rows."""
    single, eight = eight_device_results["work"]["1"], eight_device_results["work"]["8"]
    assert single["flops"] / eight["flops"] >= 0.9
    assert set(eight["rows"]) == set(single["rows"]) == {16 * 30}


def test_round_has_two_all_reduces(eight_device_results):
    assert eight_device_results["work"]["8"]["sums"] == 2
    assert eight_device_results["work"]["8"]["others"] == 0


@pytest.mark.parametrize(
    ("case", "message"),
    {
        "more than clients": r"devices must be at most as many as clients \(5\), but there are 8",
        "twice": "devices must be different",
        "too many": "devices must be at most 8, the number that JAX has, but is 9",
        "none": "devices must be 'all', a number, or some of",
        "word": "devices must be one of 'all', but is 'most'",
    }.items(),
)
def test_invalid_devices_are_rejected(eight_device_results, case, message):
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(eight_device_results["refusals"][case])


def test_several_processes_are_rejected(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ValueError, match="devices must be None with several JAX processes, but there are 2"):
        check_devices("all", clients=5)


@pytest.mark.slow
def test_one_device_by_name(x64):
    data, owner = regression()
    problem, clients = ss.Problem(least_squares, two_constraints, jnp.zeros(4)), client_data(data, owner)
    start = jax.device_put(jnp.zeros(4), jax.devices()[0])  # bound to a device
    method = ss.SoftmaxSGM(alpha=20.0, step_size=0.1, tolerance=0.05)
    options = {"rounds": 20, "participation": 0.5, "batch_size": 4, "progress": False}
    default = flat.solve(problem, clients, method, **options)
    on_device = flat.solve(ss.Problem(least_squares, two_constraints, start), clients, method, devices=1, **options)
    np.testing.assert_allclose(on_device.params, default.params, rtol=1e-12, atol=1e-14)
    np.testing.assert_array_equal(on_device.history.feasible, default.history.feasible)
    on = [
        flat.solve(problem, clients, method, devices=d, warm_start=result, **options)
        for d, result in ((None, default), (1, on_device))
    ]
    np.testing.assert_allclose(on[1].params, on[0].params, rtol=1e-12, atol=1e-14)


@pytest.mark.slow
def test_other_random_generators_match(x64_isolated):
    """If random words of a range cannot be generated separately, all are generated."""
    data, owner = regression()
    problem, clients = ss.Problem(least_squares, two_constraints, jnp.zeros(4)), client_data(data, owner)
    method = ss.SoftmaxSGM(alpha=20.0, step_size=0.1, tolerance=0.05)
    options = {"rounds": 20, "participation": 0.5, "batch_size": 4, "progress": False}
    with jax.default_prng_impl("rbg"):
        default, on_device = (flat.solve(problem, clients, method, devices=devices, **options) for devices in (None, 1))
    np.testing.assert_allclose(on_device.params, default.params, rtol=1e-12, atol=1e-14)
