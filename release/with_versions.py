"""A part of the tests with other versions of dependencies than the pinned ones."""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Sequence
from pathlib import Path

from release.environments import Environment
from release.versions import EXTRAS

TESTS = (
    "tests/support",
    "tests/problem",
    "tests/methods",
    "tests/data/test_sampling.py",
    "tests/oracles/test_evaluation.py",
    "tests/results/test_result.py",
    "tests/results/test_checkpoints.py",
    "tests/results/test_names_from_others.py",
    "tests/certification/test_certify.py",
    "tests/engine/test_solve.py",
    "tests/flower/test_flower_faults.py",
    "tests/tables/test_reading_tables.py",
    "tests/tables/test_training.py",
    "tests/tables/test_estimators.py",
    "tests/cli/test_words_of_commands.py",
    "tests/experiments/test_neyman_pearson.py",
)
WITH_TORCH = ("tests/support/test_functions.py", "tests/methods/test_weighting.py")
"""Of these, what needs PyTorch, which is left out."""
"""From many folders something: what touches JAX, pandas, SciPy, scikit-learn, matplotlib, Flower and the terminal."""


def run_tests(folder: Path, wheel: Path, sdist: Path, what: Sequence[str]) -> str:
    """Install the wheel with these, and run the tests of the source archive against it, not against its sources."""
    environment = Environment(folder)
    environment.install(f"{wheel}[{','.join(EXTRAS)}]", *what)
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (unpacked,) = folder.glob("softswitch-*")
    shutil.rmtree(unpacked / "src")
    (folder / "versions.txt").write_text(environment.run("python", "-m", "pip", "freeze", "--all"), encoding="utf-8")
    # Other versions warn of other things: a warning is no error here.
    words = ("-m", "pytest", "-q", "-n", "2", "-m", "not slow", "-o", "filterwarnings=default", *TESTS)
    without = [f"--ignore={name}" for name in WITH_TORCH]
    said = environment.run("python", *words, *without, folder=unpacked)
    return said.strip().splitlines()[-1]
