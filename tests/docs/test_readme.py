"""The programs in README and docs run as printed, and the text matches their output."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from softswitch.cli import app

ROOT = Path(__file__).parents[2]


def run_programs(page):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)
    names: dict = {}
    for block in blocks:
        exec(compile(block, page, "exec"), names)
    return len(blocks)


def test_readme_runs_as_printed(capsys):
    assert run_programs("README.md") == 2
    printed = capsys.readouterr().out
    assert printed.startswith("feasible:")
    assert "all 3 clients are within the tolerance 0.1" in printed
    assert "SoftmaxSGM(alpha=10.0)" in printed


def test_choosing_runs_as_printed(capsys):
    assert run_programs("docs/choosing.md") == 3
    printed = capsys.readouterr().out
    page = (ROOT / "docs/choosing.md").read_text()
    rounds, rows = re.search(r"asks for ([\d,]+) rounds with ([\d,]+) rows", page).groups()
    assert rounds in printed
    assert rows in printed
    assert "undecided" in printed


def test_choosing_plans_as_printed():
    page = (ROOT / "docs/choosing.md").read_text()
    first, second = re.findall(r"\$ softswitch (plan .*)\n", page)
    planned = json.loads(CliRunner().invoke(app, [*first.split(), "--json"]).output)
    assert f"K = {planned['setting']['rounds']:,} rounds" in page
    assert f"B_ζ = {planned['setting']['value_batch_size']} rows" in page
    assert f"α >= {planned['bound']['alpha']:.4g}" in page
    refused = CliRunner().invoke(app, second.split())
    assert refused.exit_code == 1
    assert " ".join(refused.output.split()) in " ".join(page.split())


@pytest.mark.slow
def test_fairness_runs_as_printed(capsys):
    assert run_programs("docs/fairness.md") == 1
    printed = capsys.readouterr().out
    assert "rounds were feasible" in printed
    assert "lack a class or group" not in printed, "the example must follow its own advice"
    assert "'accuracy': 0.8" in printed


@pytest.mark.slow
def test_python_runs_as_printed(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert run_programs("docs/python.md") == 13
    printed = capsys.readouterr().out
    assert printed.startswith("feasible")
    assert list((tmp_path / "my-run").iterdir())


def test_rates_run_as_printed(capsys):
    assert run_programs("docs/rates.md") == 2
    first, kept, second = capsys.readouterr().out.splitlines()
    assert (first.startswith("feasible"), kept, second.startswith("feasible")) == (True, "True", True)


@pytest.mark.slow
def test_memory_runs_as_printed(capsys):
    assert run_programs("docs/memory.md") == 1
    plain, remembers = map(int, capsys.readouterr().out.splitlines()[0].split())
    assert remembers == 0
    assert plain >= remembers


@pytest.mark.slow
def test_safe_rl_runs_as_printed(capsys):
    assert run_programs("docs/safe-rl.md") == 3
    printed = capsys.readouterr().out
    assert "rounds" in printed
    lines = printed.splitlines()
    assert {"0.0", "1.0"} & set(lines)  # the cost of a step
    assert lines[-1] == "(2, 2)"
