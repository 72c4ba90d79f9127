"""A hundred thousand clients fit: memory stays under three times the data."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_hundred_thousand_ragged_clients():
    """In a process of its own, whose peak of memory is its own."""
    script = "from benchmarks.many_clients import many_clients; assert many_clients() < 3"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
