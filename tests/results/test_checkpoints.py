"""A run that is stopped, killed or damaged goes on to exactly what it would have been."""

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
def whole():
    return solve()


def same(one, other):
    for name in ("params", "last", "best", "client_objective", "client_constraint"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    for name in ("objective", "constraint", "criterion", "feasible", "worst_client", "gradient_evaluations"):
        np.testing.assert_array_equal(getattr(one.history, name), getattr(other.history, name))
    for name in ("clients", "objective", "constraint"):
        np.testing.assert_array_equal(getattr(one.history.per_client, name), getattr(other.history.per_client, name))
    np.testing.assert_array_equal(one.history.full_rounds, other.history.full_rounds)
    np.testing.assert_array_equal(one.history.full.objective, other.history.full.objective)
    assert (one.status, one.selected) == (other.status, other.selected)


def after(chunks, then):
    """A callback that does something after so many chunks."""
    seen = []

    def watch(chunk):
        seen.append(chunk.round)
        return then() if len(seen) == chunks else None

    return watch


def interrupt():
    raise KeyboardInterrupt


def test_keeping_checkpoints_changes_nothing(whole, tmp_path):
    same(solve(tmp_path), whole)
    assert [file.name for file in sorted(tmp_path.glob("[!.]*"))] == [
        "round-000000750.safetensors",
        "round-000000900.safetensors",
    ]
    same(solve(tmp_path), whole)  # already done: nothing is left to run


def test_a_second_run_in_the_same_folder_is_refused(whole, tmp_path):
    refused = []

    def second(chunk):
        with pytest.raises(ValueError, match="in use by another run; wait until") as error:
            solve(tmp_path)
        refused.append(error)

    same(solve(tmp_path, callbacks=[second]), whole)
    assert len(refused) == 4
    same(solve(tmp_path), whole)  # and nobody has it any more


@pytest.mark.parametrize(
    ("chunks", "then"),
    [
        (1, interrupt),
        (2, lambda: True),
        *(pytest.param(chunks, interrupt, marks=pytest.mark.slow) for chunks in (2, 3)),
        *(pytest.param(chunks, lambda: True, marks=pytest.mark.slow) for chunks in (1, 3)),
    ],
)
def test_ctrl_c_and_stopping_leave_a_result_and_a_checkpoint(whole, tmp_path, chunks, then):
    stopped = solve(tmp_path, every=1e6, callbacks=[after(chunks, then)])
    assert stopped.status.code == "stopped"
    assert len(stopped.history) == 250 * chunks
    assert np.isfinite(stopped.params).all()
    seen = []
    same(solve(tmp_path, callbacks=[lambda chunk: seen.append((chunk.round, chunk.switch_share))]), whole)
    assert seen[0][0] == min(250 * (chunks + 1), ROUNDS)
    assert seen[-1][1] == pytest.approx(whole.history.switch_share)


def test_a_rule_with_memory_goes_on_too(tmp_path):
    method = ss.PrimalDual(multiplier=0.5, dual_step_size=0.05, step_size=0.01, tolerance=0.1)
    expected = solve(method=method)
    solve(tmp_path, method, callbacks=[after(2, interrupt)])
    same(solve(tmp_path, method), expected)


def test_a_diverged_run_stays_diverged(tmp_path):
    method = ss.SoftmaxSGM(alpha=20.0, step_size=1e30, tolerance=0.1)
    first = solve(tmp_path, method)
    assert first.status.code == "diverged"
    assert solve(tmp_path, method).status == first.status


@pytest.mark.parametrize("harm", ["cut", "flip", "empty", "text", "word"])
def test_a_damaged_checkpoint_is_passed_over(whole, tmp_path, harm):
    solve(tmp_path, callbacks=[after(2, interrupt)])
    *_, older, newest = sorted(tmp_path.iterdir())
    content = bytearray(newest.read_bytes())
    if harm == "flip":
        content[-100] ^= 1
    if harm == "word":
        at = content.index(b'"done\\": 500')
        content[at + 8] ^= 1  # 400
    newest.write_bytes({"cut": content[: len(content) // 2], "empty": b"", "text": b"round 500"}.get(harm, content))
    seen = []
    same(solve(tmp_path, callbacks=[lambda chunk: seen.append(chunk.round)]), whole)
    assert seen[0] == 500  # from round 250 on, where the older one stands
    assert older.name == "round-000000250.safetensors"


def test_where_all_are_damaged_the_run_begins_anew(whole, tmp_path):
    solve(tmp_path, callbacks=[after(2, interrupt)])
    for file in tmp_path.iterdir():
        file.write_bytes(b"")
    same(solve(tmp_path), whole)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"seed": 4}, "its seed is 3, not 4"),
        ({"method": ss.SoftmaxSGM(alpha=21.0, step_size=0.01, optimizer=optax.adam, tolerance=0.1)}, "its method is"),
        ({"local_steps": 2}, "its local_steps is 1, not 2"),
        ({"record_clients": False}, "its record_clients is True, not False"),
    ],
)
def test_a_checkpoint_of_another_request_is_refused(tmp_path, changes, named):
    solve(tmp_path, callbacks=[after(1, interrupt)])
    with pytest.raises(ValueError, match=f"is a checkpoint of another run: {named}"):
        solve(tmp_path, **changes)


