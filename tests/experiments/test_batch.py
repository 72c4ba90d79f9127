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

TEST_FOLDER = Path(__file__).parent
MODULE = "small_experiments"
SMALL_EXPERIMENTS = small_experiments.EXPERIMENTS


@pytest.fixture
def log(tmp_path, monkeypatch):
    """Return a function that lists the experiments that ran, in any process."""
    file = tmp_path / "log"
    file.touch()
    monkeypatch.setenv("LOG", str(file))
    return lambda: [line.split()[0] for line in file.read_text().splitlines()]


def make_batch(*names, out, **options):
    return Batch([SMALL_EXPERIMENTS[name] for name in names], out, module=MODULE, **options)


def run_outcomes(experiment_batch):
    return {outcome.name: outcome for outcome in experiment_batch.run() if outcome is not None}


def test_failures_do_not_stop_other_experiments(tmp_path, log):
    out = tmp_path / "out"
    outcomes = run_outcomes(make_batch("first", "bad", "killed", "after", "second", out=out, jobs=2))
    assert {name for name, outcome in outcomes.items() if isinstance(outcome, Saved)} == {"first", "second", "after"}
    assert "two and two make five" in outcomes["bad"].reason
    assert "signal 9" in outcomes["killed"].reason
    assert sorted(path.name for path in out.iterdir()) == ["after", "first", "second"]
    assert sorted(log()) == ["after", "bad", "first", "killed", "second"]
    second_batch = make_batch("first", "bad", "killed", "after", "second", out=out)
    assert [result.name for result in second_batch.reused] == ["first", "after", "second"]
    assert sorted(second_batch.names) == ["bad", "killed"]


def test_complete_outputs_of_equal_settings_are_reused(tmp_path, log, monkeypatch):
    def reused_names(**options):
        return [result.name for result in make_batch("first", out=tmp_path / "out", **options).reused]

    (first_result,) = make_batch("first", out=tmp_path / "out", quick=True).run()
    assert not first_result.reused
    (reused,) = make_batch("first", out=tmp_path / "out", quick=True).reused
    assert reused.reused
    assert reused.claims == first_result.claims
    assert reused.files == first_result.files
    assert reused_names(quick=True) == reused_names(quick=True, seeds=2) == ["first"]
    assert reused_names(quick=True, seeds=3) == reused_names() == reused_names(quick=True, force=True) == []
    with monkeypatch.context() as patch:
        patch.setattr(outputs, "digest", lambda run: "another")
        assert reused_names(quick=True) == []
    (tmp_path / "out" / "first" / "numbers.csv").unlink()
    assert reused_names(quick=True) == []
    assert log() == ["first"]


def test_other_seed_count_replaces_output(tmp_path, log):
    for seeds in (1, 3):
        list(make_batch("first", out=tmp_path / "out", seeds=seeds).run())
    assert len((tmp_path / "out" / "first" / "numbers.csv").read_text().splitlines()) == 1 + 3
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["first"]
    assert log() == ["first", "first"]


def test_digest_depends_on_imports():
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
    digests = {name: sources.digest(experiment.run) for name, experiment in EXPERIMENTS.items()}
    assert digests["np-comparison"] != digests["fair-comparison"]


def test_digest_changes_with_file(monkeypatch):
    run = EXPERIMENTS["alpha-tradeoff"].run
    original, original_source = sources.digest(run), sources._source
    changes = {"softswitch.methods.weighting": b"# another text"}
    monkeypatch.setattr(sources, "_source", lambda name: changes.get(name) or original_source(name))
    assert sources.digest(run) != original
    changes = {"softswitch_experiments.paper.safe_rl_study": b"# another text"}
    assert sources.digest(run) == original


PROGRAM = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a parent that ignores it passes that on
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
    path = os.pathsep.join([str(TEST_FOLDER), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path, "WRITING": str(writing)}
    command = [sys.executable, "-c", PROGRAM, "paper", "all", "--quick", "--out", str(out), "--jobs", str(jobs)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True)


def wait_until(condition, seconds=300):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.05)


def has_ended(process):
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

    def is_in_progress():
        return "writing" in log() and (out / "first").exists() and (out / "second").exists()

    program = start(out, 600, jobs)
    wait_until(is_in_progress)
    assert list(out.glob(".slow.*.tmp"))
    program.kill()  # the program only: its processes must detect this
    program.communicate()
    wait_until(lambda: all(map(has_ended, processes())))
    assert not (out / "slow").exists()
    claims = json.loads((out / "first" / "claims.json").read_text())

    (tmp_path / "log").write_text("")
    shutil.rmtree(
        out / "second"
    )  # a single experiment would run in the program's process, which waits until it is written
    program = start(out, 600, jobs)
    wait_until(is_in_progress)
    program.send_signal(signal.SIGINT)
    output, _ = program.communicate(timeout=300)
    assert program.returncode == 130
    assert "the same command runs the remaining ones" in output
    assert all(map(has_ended, processes()))
    assert not list(out.glob(".*"))

    program = start(out, 0, jobs)
    output, _ = program.communicate(timeout=300)
    assert program.returncode == 0
    assert "Kept results of the same code and settings: first, second" in output
    assert "3 of 6 claims held" in output
    assert (log().count("first"), log().count("second")) == (0, 1), "finished experiments must not run again"
    assert json.loads((out / "first" / "claims.json").read_text()) == claims
    assert sorted(path.name for path in out.iterdir()) == ["first", "second", "slow"]


def test_command_reports_failures_and_reused_results(tmp_path, log, monkeypatch):
    monkeypatch.setattr(
        "softswitch_experiments.paper.EXPERIMENTS", {name: SMALL_EXPERIMENTS[name] for name in ("first", "bad")}
    )
    monkeypatch.setattr(batch, "Batch", partial(Batch, module=MODULE))

    def call(*arguments):
        return CliRunner().invoke(app, ["paper", *arguments, "--quick", "--out", str(tmp_path / "out")])

    invocation = call("all", "--jobs", "1")
    assert invocation.exit_code == 1
    assert "2 experiments: about " in invocation.output
    assert "bad failed; see above" in invocation.output
    assert "ArithmeticError: two and two make five" in invocation.output
    assert "1 of 2 claims held" in invocation.output
    second = call("first")
    assert second.exit_code == 0
    assert "first (2 seeds, 0.0 s, kept)" in second.output
    assert "did NOT hold: or so — 2" in second.output
    assert call("first", "--force").output.count("kept") == 0
    assert log().count("first") == 2


def test_interrupt_inside_solve_is_detected(tmp_path, log, monkeypatch, request):
    """solve() returns a partial result on an interrupt, which is not the experiment's result."""

    def run_interrupted(scale):
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            return small_experiments.outcome()
        raise AssertionError("it was not interrupted")

    old_handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, old_handler))
    experiment = small_experiments.Experiment("first", "the first", run_interrupted)
    monkeypatch.setitem(SMALL_EXPERIMENTS, "first", experiment)
    with pytest.raises(KeyboardInterrupt):
        list(make_batch("first", out=tmp_path / "out").run())
    assert not (tmp_path / "out" / "first").exists()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_temporary_folders_of_running_processes_are_kept(tmp_path):
    stale_folder, own_folder = tmp_path / ".first.99999999.tmp", tmp_path / f".first.{os.getpid()}.tmp"
    for folder in (stale_folder, own_folder, tmp_path / ".git"):
        folder.mkdir()
    outputs.remove_unfinished(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([".git", own_folder.name])


def test_time_estimates(tmp_path, monkeypatch):
    assert estimate_makespan([5, 4, 3, 3], 2) == 8
    assert estimate_makespan([5, 4, 3, 3], 1) == 15
    assert estimate_makespan([1], 2, [10, 2]) == 10
    assert estimate_makespan([], 2) == 0
    assert [format_duration(s) for s in (3.4, 99, 100, 3900, 7000)] == ["3 s", "99 s", "2 min", "65 min", "1 h 57 min"]
    durations = {"full": {"first": 100.0, "second": 40.0}, "quick": {"first": 2.0}}
    monkeypatch.setattr(batch, "load_durations", lambda: durations)
    first = SMALL_EXPERIMENTS["first"]
    assert batch.estimate_seconds(first, first.scale(20), tmp_path) == 200
    assert batch.estimate_seconds(first, first.scale(quick=True), tmp_path) == 2
    assert batch.estimate_seconds(SMALL_EXPERIMENTS["slow"], first.scale(), tmp_path) == 70, (
        "the median of the known durations"
    )
    (tmp_path / "first").mkdir()
    claims = {"seconds": 30, "seeds": 3, "quick": False}
    (tmp_path / "first" / "claims.json").write_text(json.dumps(claims))
    assert batch.estimate_seconds(first, first.scale(6), tmp_path) == 60, "a local duration takes precedence"
    batch_of_two = make_batch("second", "first", out=tmp_path, jobs=2)
    assert batch_of_two.names == ["first", "second"], "the longest must be first"
    assert batch_of_two.remaining() == 100


def test_time_table_has_every_experiment():
    for version in batch.load_durations().values():
        assert set(version) <= set(EXPERIMENTS)


def test_unwritable_experiment_fails(tmp_path, log, monkeypatch):
    (tmp_path / "out").write_text("a file where the folder should be")
    (failed,) = make_batch("first", out=tmp_path / "out").run()
    assert isinstance(failed, Failed)
    assert "Error" in failed.reason
