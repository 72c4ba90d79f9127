"""Stopped, killed and damaged runs resume to the exact result of an uninterrupted run."""

import random
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import softswitch as ss
from benchmarks import flat
from problems import client_data, least_squares, regression, softplus_level
from softswitch.support.files import write_atomically

ROUNDS = 900  # chunks of 250
RULE = ss.SoftmaxSGM(alpha=20.0, step_size=0.01, optimizer=optax.adam, tolerance=0.1)


def problem():
    return ss.Problem(least_squares, softplus_level, jnp.zeros(4))


def clients():
    return client_data(*regression())


def solve(folder=None, method=RULE, every=0.0, **options):
    options = {"rounds": ROUNDS, "seed": 3, "record_clients": True, "eval_every": 100} | options
    keeps = None if folder is None else ss.Checkpoints(folder, every=every)
    return flat.solve(problem(), clients(), method, checkpoints=keeps, **options)


@pytest.fixture(scope="module")
def uninterrupted():
    return solve()


def assert_same_result(actual, expected):
    for name in ("params", "last", "best", "client_objective", "client_constraint"):
        np.testing.assert_array_equal(getattr(actual, name), getattr(expected, name))
    for name in ("objective", "constraint", "criterion", "feasible", "worst_client", "gradient_evaluations"):
        np.testing.assert_array_equal(getattr(actual.history, name), getattr(expected.history, name))
    for name in ("clients", "objective", "constraint"):
        np.testing.assert_array_equal(
            getattr(actual.history.per_client, name), getattr(expected.history.per_client, name)
        )
    np.testing.assert_array_equal(actual.history.full_rounds, expected.history.full_rounds)
    np.testing.assert_array_equal(actual.history.full.objective, expected.history.full.objective)
    assert (actual.status, actual.selected) == (expected.status, expected.selected)


def make_callback(chunks, action):
    """Return a callback that acts after this number of chunks."""
    chunks_seen = []

    def callback(chunk):
        chunks_seen.append(chunk.round)
        return action() if len(chunks_seen) == chunks else None

    return callback


def interrupt():
    raise KeyboardInterrupt


def test_checkpoints_do_not_change_result(uninterrupted, tmp_path):
    assert_same_result(solve(tmp_path), uninterrupted)
    assert [file.name for file in sorted(tmp_path.glob("[!.]*"))] == [
        "round-000000750.safetensors",
        "round-000000900.safetensors",
    ]
    assert_same_result(solve(tmp_path), uninterrupted)  # already complete: no rounds remain


def test_concurrent_run_in_same_folder_is_rejected(uninterrupted, tmp_path):
    errors = []

    def start_second(chunk):
        with pytest.raises(ValueError, match="in use by another run; wait until") as error:
            solve(tmp_path)
        errors.append(error)

    assert_same_result(solve(tmp_path, callbacks=[start_second]), uninterrupted)
    assert len(errors) == 4
    assert_same_result(solve(tmp_path), uninterrupted)  # the lock has been released


@pytest.mark.parametrize(
    ("chunks", "action"),
    [
        (1, interrupt),
        (2, lambda: True),
        *(pytest.param(chunks, interrupt, marks=pytest.mark.slow) for chunks in (2, 3)),
        *(pytest.param(chunks, lambda: True, marks=pytest.mark.slow) for chunks in (1, 3)),
    ],
)
def test_stopped_run_has_result_and_checkpoint(uninterrupted, tmp_path, chunks, action):
    stopped = solve(tmp_path, every=1e6, callbacks=[make_callback(chunks, action)])
    assert stopped.status.code == "stopped"
    assert len(stopped.history) == 250 * chunks
    assert np.isfinite(stopped.params).all()
    recorded = []
    assert_same_result(
        solve(tmp_path, callbacks=[lambda chunk: recorded.append((chunk.round, chunk.switch_share))]), uninterrupted
    )
    assert recorded[0][0] == min(250 * (chunks + 1), ROUNDS)
    assert recorded[-1][1] == pytest.approx(uninterrupted.history.switch_share)


def test_stateful_method_resumes(tmp_path):
    method = ss.PrimalDual(multiplier=0.5, dual_step_size=0.05, step_size=0.01, tolerance=0.1)
    expected = solve(method=method)
    solve(tmp_path, method, callbacks=[make_callback(2, interrupt)])
    assert_same_result(solve(tmp_path, method), expected)


