"""Batches of experiments: several processes, failures, interruptions, kills and continued runs."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import small_experiments
from typer.testing import CliRunner

from softswitch.cli import app
from softswitch_experiments.paper import EXPERIMENTS, batch, outputs, sources
from softswitch_experiments.paper.batch import Batch, estimate_makespan, format_duration
from softswitch_experiments.paper.outputs import Saved
from softswitch_experiments.paper.workers import Failed

HERE = Path(__file__).parent
MODULE = "small_experiments"
SMALL = small_experiments.EXPERIMENTS


@pytest.fixture
def log(tmp_path, monkeypatch):
    """Which experiments ran, in their processes."""
    file = tmp_path / "log"
    file.touch()
    monkeypatch.setenv("LOG", str(file))
    return lambda: [line.split()[0] for line in file.read_text().splitlines()]


def batch_of(*names, out, **options):
    return Batch([SMALL[name] for name in names], out, module=MODULE, **options)


def outcomes(own):
    return {outcome.name: outcome for outcome in own.run() if outcome is not None}


def test_failures_do_not_keep_the_others_from_running(tmp_path, log):
    out = tmp_path / "out"
    found = outcomes(batch_of("first", "bad", "killed", "after", "second", out=out, jobs=2))
    assert {name for name, one in found.items() if isinstance(one, Saved)} == {"first", "second", "after"}
    assert "two and two make five" in found["bad"].reason
    assert "signal 9" in found["killed"].reason
    assert sorted(path.name for path in out.iterdir()) == ["after", "first", "second"]
    assert sorted(log()) == ["after", "bad", "first", "killed", "second"]
    again = batch_of("first", "bad", "killed", "after", "second", out=out)
    assert [written.name for written in again.reused] == ["first", "after", "second"]
    assert sorted(again.names) == ["bad", "killed"]


def test_only_the_same_settings_and_whole_outputs_are_kept(tmp_path, log, monkeypatch):
    def kept(**options):
        return [one.name for one in batch_of("first", out=tmp_path / "out", **options).reused]

    (written,) = batch_of("first", out=tmp_path / "out", quick=True).run()
    assert not written.reused
    (again,) = batch_of("first", out=tmp_path / "out", quick=True).reused
    assert again.reused
    assert again.claims == written.claims
    assert again.files == written.files
    assert kept(quick=True) == kept(quick=True, seeds=2) == ["first"]
    assert kept(quick=True, seeds=3) == kept() == kept(quick=True, force=True) == []
    with monkeypatch.context() as other:
        other.setattr(outputs, "digest", lambda run: "another")
        assert kept(quick=True) == []
    (tmp_path / "out" / "first" / "numbers.csv").unlink()
    assert kept(quick=True) == []
    assert log() == ["first"]


def test_another_number_of_seeds_takes_the_place_of_the_former(tmp_path, log):
    for seeds in (1, 3):
        list(batch_of("first", out=tmp_path / "out", seeds=seeds).run())
    assert len((tmp_path / "out" / "first" / "numbers.csv").read_text().splitlines()) == 1 + 3
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["first"]
    assert log() == ["first", "first"]


def test_the_digest_is_of_what_an_experiment_imports():
    tradeoff = sources.import_closure(sources.defining_modules(EXPERIMENTS["alpha-tradeoff"].run))
    assert {
        "softswitch.engine.solve",
        "softswitch.methods.weighting",
        "softswitch_experiments.paper.experiment",
    } <= tradeoff
    assert not any("safe_rl" in name or name.startswith("softswitch.cli.") for name in tradeoff)
    comparison = sources.defining_modules(EXPERIMENTS["np-comparison"].run)
    assert comparison == {
        "softswitch_experiments.paper.comparison",
        "softswitch_experiments.paper.np_study",
    }
    digests = {name: sources.digest(one.run) for name, one in EXPERIMENTS.items()}
    assert digests["np-comparison"] != digests["fair-comparison"]


def test_the_digest_changes_with_a_file(monkeypatch):
    run = EXPERIMENTS["alpha-tradeoff"].run
    before, plain = sources.digest(run), sources._source
    changed = {"softswitch.methods.weighting": b"# another text"}
    monkeypatch.setattr(sources, "_source", lambda name: changed.get(name) or plain(name))
    assert sources.digest(run) != before
    changed = {"softswitch_experiments.paper.safe_rl_study": b"# another text"}
    assert sources.digest(run) == before


PROGRAM = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs the tests may ignore it, and hand that down
from functools import partial
import softswitch_experiments.paper, softswitch_experiments.paper.batch as batch
import small_experiments
softswitch_experiments.paper.EXPERIMENTS = small_experiments.EXPERIMENTS
for name in ("bad", "killed", "after"):
    del small_experiments.EXPERIMENTS[name]
batch.Batch = partial(batch.Batch, module="small_experiments")
from softswitch.cli import app
app()
"""


def start(out, writing, jobs):
    path = os.pathsep.join([str(HERE), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path, "WRITING": str(writing)}
    command = [sys.executable, "-c", PROGRAM, "paper", "all", "--quick", "--out", str(out), "--jobs", str(jobs)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True)


def until(condition, seconds=300):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.05)