def test_other_data_is_refused(tmp_path):
    solve(tmp_path, callbacks=[after(1, interrupt)])
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


def test_another_function_of_the_same_name_is_refused(tmp_path):
    def level(offset):
        return lambda w, batch: softplus_level(w, batch) - offset

    for offset, refused in ((0.0, False), (0.0, False), (0.1, True)):
        asked = ss.Problem(least_squares, level(offset), jnp.zeros(4))
        settings = {"rounds": 20, "checkpoints": ss.Checkpoints(tmp_path)}
        if refused:
            with pytest.raises(ValueError, match=r"the computation .* differs"):
                flat.solve(asked, clients(), RULE, **settings)
        else:
            flat.solve(asked, clients(), RULE, **settings)


SLOW, SLOWER = optax.cosine_decay_schedule(0.01, 900), optax.cosine_decay_schedule(0.01, 901)


@pytest.mark.parametrize(
    "method",
    [
        lambda other: ss.SoftmaxSGM(alpha=20.0, step_size=SLOWER if other else SLOW, tolerance=0.1),
        lambda other: ss.SoftmaxSGM(
            alpha=20.0,
            step_size=0.1,
            tolerance=0.1,
            optimizer=(lambda step: optax.sgd(step * 0.001)) if other else (lambda step: optax.sgd(step)),
        ),
        lambda other: ss.SoftmaxSGM(
            alpha=20.0, step_size=0.1, local_step_size=lambda k: 0.1 / (1 + k + other), tolerance=0.1
        ),
    ],
    ids=["another schedule", "another lambda", "another closure"],
)
def test_a_rule_that_reads_the_same_and_computes_otherwise_is_refused(tmp_path, method):
    """Names and reprs are the same; schedules, bodies of lambdas and what they close over are not."""
    settings = {"rounds": 20, "local_steps": 2}
    flat.solve(problem(), clients(), method(0), checkpoints=ss.Checkpoints(tmp_path), **settings)
    flat.solve(problem(), clients(), method(0), checkpoints=ss.Checkpoints(tmp_path), **settings)
    with pytest.raises(ValueError, match=r"the computation .* differs"):
        flat.solve(problem(), clients(), method(1), checkpoints=ss.Checkpoints(tmp_path), **settings)