def test_diverged_run_stays_diverged(tmp_path):
    method = ss.SoftmaxSGM(alpha=20.0, step_size=1e30, tolerance=0.1)
    first = solve(tmp_path, method)
    assert first.status.code == "diverged"
    assert solve(tmp_path, method).status == first.status


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "text", "word"])
def test_damaged_checkpoint_is_skipped(uninterrupted, tmp_path, damage):
    solve(tmp_path, callbacks=[make_callback(2, interrupt)])
    *_, previous, newest = sorted(tmp_path.iterdir())
    content = bytearray(newest.read_bytes())
    if damage == "flip":
        content[-100] ^= 1
    if damage == "word":
        position = content.index(b'"done\\": 500')
        content[position + 8] ^= 1  # 400
    newest.write_bytes({"cut": content[: len(content) // 2], "empty": b"", "text": b"round 500"}.get(damage, content))
    recorded = []
    assert_same_result(solve(tmp_path, callbacks=[lambda chunk: recorded.append(chunk.round)]), uninterrupted)
    assert recorded[0] == 500  # from round 250, the previous checkpoint
    assert previous.name == "round-000000250.safetensors"


def test_run_restarts_if_all_checkpoints_are_damaged(uninterrupted, tmp_path):
    solve(tmp_path, callbacks=[make_callback(2, interrupt)])
    for file in tmp_path.iterdir():
        file.write_bytes(b"")
    assert_same_result(solve(tmp_path), uninterrupted)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 4}, "its seed is 3, not 4"),
        ({"method": ss.SoftmaxSGM(alpha=21.0, step_size=0.01, optimizer=optax.adam, tolerance=0.1)}, "its method is"),
        ({"local_steps": 2}, "its local_steps is 1, not 2"),
        ({"record_clients": False}, "its record_clients is True, not False"),
    ],
)
def test_checkpoint_of_other_request_is_rejected(tmp_path, changes, message):
    solve(tmp_path, callbacks=[make_callback(1, interrupt)])
    with pytest.raises(ValueError, match=f"is a checkpoint of another run: {message}"):
        solve(tmp_path, **changes)


def test_other_data_is_rejected(tmp_path):
    solve(tmp_path, callbacks=[make_callback(1, interrupt)])
    data, owner = regression()
    data["a"] = data["a"] * 1.01
    with pytest.raises(ValueError, match="the clients' data differs; use another folder"):
        flat.solve(
            problem(),
            client_data(data, owner),
            RULE,
            rounds=ROUNDS,
            seed=3,
            record_clients=True,
            eval_every=100,
            checkpoints=ss.Checkpoints(tmp_path),
        )


def test_other_function_with_same_name_is_rejected(tmp_path):
    def level(offset):
        return lambda w, batch: softplus_level(w, batch) - offset

    for offset, is_rejected in ((0.0, False), (0.0, False), (0.1, True)):
        other_problem = ss.Problem(least_squares, level(offset), jnp.zeros(4))
        settings = {"rounds": 20, "checkpoints": ss.Checkpoints(tmp_path)}
        if is_rejected:
            with pytest.raises(ValueError, match=r"the computation .* differs"):
                flat.solve(other_problem, clients(), RULE, **settings)
        else:
            flat.solve(other_problem, clients(), RULE, **settings)


SCHEDULE, LONGER_SCHEDULE = optax.cosine_decay_schedule(0.01, 900), optax.cosine_decay_schedule(0.01, 901)


@pytest.mark.parametrize(
    "method",
    [
        lambda other_method: ss.SoftmaxSGM(
            alpha=20.0, step_size=LONGER_SCHEDULE if other_method else SCHEDULE, tolerance=0.1
        ),
        lambda other_method: ss.SoftmaxSGM(
            alpha=20.0,
            step_size=0.1,
            tolerance=0.1,
            optimizer=(lambda step: optax.sgd(step * 0.001)) if other_method else (lambda step: optax.sgd(step)),
        ),
        lambda other_method: ss.SoftmaxSGM(
            alpha=20.0, step_size=0.1, local_step_size=lambda k: 0.1 / (1 + k + other_method), tolerance=0.1
        ),
    ],
    ids=["another schedule", "another lambda", "another closure"],
)
def test_other_method_with_same_repr_is_rejected(tmp_path, method):
    """Names and reprs are equal, but schedules, bodies of lambdas or closures differ."""
    settings = {"rounds": 20, "local_steps": 2}
    flat.solve(problem(), clients(), method(0), checkpoints=ss.Checkpoints(tmp_path), **settings)
    flat.solve(problem(), clients(), method(0), checkpoints=ss.Checkpoints(tmp_path), **settings)
    with pytest.raises(ValueError, match=r"the computation .* differs"):
        flat.solve(problem(), clients(), method(1), checkpoints=ss.Checkpoints(tmp_path), **settings)