def gone(process):
    try:
        return (Path("/proc") / str(process) / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("jobs", [1, 2])
def test_killed_interrupted_and_continued(tmp_path, log, jobs):
    out = tmp_path / "out"

    def processes():
        return {int(line.split()[1]) for line in (tmp_path / "log").read_text().splitlines()}

    def in_the_midst():
        return "writing" in log() and (out / "first").exists() and (out / "second").exists()

    program = start(out, 600, jobs)
    until(in_the_midst)
    assert list(out.glob(".slow.*.tmp"))
    program.kill()  # the program alone: its processes have to notice
    program.communicate()
    until(lambda: all(map(gone, processes())))
    assert not (out / "slow").exists()
    whole = json.loads((out / "first" / "claims.json").read_text())

    (tmp_path / "log").write_text("")
    shutil.rmtree(out / "second")  # one alone would run in the program itself, which waits until it is written
    program = start(out, 600, jobs)
    until(in_the_midst)
    program.send_signal(signal.SIGINT)
    said, _ = program.communicate(timeout=300)
    assert program.returncode == 130
    assert "the same command runs the remaining ones" in said
    assert all(map(gone, processes()))
    assert not list(out.glob(".*"))

    program = start(out, 0, jobs)
    said, _ = program.communicate(timeout=300)
    assert program.returncode == 0
    assert "Kept results of the same code and settings: first, second" in said
    assert "3 of 6 claims held" in said
    assert (log().count("first"), log().count("second")) == (0, 1), "what was finished is not run again"
    assert json.loads((out / "first" / "claims.json").read_text()) == whole
    assert sorted(path.name for path in out.iterdir()) == ["first", "second", "slow"]


def test_the_command_tells_of_failures_and_of_what_it_kept(tmp_path, log, monkeypatch):
    monkeypatch.setattr("softswitch_experiments.paper.EXPERIMENTS", {name: SMALL[name] for name in ("first", "bad")})
    monkeypatch.setattr(batch, "Batch", partial(Batch, module=MODULE))

    def call(*more):
        return CliRunner().invoke(app, ["paper", *more, "--quick", "--out", str(tmp_path / "out")])

    done = call("all", "--jobs", "1")
    assert done.exit_code == 1
    assert "2 experiments: about " in done.output
    assert "bad failed; see above" in done.output
    assert "ArithmeticError: two and two make five" in done.output
    assert "1 of 2 claims held" in done.output
    kept = call("first")
    assert kept.exit_code == 0
    assert "first (2 seeds, 0.0 s, kept)" in kept.output
    assert "did NOT hold: or so — 2" in kept.output
    assert call("first", "--force").output.count("kept") == 0
    assert log().count("first") == 2


def test_ctrl_c_that_a_run_took_for_its_end_is_noticed(tmp_path, log, monkeypatch, request):
    """solve() makes a result of what it has; that is not the experiment's."""

    def swallows(scale):
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            return small_experiments.outcome()
        raise AssertionError("it was not interrupted")

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    one = small_experiments.Experiment("first", "the first", swallows)
    monkeypatch.setitem(SMALL, "first", one)
    with pytest.raises(KeyboardInterrupt):
        list(batch_of("first", out=tmp_path / "out").run())
    assert not (tmp_path / "out" / "first").exists()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_leftovers_of_living_processes_stay(tmp_path):
    theirs, ours = tmp_path / ".first.99999999.tmp", tmp_path / f".first.{os.getpid()}.tmp"
    for folder in (theirs, ours, tmp_path / ".git"):
        folder.mkdir()
    outputs.remove_unfinished(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([".git", ours.name])


def test_times_by_hand(tmp_path, monkeypatch):
    assert estimate_makespan([5, 4, 3, 3], 2) == 8
    assert estimate_makespan([5, 4, 3, 3], 1) == 15
    assert estimate_makespan([1], 2, [10, 2]) == 10
    assert estimate_makespan([], 2) == 0
    assert [format_duration(s) for s in (3.4, 99, 100, 3900, 7000)] == ["3 s", "99 s", "2 min", "65 min", "1 h 57 min"]
    known = {"full": {"first": 100.0, "second": 40.0}, "quick": {"first": 2.0}}
    monkeypatch.setattr(batch, "load_durations", lambda: known)
    first = SMALL["first"]
    assert batch.estimate_seconds(first, first.scale(20), tmp_path) == 200
    assert batch.estimate_seconds(first, first.scale(quick=True), tmp_path) == 2
    assert batch.estimate_seconds(SMALL["slow"], first.scale(), tmp_path) == 70, "the median of those that are known"
    (tmp_path / "first").mkdir()
    told = {"seconds": 30, "seeds": 3, "quick": False}
    (tmp_path / "first" / "claims.json").write_text(json.dumps(told))
    assert batch.estimate_seconds(first, first.scale(6), tmp_path) == 60, "what it took here before counts more"
    own = batch_of("second", "first", out=tmp_path, jobs=2)
    assert own.names == ["first", "second"], "the longest first"
    assert own.remaining() == 100


def test_every_experiment_has_its_time_in_the_table():
    for version in batch.load_durations().values():
        assert set(version) <= set(EXPERIMENTS)


def test_an_experiment_that_cannot_be_written_has_failed(tmp_path, log, monkeypatch):
    (tmp_path / "out").write_text("a file where the folder should be")
    (failed,) = batch_of("first", out=tmp_path / "out").run()
    assert isinstance(failed, Failed)
    assert "Error" in failed.reason
