"""With a hundred thousand clients, memory stays below three times the data."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_hundred_thousand_clients():
    """Run in a separate process to measure its peak memory."""
    script = "from benchmarks.many_clients import many_clients; assert many_clients() < 3"
    process = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