def test_other_array_in_closure_is_rejected(tmp_path):
    def make_problem(target):
        return ss.Problem(lambda w, b: least_squares(w - target, b), softplus_level, jnp.zeros(4))

    first, second = jnp.arange(4.0), jnp.arange(4.0) + 1
    flat.solve(make_problem(first), clients(), RULE, rounds=20, checkpoints=ss.Checkpoints(tmp_path))
    flat.solve(make_problem(jnp.arange(4.0)), clients(), RULE, rounds=20, checkpoints=ss.Checkpoints(tmp_path))
    with pytest.raises(ValueError, match="or arrays in their closures"):
        flat.solve(make_problem(second), clients(), RULE, rounds=20, checkpoints=ss.Checkpoints(tmp_path))


@jax.tree_util.register_dataclass
@dataclass
class MinimumDomain:
    low: jax.Array

    def project(self, w):
        return jnp.maximum(w, self.low)

    def __repr__(self):
        return "AtLeast"


@dataclass(frozen=True, kw_only=True)
class SilentMethod(ss.SoftmaxSGM):
    def __str__(self):
        return "Mute"


def test_hidden_numbers_are_compared(tmp_path):
    """These numbers are arguments of the compiled program, not constants."""

    def bounded(low):
        return ss.Problem(least_squares, softplus_level, jnp.zeros(4), MinimumDomain(jnp.full(4, low)))

    flat.solve(bounded(-1.0), clients(), RULE, rounds=20, checkpoints=ss.Checkpoints(tmp_path / "domain"))
    with pytest.raises(ValueError, match="a number in the method, the domain or the memory differs"):
        flat.solve(bounded(-0.5), clients(), RULE, rounds=20, checkpoints=ss.Checkpoints(tmp_path / "domain"))
    for alpha, is_rejected in ((1.0, False), (50.0, True)):
        method = SilentMethod(alpha=alpha, step_size=0.1, tolerance=0.1)
        with pytest.raises(ValueError, match="a number in the method") if is_rejected else nullcontext():
            flat.solve(problem(), clients(), method, rounds=20, checkpoints=ss.Checkpoints(tmp_path / "method"))


def test_optimizer_with_random_key_is_restored(tmp_path):
    def noisy(step_size):
        return optax.noisy_sgd(step_size, eta=0.01, key=jax.random.key(5))

    method = ss.SoftmaxSGM(alpha=20.0, step_size=0.01, optimizer=noisy, tolerance=0.1)
    options = {"rounds": 300, "seed": 3}
    reference = flat.solve(problem(), clients(), method, **options)
    stops = [make_callback(1, interrupt)]
    flat.solve(problem(), clients(), method, callbacks=stops, checkpoints=ss.Checkpoints(tmp_path, every=0), **options)
    resumed = flat.solve(problem(), clients(), method, checkpoints=ss.Checkpoints(tmp_path, every=0), **options)
    np.testing.assert_array_equal(resumed.last, reference.last)


def test_finished_run_can_be_extended(uninterrupted, tmp_path):
    solve(tmp_path, rounds=300)
    recorded = []
    extended = solve(tmp_path, callbacks=[lambda chunk: recorded.append(chunk.round)])
    assert recorded[0] == 550, "from round 300"
    assert_same_result(extended, uninterrupted)
    with pytest.raises(ValueError, match=r"rounds must be at least 900, .* but is 300"):
        solve(tmp_path, rounds=300)


@pytest.mark.parametrize("method", [RULE, ss.Automatic(tolerance=0.1)], ids=["step size given", "auto-tuned"])
def test_extended_run_has_evaluation_interval_of_new_length(tmp_path, method):
    options = {"eval_every": None, "batch_size": 8, "lower_bound": False}
    solve(tmp_path, method, rounds=100, **options)
    extended, reference = (solve(folder, method, rounds=400, **options) for folder in (tmp_path, None))
    evaluated = reference.history.full_rounds
    assert np.diff(evaluated).min() > 5, "a run of 100 rounds is evaluated every 5 rounds"
    later_rounds = extended.history.full_rounds[extended.history.full_rounds >= 100]
    np.testing.assert_array_equal(later_rounds, evaluated[evaluated >= 100])


def test_resume_with_other_client_batch_size(uninterrupted, tmp_path):
    solve(tmp_path, rounds=300, client_batch_size=1)
    resumed = solve(tmp_path, client_batch_size=3)
    assert len(resumed.history) == ROUNDS
    np.testing.assert_allclose(resumed.last, uninterrupted.last, rtol=1e-4)


