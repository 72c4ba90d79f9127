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


def test_readme_prints_shown_output(capsys):
    assert run_programs("README.md") == 2
    output = capsys.readouterr().out
    assert output.startswith("feasible:")
    assert "all 3 clients are within the tolerance 0.1" in output
    assert "SoftmaxSGM(alpha=10.0)" in output


def test_choosing_prints_shown_output(capsys):
    assert run_programs("docs/choosing.md") == 3
    output = capsys.readouterr().out
    page = (ROOT / "docs/choosing.md").read_text()
    rounds, rows = re.search(r"asks for ([\d,]+) rounds with ([\d,]+) rows", page).groups()
    assert rounds in output
    assert rows in output
    assert "undecided" in output


def test_choosing_plan_prints_shown_output():
    page = (ROOT / "docs/choosing.md").read_text()
    first, second = re.findall(r"\$ softswitch (plan .*)\n", page)
    planned = json.loads(CliRunner().invoke(app, [*first.split(), "--json"]).output)
    assert f"K = {planned['setting']['rounds']:,} rounds" in page
    assert f"B_ζ = {planned['setting']['value_batch_size']} rows" in page
    assert f"α >= {planned['bound']['alpha']:.4g}" in page
    rejected = CliRunner().invoke(app, second.split())
    assert rejected.exit_code == 1
    assert " ".join(rejected.output.split()) in " ".join(page.split())


@pytest.mark.slow
def test_fairness_prints_shown_output(capsys):
    assert run_programs("docs/fairness.md") == 1
    output = capsys.readouterr().out
    assert "rounds were feasible" in output
    assert "lack a class or group" not in output, "the example must follow its own advice"
    assert "'accuracy': 0.8" in output


@pytest.mark.slow
def test_python_prints_shown_output(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert run_programs("docs/python.md") == 14
    output = capsys.readouterr().out
    assert output.startswith("feasible")
    assert list((tmp_path / "my-run").iterdir())


def test_rates_print_shown_output(capsys):
    assert run_programs("docs/rates.md") == 2
    first, middle, second = capsys.readouterr().out.splitlines()
    assert (first.startswith("feasible"), middle, second.startswith("feasible")) == (True, "True", True)


@pytest.mark.slow
def test_memory_prints_shown_output(capsys):
    assert run_programs("docs/memory.md") == 1
    without_memory, with_memory = map(int, capsys.readouterr().out.splitlines()[0].split())
    assert with_memory == 0
    assert without_memory >= with_memory


@pytest.mark.slow
def test_safe_rl_prints_shown_output(capsys):
    assert run_programs("docs/safe-rl.md") == 3
    output = capsys.readouterr().out
    assert "rounds" in output
    lines = output.splitlines()
    assert {"0.0", "1.0"} & set(lines)  # the cost of a step
    assert lines[-1] == "(2, 2)"
