"""A run that chooses for itself and is stopped goes on to exactly what it would have been; nothing is chosen again."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import softswitch as ss
from benchmarks import flat
from problems import client_data, least_squares, regression, softplus_level

RULE = ss.Automatic(tolerance=0.05, method=ss.SoftmaxSGM)
PROBLEM = ss.Problem(least_squares, softplus_level, jnp.zeros(4))
CLIENTS = client_data(*regression())
RUNS = {
    "all rows": {"rounds": 1500},  # the later cycles take more than one chunk of 250 rounds
    "batches and few clients": {"rounds": 900, "batch_size": 4, "value_batch_size": 8, "participation": 0.5},
    "local steps": {"rounds": 700, "batch_size": 8, "local_steps": 3},
}


def solve(folder=None, method=RULE, **options):
    keeps = None if folder is None else ss.Checkpoints(folder, every=0)
    fixed = {"seed": 3, "checkpoints": keeps, "lower_bound": False}
    return flat.solve(PROBLEM, CLIENTS, method, **fixed | options)


def ends(**options):
    """A run, and after how many rounds each of its chunks ended."""
    seen = []
    return solve(callbacks=[lambda chunk: seen.append(chunk.round) and None], **options), seen


@pytest.fixture(scope="module")
def whole(request):
    return RUNS[request.param], *ends(**RUNS[request.param])


def same(one, other):
    assert one.restarts == other.restarts
    assert (one.status, one.selected, str(one.method)) == (other.status, other.selected, str(other.method))
    jax.tree.map(np.testing.assert_array_equal, one.state, other.state)
    np.testing.assert_array_equal(one.params, other.params)
    np.testing.assert_array_equal(one.history.criterion, other.history.criterion)
    np.testing.assert_array_equal(one.history.objective, other.history.objective)


def at(round_number, then):
    return lambda chunk: then() if chunk.round == round_number else None


def interrupt():
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("whole", "then"),
    [
        pytest.param("all rows", interrupt, id="all rows, Ctrl-C"),
        pytest.param("batches and few clients", lambda: True, id="batches and few clients, a callback"),
        pytest.param("local steps", interrupt, id="local steps, Ctrl-C", marks=pytest.mark.slow),
        pytest.param("all rows", lambda: True, id="all rows, a callback", marks=pytest.mark.slow),
    ],
    indirect=["whole"],
)
def test_stopped_within_a_cycle_and_at_its_end(whole, tmp_path, then):
    options, expected, chunks = whole
    turns = [cycle.end for cycle in expected.restarts]
    within = [done for done in chunks if done not in turns]
    moments = [turns[0], turns[-2], *([within[0], within[-1]] if options["rounds"] > 1000 else [])]
    assert options["rounds"] < 1000 or within[-1] > turns[2]
    for done in moments:
        folder = tmp_path / str(done)
        stopped = solve(folder, callbacks=[at(done, then)], **options)
        assert stopped.status.code == "stopped"
        assert (len(stopped.history), stopped.restarts[-1].end) == (done, done)
        same(solve(folder, **options), expected)


@pytest.mark.slow
def test_stopped_again_and_again(tmp_path):
    """After every chunk: each is a run of its own."""
    options = RUNS["all rows"]
    expected, chunks = ends(**options)
    for done in chunks:
        again = solve(tmp_path, callbacks=[lambda _: True], **options)
        assert len(again.history) == done
    same(again, expected)
    same(solve(tmp_path, **options), expected)


def test_a_run_until_nothing_more_is_gained_stays_ended_and_can_be_made_longer(tmp_path):
    ended = solve(tmp_path)
    done = len(ended.history)
    assert ended.restarts[-1].end == done < 20_000
    same(solve(tmp_path), ended)
    longer = solve(tmp_path, rounds=done + 500)
    assert len(longer.history) == done + 500
    assert longer.restarts[: len(ended.restarts)] == ended.restarts, "what was chosen stays"
    assert len(longer.restarts) > len(ended.restarts)
    assert longer.worst_objective <= ended.worst_objective
    assert longer.status.ok
    same(solve(tmp_path, rounds=done + 500), longer)
    with pytest.raises(ValueError, match=f"rounds must be at least {done + 500}, "):
        solve(tmp_path, rounds=done)


def test_a_run_of_so_many_rounds_can_be_made_longer(tmp_path):
    """Its batches and first cycle were chosen for the rounds it was to have then; they stay."""
    short = solve(tmp_path, rounds=300)
    longer = solve(tmp_path, rounds=1500)
    assert longer.restarts[: len(short.restarts)] == short.restarts
    assert longer.restarts[-1].end == 1500
    free = solve(tmp_path)
    assert free.restarts[: len(longer.restarts)] == longer.restarts


def test_what_took_its_time_is_not_run_again(tmp_path):
    first = solve(tmp_path, seconds=1e-9)
    assert len(first.history) == first.restarts[0].end
    same(solve(tmp_path, seconds=1e-9), first)
    same(solve(tmp_path, rounds=None), solve())


def test_another_tolerance_is_refused(tmp_path):
    solve(tmp_path, rounds=100)
    with pytest.raises(ValueError, match="is a checkpoint of another run: its method is"):
        solve(tmp_path, method=ss.Automatic(tolerance=0.06, method=ss.SoftmaxSGM), rounds=100)


CHILD = """
import sys
import numpy as np
sys.path[:0] = {tests!r}
import test_resume
result = test_resume.solve({folder!r}, callbacks=[test_resume.slowly], **test_resume.RUNS["all rows"])
np.save({done!r}, result.params)
"""


def slowly(chunk):
    """Give the one who kills a moment to do it in."""
    print(chunk.round, flush=True)
    time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.parametrize("kills", [1, 3])
def test_killed_at_random_moments(tmp_path, kills):
    """kill -9 within or between cycles, chunks and saves."""
    folder, done = tmp_path / "run", tmp_path / "done.npy"
    here = Path(__file__).parent
    program = CHILD.format(tests=[str(here), str(here.parent)], folder=str(folder), done=str(done))
    chance = random.Random(1)
    for life in range(kills + 1):
        child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
        if life < kills:
            child.stdout.readline()  # the first chunk of this life is done
            time.sleep(chance.uniform(0, 0.6))
            child.send_signal(signal.SIGKILL)
        child.communicate()
        assert child.returncode == (0 if life == kills else -signal.SIGKILL)
    expected = solve(**RUNS["all rows"])
    np.testing.assert_array_equal(np.load(done), expected.params)
