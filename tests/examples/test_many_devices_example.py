"""The example of many devices runs as its page says."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_it_runs_on_virtual_devices():
    command = [sys.executable, str(ROOT / "examples" / "many_devices.py"), "--virtual", "4", "--rounds", "60"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    first, objective, constraint = done.stdout.splitlines()
    assert first == "4 devices, 1 hosts, 64 clients, 60 rounds"
    assert 0 < float(objective.split()[2]) < 0.6931  # the loss at zero parameters
    assert float(constraint.split()[2].rstrip(",")) <= 0