def test_a_function_that_closes_over_another_array_is_refused(tmp_path):
    def asked(target):
        return ss.Problem(lambda w, b: least_squares(w - target, b), softplus_level, jnp.zeros(4))

    first, second = jnp.arange(4.0), jnp.arange(4.0) + 1
    flat.solve(asked(first), clients(), RULE, rounds=20, checkpoints=ss.Checkpoints(tmp_path))
    flat.solve(asked(jnp.arange(4.0)), clients(), RULE, rounds=20, checkpoints=ss.Checkpoints(tmp_path))
    with pytest.raises(ValueError, match="or arrays in their closures"):
        flat.solve(asked(second), clients(), RULE, rounds=20, checkpoints=ss.Checkpoints(tmp_path))


@jax.tree_util.register_dataclass
@dataclass
class AtLeast:
    low: jax.Array

    def project(self, w):
        return jnp.maximum(w, self.low)

    def __repr__(self):
        return "AtLeast"


@dataclass(frozen=True, kw_only=True)
class Mute(ss.SoftmaxSGM):
    def __str__(self):
        return "Mute"


def test_numbers_that_no_text_shows_are_told_apart(tmp_path):
    """They are arguments of the program, not constants in it."""

    def bounded(low):
        return ss.Problem(least_squares, softplus_level, jnp.zeros(4), AtLeast(jnp.full(4, low)))

    flat.solve(bounded(-1.0), clients(), RULE, rounds=20, checkpoints=ss.Checkpoints(tmp_path / "domain"))
    with pytest.raises(ValueError, match="a number in the method, the domain or the memory differs"):
        flat.solve(bounded(-0.5), clients(), RULE, rounds=20, checkpoints=ss.Checkpoints(tmp_path / "domain"))
    for alpha, refused in ((1.0, False), (50.0, True)):
        method = Mute(alpha=alpha, step_size=0.1, tolerance=0.1)
        with pytest.raises(ValueError, match="a number in the method") if refused else nullcontext():
            flat.solve(problem(), clients(), method, rounds=20, checkpoints=ss.Checkpoints(tmp_path / "method"))


def test_over_flowers_grid_other_functions_and_data_are_refused_too(tmp_path):
    def run(asked, data):
        keeps = ss.Checkpoints(tmp_path, every=0)
        return flat.solve(asked, data, RULE, rounds=3, batch_size=None, engine="grid", checkpoints=keeps)

    run(problem(), clients())
    run(problem(), clients())
    other = ss.Problem(lambda w, b: 9 * least_squares(w, b), softplus_level, jnp.zeros(4))
    with pytest.raises(ValueError, match="its program of the clients is"):
        run(other, clients())
    data, owner = regression()
    with pytest.raises(ValueError, match="its clients of the clients is"):
        run(problem(), client_data({**data, "b": 7 * data["b"]}, owner))


def test_an_optimiser_with_a_random_key_is_kept_too(tmp_path):
    def noisy(step_size):
        return optax.noisy_sgd(step_size, eta=0.01, key=jax.random.key(5))

    method = ss.SoftmaxSGM(alpha=20.0, step_size=0.01, optimizer=noisy, tolerance=0.1)
    options = {"rounds": 300, "seed": 3}
    whole = flat.solve(problem(), clients(), method, **options)
    stops = [after(1, interrupt)]
    flat.solve(problem(), clients(), method, callbacks=stops, checkpoints=ss.Checkpoints(tmp_path, every=0), **options)
    on = flat.solve(problem(), clients(), method, checkpoints=ss.Checkpoints(tmp_path, every=0), **options)
    np.testing.assert_array_equal(on.last, whole.last)


def test_a_finished_run_is_extended_to_what_it_would_have_been(whole, tmp_path):
    solve(tmp_path, rounds=300)
    seen = []
    longer = solve(tmp_path, callbacks=[lambda chunk: seen.append(chunk.round)])
    assert seen[0] == 550, "from round 300 on"
    same(longer, whole)
    with pytest.raises(ValueError, match=r"rounds must be at least 900, .* but is 300"):
        solve(tmp_path, rounds=300)


