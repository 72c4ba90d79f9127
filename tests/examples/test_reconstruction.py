"""The demonstration of what a curious server reads says what the page says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NUMBERS = re.compile(r"(from directions|from reports) (?:(\S+), (\S+)|nothing)(?:;|\n)")


@pytest.fixture(scope="module")
def printed():
    command = [sys.executable, str(ROOT / "examples" / "reconstruction.py"), "--quick"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def read(printed):
    """For each mode the relative errors from directions and from reports; None for nothing."""
    modes = re.findall(r"^(\S.*):\n((?:  .*\n)+)", printed, flags=re.MULTILINE)
    return {
        name: {how: float(error) if error else None for how, error, _ in NUMBERS.findall(told)} for name, told in modes
    }


def test_a_single_row_is_read_to_seven_digits_and_then_no_more(printed):
    plain, default, summed, both, private = read(printed).values()
    assert plain["from directions"] < 1e-6
    guessed = float(re.search(r"all others: (\S+),", printed)[1])
    for protected in (default, summed, both, private):
        assert protected["from directions"] > 0.5 * guessed  # no better than a guess from all remaining patients
    assert default["from reports"] is both["from reports"] is None
    # Noise on the numbers as on the directions. It cannot be repeated by a seed, and may leave nothing to solve for.
    assert private["from reports"] is None or private["from reports"] > 0.5 * guessed


def test_sums_alone_leave_the_numbers(printed):
    """The row is reconstructed from its reported losses, even with secure aggregation."""
    summed = list(read(printed).values())[2]
    assert summed["from reports"] < 0.5
