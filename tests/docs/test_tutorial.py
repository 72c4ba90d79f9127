"""The tutorials of the documentation, command by command."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from softswitch.cli import app
from softswitch.results.folder import find_runs
from softswitch.tables.preparation import prepare_table
from softswitch.tables.settings import read_config

DOCS = Path(__file__).parents[2] / "docs"


def shell_blocks(page):
    return "\n".join(re.findall(r"```sh\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), flags=re.DOTALL))


def follow(page, folder):
    """Run the shell blocks of a page in a folder, and return their output."""
    script = "set -euo pipefail\n" + shell_blocks(page)
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLUMNS": "120"}
    process = subprocess.run(
        ["bash", "-c", script], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stdout[-2000:] + process.stderr[-2000:]
    return process.stdout


def shown_outputs(page):
    """Return the shown outputs of a page, split at "…", which marks omitted text."""
    blocks = re.findall(r"```text\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    return [normalise(piece) for block in blocks for piece in block.split("…") if piece.strip()]


def normalise(text):
    """Return the text without box characters and line breaks, which depend on the terminal."""
    return " ".join(re.sub(r"[│├└─]", " ", text).split())


def test_tutorial_until_training(tmp_path, monkeypatch):
    """Run the first two blocks in this process, and read the settings they write."""
    monkeypatch.chdir(tmp_path)
    steps = re.compile(r"^python - <<'END'\n(.*?)^END\n\n(softswitch init [^\n]*)$", re.DOTALL | re.MULTILINE)
    program, command = steps.search(shell_blocks("tutorial.md")).groups()
    exec(compile(program, "tutorial.md", "exec"), {})
    invocation = CliRunner().invoke(app, shlex.split(command)[1:])
    assert invocation.exit_code == 0, invocation.output
    config = read_config(tmp_path / "cases.toml")
    ready = prepare_table(config, tmp_path)
    assert config.task.bound == 0.05
    assert sorted(ready.train.names) == ["east", "north", "south", "west"]


@pytest.mark.slow
def test_tutorial(tmp_path):
    printed = follow("tutorial.md", tmp_path)
    for piece in shown_outputs("tutorial.md"):
        assert piece in normalise(printed)
    assert "feasible: all 4 clients" in printed
    assert "needs 59 applicable rows per client" in printed
    assert "Constraint <= 0.05 with confidence 0.95" in printed
    first, second = find_runs(tmp_path / "runs")
    assert (first.about["tolerance"], second.about["tolerance"]) == (0.05, 0.3)
    assert first.about["clients"] == 4
    assert first.about["certification"]["message"].startswith("Not certified")
    assert second.about["certification"]["certified"], second.about["certification"]
    assert second.about["certification"]["earlier_certificates"] == 1
    page = (first.folder / "report.html").read_text(encoding="utf-8")
    assert "At every hospital, at most 5% of the rows with diagnosis = malignant may be missed" in page
    assert page.count("<svg") == 2  # clients and calibration: a score has no curves of rounds
    assert (tmp_path / "both.html").exists()
    predicted = pd.read_csv(tmp_path / "predicted.csv")
    assert len(predicted) == 20
    assert set(predicted["diagnosis_predicted"]) <= {"malignant", "benign"}
    malignant = [client["constraints"][0]["rows"] for client in first.certificate["clients"]]
    assert (min(malignant), max(malignant)) == (11, 17), "as the page says"


@pytest.mark.slow
def test_parity_on_adult(tmp_path):
    printed = follow("own-data.md", tmp_path)
    (run,) = find_runs(tmp_path / "runs")
    assert run.about["clients"] == 14, "rows without an occupation are dropped"
    assert "gap" not in run.about["status"]["message"]
    groups = run.about["groups"]
    assert set(groups) == {"Female", "not Female"}
    for values in groups.values():
        assert 0.7 < values["accuracy"] < 1
    share = sum(values["rows"] for values in groups.values()) / (48842 - 2809)
    assert 0.25 < share < 0.3, "a quarter, and more of small clients"
    report = (run.folder / "report.html").read_text(encoding="utf-8")
    assert "selection rate" in report
    assert "Constraint <= 0.05" in printed