@pytest.mark.parametrize("method", [RULE, ss.Automatic(tolerance=0.1)], ids=["step size given", "auto-tuned"])
def test_an_extended_run_evaluates_like_a_run_of_the_new_length(tmp_path, method):
    options = {"eval_every": None, "batch_size": 8, "lower_bound": False}
    solve(tmp_path, method, rounds=100, **options)
    extended, whole = (solve(folder, method, rounds=400, **options) for folder in (tmp_path, None))
    evaluated = whole.history.full_rounds
    assert np.diff(evaluated).min() > 5, "a run of 100 rounds is evaluated every 5 rounds"
    new = extended.history.full_rounds[extended.history.full_rounds >= 100]
    np.testing.assert_array_equal(new, evaluated[evaluated >= 100])


def test_a_checkpoint_resumes_with_another_client_batch_size(whole, tmp_path):
    solve(tmp_path, rounds=300, client_batch_size=1)
    resumed = solve(tmp_path, client_batch_size=3)
    assert len(resumed.history) == ROUNDS
    np.testing.assert_allclose(resumed.last, whole.last, rtol=1e-4)


def test_an_average_of_the_last_rounds_is_extended_where_it_begins_later(tmp_path):
    solve(tmp_path, rounds=300, average_last=0.5)
    with pytest.raises(ValueError, match="begin with round 200, but the checkpoint after 300 rounds has averaged"):
        solve(tmp_path, rounds=400, average_last=0.5)
    same(solve(tmp_path, rounds=700, average_last=0.5), solve(rounds=700, average_last=0.5))


def test_a_checkpoint_of_another_version_is_not_begun_anew(tmp_path):
    solve(tmp_path, rounds=20)
    (file,) = tmp_path.glob("round-*")
    file.write_bytes(file.read_bytes().replace(b"softswitch checkpoint 7", b"softswitch checkpoint 1"))
    with pytest.raises(ValueError, match="was written by another version of softswitch"):
        solve(tmp_path, rounds=20)


def test_records_do_not_stay_on_the_device_and_are_joined_once(monkeypatch, tmp_path):
    from softswitch.engine import loop

    joined, plain = [], loop.join
    monkeypatch.setattr(loop, "join", lambda records, done: joined.append(len(records)) or plain(records, done))
    solve(tmp_path, rounds=750)
    assert joined == [1, 2, 2, 1], "each checkpoint puts together what is new since the last"


def test_they_are_saved_as_often_as_asked(tmp_path):
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
result = test_checkpoints.solve({folder!r}, callbacks=[lambda chunk: test_checkpoints.slowly(chunk)])
np.save({done!r}, result.params)
"""


def slowly(chunk):
    """Give the one who kills a moment to do it in."""
    print(chunk.round, flush=True)
    time.sleep(0.3)


@pytest.mark.parametrize("most", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_killed_at_random_moments(whole, tmp_path, most):
    """kill -9 within or between chunks and saves, again and again, until the run is done."""
    folder, done = tmp_path / "run", tmp_path / "done.npy"
    here = Path(__file__).parent
    program = CHILD.format(tests=[str(here), str(here.parent)], folder=str(folder), done=str(done))
    chance, kills = random.Random(1), 0
    while not done.exists():
        child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
        child.stdout.readline()  # the first chunk of this life is done
        if kills < most:
            time.sleep(chance.uniform(0, 0.4))
            child.send_signal(signal.SIGKILL)
            kills += 1
        child.communicate()
        assert child.returncode in (0, -signal.SIGKILL)
    np.testing.assert_array_equal(np.load(done), whole.params)
    assert kills == most


def test_a_file_that_cannot_be_put_in_its_place_leaves_the_old_one(tmp_path, monkeypatch):
    file = tmp_path / "there"
    write_atomically(file, b"old")

    def fails(self, target):
        raise OSError("no")

    monkeypatch.setattr(type(file), "replace", fails)
    with pytest.raises(OSError, match="no"):
        write_atomically(file, b"new and longer")
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]