def test_extension_of_average_over_last_rounds(tmp_path):
    solve(tmp_path, rounds=300, average_last=0.5)
    with pytest.raises(ValueError, match="begin with round 200, but the checkpoint after 300 rounds has averaged"):
        solve(tmp_path, rounds=400, average_last=0.5)
    assert_same_result(solve(tmp_path, rounds=700, average_last=0.5), solve(rounds=700, average_last=0.5))


def test_checkpoint_of_other_version_is_rejected(tmp_path):
    solve(tmp_path, rounds=20)
    (file,) = tmp_path.glob("round-*")
    file.write_bytes(file.read_bytes().replace(b"softswitch checkpoint 7", b"softswitch checkpoint 1"))
    with pytest.raises(ValueError, match="was written by another version of softswitch"):
        solve(tmp_path, rounds=20)


def test_records_are_moved_to_host_and_joined_once(monkeypatch, tmp_path):
    from softswitch.engine import loop

    joined, original_join = [], loop.join
    monkeypatch.setattr(loop, "join", lambda records, done: joined.append(len(records)) or original_join(records, done))
    solve(tmp_path, rounds=750)
    assert joined == [1, 2, 2, 1], "each checkpoint joins only the new records"


def test_saving_interval(tmp_path):
    assert ss.Checkpoints(tmp_path, every=0).is_due()
    assert not ss.Checkpoints(tmp_path, every=60).is_due()
    with pytest.raises(ValueError, match="every must be a finite number and >= 0, but is -1"):
        ss.Checkpoints(tmp_path, every=-1)
    with pytest.raises(TypeError, match="checkpoints must be a Checkpoints, but is 'here'"):
        flat.solve(problem(), clients(), RULE, checkpoints="here")


CHILD = """
import sys
import numpy as np
sys.path[:0] = {tests!r}
import test_checkpoints
result = test_checkpoints.solve({folder!r}, callbacks=[lambda chunk: test_checkpoints.sleep_briefly(chunk)])
np.save({output_file!r}, result.params)
"""


def sleep_briefly(chunk):
    """Sleep so that the process can be killed during a chunk."""
    print(chunk.round, flush=True)
    time.sleep(0.3)


@pytest.mark.parametrize("max_kills", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_resume_after_random_kills(uninterrupted, tmp_path, max_kills):
    """Send SIGKILL within or between chunks and saves repeatedly until the run is complete."""
    folder, output_file = tmp_path / "run", tmp_path / "done.npy"
    folder_of_tests = Path(__file__).parent
    program = CHILD.format(
        tests=[str(folder_of_tests), str(folder_of_tests.parent)], folder=str(folder), output_file=str(output_file)
    )
    generator, kills = random.Random(1), 0
    while not output_file.exists():
        child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
        child.stdout.readline()  # the first chunk of this process is complete
        if kills < max_kills:
            time.sleep(generator.uniform(0, 0.4))
            child.send_signal(signal.SIGKILL)
            kills += 1
        child.communicate()
        assert child.returncode in (0, -signal.SIGKILL)
    np.testing.assert_array_equal(np.load(output_file), uninterrupted.params)
    assert kills == max_kills


def test_failed_replacement_keeps_old_file(tmp_path, monkeypatch):
    file = tmp_path / "there"
    write_atomically(file, b"old")

    def fail(self, target):
        raise OSError("no")

    monkeypatch.setattr(type(file), "replace", fail)
    with pytest.raises(OSError, match="no"):
        write_atomically(file, b"new and longer")
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]


def test_identity_is_read_without_arrays(tmp_path, monkeypatch):
    """Damaged arrays do not matter, because all checkpoints of a folder have one identity."""
    solve(tmp_path, callbacks=[make_callback(2, interrupt)])
    checkpoints = ss.Checkpoints(tmp_path)
    identity = checkpoints.saved_identity("method")
    assert "SoftmaxSGM" in identity

    def fail(*_):
        raise AssertionError("arrays were read")

    monkeypatch.setattr("softswitch.results.checkpoints.fingerprint", fail)
    *_, newest = sorted(tmp_path.glob("round-*"))
    content = bytearray(newest.read_bytes())
    content[-100] ^= 1
    newest.write_bytes(content)
    assert checkpoints.saved_identity("method") == identity
    assert checkpoints.saved_identity("colour") is None
    for file in tmp_path.glob("round-*"):
        file.write_bytes(b"")
    assert checkpoints.saved_identity("method") is None
