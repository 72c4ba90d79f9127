"""Run a part of the tests with other versions of the dependencies."""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Sequence
from pathlib import Path

from release.environments import Environment
from release.versions import EXTRAS

TESTS: tuple[str, ...] = (
    "tests/support",
    "tests/problem",
    "tests/methods",
    "tests/data/test_sampling.py",
    "tests/oracles/test_evaluation.py",
    "tests/results/test_result.py",
    "tests/results/test_checkpoints.py",
    "tests/results/test_untrusted_names.py",
    "tests/certification/test_certify.py",
    "tests/engine/test_solve.py",
    "tests/flower/test_flower_faults.py",
    "tests/tables/test_reading_tables.py",
    "tests/tables/test_training.py",
    "tests/tables/test_estimators.py",
    "tests/cli/test_command_output.py",
    "tests/experiments/test_neyman_pearson.py",
)
WITH_TORCH = ("tests/support/test_functions.py", "tests/methods/test_weighting.py")
"""Tests that need PyTorch, which is not installed."""


def run_tests(folder: Path, wheel: Path, sdist: Path, packages: Sequence[str]) -> str:
    """Install the wheel with these packages, and run the tests of the source archive against it."""
    environment = Environment(folder)
    environment.install(f"{wheel}[{','.join(EXTRAS)}]", *packages)
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (unpacked,) = folder.glob("softswitch-*")
    shutil.rmtree(unpacked / "src")
    (folder / "versions.txt").write_text(environment.run("python", "-m", "pip", "freeze", "--all"), encoding="utf-8")
    # Other versions may emit other warnings, which are not errors here.
    arguments = ("-m", "pytest", "-q", "-n", "2", "-m", "not slow", "-o", "filterwarnings=default", *TESTS)
    ignored = [f"--ignore={name}" for name in WITH_TORCH]
    output = environment.run("python", *arguments, *ignored, folder=unpacked)
    return output.strip().splitlines()[-1]
