"""The reconstruction demonstration prints the documented results."""

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
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert process.returncode == 0, process.stderr[-3000:]
    return process.stdout


def parse_errors(printed):
    """Return the relative errors from directions and reports for each mode, or None without a result."""
    modes = re.findall(r"^(\S.*):\n((?:  .*\n)+)", printed, flags=re.MULTILINE)
    return {
        name: {source: float(error) if error else None for source, error, _ in NUMBERS.findall(text)}
        for name, text in modes
    }


def test_single_row_is_reconstructed_without_protection(printed):
    unprotected, default, summed, combined, private = parse_errors(printed).values()
    assert unprotected["from directions"] < 1e-6
    guessed = float(re.search(r"all others: (\S+),", printed)[1])
    for errors in (default, summed, combined, private):
        assert errors["from directions"] > 0.5 * guessed  # no better than a guess from all remaining patients
    assert default["from reports"] is combined["from reports"] is None
    # Reports and directions are noisy. The noise has no seed, and there may be no solution.
    assert private["from reports"] is None or private["from reports"] > 0.5 * guessed


def test_reports_reveal_row_despite_secure_aggregation(printed):
    """The row is reconstructed from its reported losses, even with secure aggregation."""
    summed = list(parse_errors(printed).values())[2]
    assert summed["from reports"] < 0.5
