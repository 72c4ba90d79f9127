"""A help text needs none of the heavy libraries."""

import json
import subprocess
import sys
from importlib.metadata import version

import pytest

from softswitch.cli import app

HEAVY = ("jax", "matplotlib", "numpy", "optax", "pandas", "sklearn", "softswitch_experiments.paper")
COMMANDS = (
    "bench",
    "plan",
    "demo",
    "init",
    "train",
    "resume",
    "predict",
    "frontier",
    "runs",
    "compare",
    "report",
    "play",
    "paper",
)
# In a process of its own: in this one everything is imported long since.
LOOK = """
import json, sys
from typer.testing import CliRunner
from softswitch.cli import app

outputs = []
for words in json.loads(sys.argv[1]):
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, (words, done.output)
    outputs.append(done.output)
print(json.dumps({"outputs": outputs, "modules": sorted(sys.modules)}))
"""


def look(*calls):
    """What each call printed, and which of the heavy modules were imported in the end."""
    done = subprocess.run([sys.executable, "-c", LOOK, json.dumps(calls)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    return found["outputs"], [name for name in HEAVY if name in found["modules"]]


@pytest.mark.parametrize(("option", "said"), [("--help", "Usage"), ("--version", version("softswitch"))])
def test_help_and_version_import_nothing_heavy(option, said):
    (output,), heavy = look([option])
    assert said in output
    assert heavy == []


def test_no_commands_help_imports_anything_heavy():
    outputs, heavy = look(*([command, "--help"] for command in COMMANDS))
    assert all("Usage" in output for output in outputs)
    assert heavy == []


def test_these_are_all_commands():
    assert sorted(command.callback.__name__ for command in app.registered_commands) == sorted(COMMANDS)


def test_saving_a_score_does_not_import_torch(tmp_path):
    code = """
import sys
from pathlib import Path
import numpy as np
from softswitch.tables.scores import Score, make_estimators

x, y = np.arange(40.0)[:, None], np.arange(40) % 2
Score.fit(make_estimators("linear", "binary"), x, y, None, "binary", 2).save(Path(sys.argv[1]))
loaded = Score.load(Path(sys.argv[1]), "binary", 2)
assert loaded.outputs(x).shape == (40, 1)
print("torch" in sys.modules)
import sklearn.externals.array_api_compat.torch
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr
