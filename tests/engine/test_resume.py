"""Automatic runs that are stopped and resumed end exactly like uninterrupted ones."""

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
    "all rows": {"rounds": 1500},  # later restarts take more than one chunk of 250 rounds
    "batches and few clients": {"rounds": 900, "batch_size": 4, "value_batch_size": 8, "participation": 0.5},
    "local steps": {"rounds": 700, "batch_size": 8, "local_steps": 3},
}


def solve(folder=None, method=RULE, **options):
    checkpoints = None if folder is None else ss.Checkpoints(folder, every=0)
    fixed = {"seed": 3, "checkpoints": checkpoints, "lower_bound": False}
    return flat.solve(PROBLEM, CLIENTS, method, **fixed | options)


def solve_with_chunk_ends(**options):
    """Return a run and the round after each of its chunks."""
    chunk_ends = []
    return solve(callbacks=[lambda chunk: chunk_ends.append(chunk.round) and None], **options), chunk_ends


@pytest.fixture(scope="module")
def uninterrupted(request):
    return RUNS[request.param], *solve_with_chunk_ends(**RUNS[request.param])


def assert_same(one, other):
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
    ("uninterrupted", "then"),
    [
        pytest.param("all rows", interrupt, id="all rows, Ctrl-C"),
        pytest.param("batches and few clients", lambda: True, id="batches and few clients, a callback"),
        pytest.param("local steps", interrupt, id="local steps, Ctrl-C", marks=pytest.mark.slow),
        pytest.param("all rows", lambda: True, id="all rows, a callback", marks=pytest.mark.slow),
    ],
    indirect=["uninterrupted"],
)
def test_resume_within_and_between_restarts(uninterrupted, tmp_path, then):
    options, expected, chunks = uninterrupted
    restart_ends = [restart.end for restart in expected.restarts]
    within = [done for done in chunks if done not in restart_ends]
    stops = [restart_ends[0], restart_ends[-2], *([within[0], within[-1]] if options["rounds"] > 1000 else [])]
    assert options["rounds"] < 1000 or within[-1] > restart_ends[2]
    for done in stops:
        folder = tmp_path / str(done)
        stopped = solve(folder, callbacks=[at(done, then)], **options)
        assert stopped.status.code == "stopped"
        assert (len(stopped.history), stopped.restarts[-1].end) == (done, done)
        assert_same(solve(folder, **options), expected)


@pytest.mark.slow
def test_resume_after_every_chunk(tmp_path):
    """Stop after every chunk, and resume in a new run."""
    options = RUNS["all rows"]
    expected, chunks = solve_with_chunk_ends(**options)
    for done in chunks:
        resumed = solve(tmp_path, callbacks=[lambda _: True], **options)
        assert len(resumed.history) == done
    assert_same(resumed, expected)
    assert_same(solve(tmp_path, **options), expected)


def test_converged_run_can_be_extended(tmp_path):
    ended = solve(tmp_path)
    done = len(ended.history)
    assert ended.restarts[-1].end == done < 20_000
    assert_same(solve(tmp_path), ended)
    longer = solve(tmp_path, rounds=done + 500)
    assert len(longer.history) == done + 500
    assert longer.restarts[: len(ended.restarts)] == ended.restarts, "earlier restarts are unchanged"
    assert len(longer.restarts) > len(ended.restarts)
    assert longer.worst_objective <= ended.worst_objective
    assert longer.status.ok
    assert_same(solve(tmp_path, rounds=done + 500), longer)
    with pytest.raises(ValueError, match=f"rounds must be at least {done + 500}, "):
        solve(tmp_path, rounds=done)


def test_run_with_fixed_rounds_can_be_extended(tmp_path):
    """The batches and first restart, which were chosen for fewer rounds, are kept."""
    short = solve(tmp_path, rounds=300)
    longer = solve(tmp_path, rounds=1500)
    assert longer.restarts[: len(short.restarts)] == short.restarts
    assert longer.restarts[-1].end == 1500
    free = solve(tmp_path)
    assert free.restarts[: len(longer.restarts)] == longer.restarts


def test_timed_out_run_is_not_repeated(tmp_path):
    first = solve(tmp_path, seconds=1e-9)
    assert len(first.history) == first.restarts[0].end
    assert_same(solve(tmp_path, seconds=1e-9), first)
    assert_same(solve(tmp_path, rounds=None), solve())


def test_changed_tolerance_is_rejected(tmp_path):
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
    """Sleep, so that the parent process can kill this one."""
    print(chunk.round, flush=True)
    time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.parametrize("kills", [1, 3])
def test_resume_after_kill(tmp_path, kills):
    """Kill a run within or between restarts, chunks and saves."""
    folder, done = tmp_path / "run", tmp_path / "done.npy"
    here = Path(__file__).parent
    program = CHILD.format(tests=[str(here), str(here.parent)], folder=str(folder), done=str(done))
    generator = random.Random(1)
    for attempt in range(kills + 1):
        child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
        if attempt < kills:
            child.stdout.readline()  # this process has finished its first chunk
            time.sleep(generator.uniform(0, 0.6))
            child.send_signal(signal.SIGKILL)
        child.communicate()
        assert child.returncode == (0 if attempt == kills else -signal.SIGKILL)
    expected = solve(**RUNS["all rows"])
    np.testing.assert_array_equal(np.load(done), expected.params)
