"""The example with many devices prints the documented output."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_example_runs_on_virtual_devices():
    command = [sys.executable, str(ROOT / "examples" / "many_devices.py"), "--virtual", "4", "--rounds", "60"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert process.returncode == 0, process.stderr[-3000:]
    first, objective, constraint = process.stdout.splitlines()
    assert first == "4 devices, 64 clients, 60 rounds"
    assert 0 < float(objective.split()[2]) < 0.6931  # the loss at zero parameters
    assert float(constraint.split()[2].rstrip(",")) <= 0
