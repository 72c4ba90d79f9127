"""The demonstration and its command."""

import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner

import softswitch as ss
from softswitch.cli import app
from softswitch_experiments.tasks import demo


def test_demo_results(tmp_path):
    demo_results = demo.run_demo(seeds=2, rounds=400)
    automatic, softmax, average = (demo_results.results[method] for method in (demo.CHOSEN, demo.PAPER, demo.AVERAGE))
    for result in (*automatic, *softmax):
        assert result.status.ok
        assert result.violating == ()
    for best, paper in zip(automatic, softmax, strict=True):
        assert best.worst_objective < 0.5 * paper.worst_objective
        assert isinstance(best.method, ss.SQP)
        assert len(best.history) < 60 < len(paper.history) == 400
        assert best.gap < 1e-6
    for result in average:
        assert float(result.client_constraint.mean()) <= demo.TOLERANCE
        assert len(result.violating) >= 2
    figure, report = demo.write_demo(demo_results, tmp_path / "new" / "folder")
    assert figure.read_bytes().startswith(b"\x89PNG")
    text = report.read_text()
    assert f"| {demo.CHOSEN} |" in text
    assert figure.name in text
    assert text.count(": feasible: ") == 4


def test_command_output(tmp_path):
    invocation = CliRunner().invoke(app, ["demo", "--out", str(tmp_path), "--seeds", "1", "--rounds", "100"])
    assert invocation.exit_code == 0, invocation.output
    assert "Softmax SGM" in invocation.output
    assert (tmp_path / "demo.png").exists()
    assert (tmp_path / "report.md").exists()


def test_command_errors_and_help():
    runner = CliRunner()
    assert runner.invoke(app, ["demo", "--seeds", "0"]).exit_code == 2
    assert "demo" in runner.invoke(app, []).output


def test_installed_program_prints_version():
    program = Path(sys.executable).with_name("softswitch")
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    assert version.stdout.startswith("softswitch 0.")
