"""Parts of `make release-check`, which runs completely only before a release."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from release.licences import is_allowed
from release.versions import EXTRAS, oldest_pins, pin_oldest
from release.with_versions import TESTS, WITH_TORCH

ROOT = Path(__file__).parents[2]


def test_dependencies_are_pinned_to_lower_bounds():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pins = [Requirement(pin) for pin in oldest_pins(ROOT / "pyproject.toml")]
    requirements = [Requirement(requirement) for requirement in project["dependencies"]]
    requirements += [
        Requirement(requirement) for extra in EXTRAS for requirement in project["optional-dependencies"][extra]
    ]
    assert [pin.name for pin in pins] == list(dict.fromkeys(requirement.name for requirement in requirements))
    for pin, requirement in zip(pins, requirements, strict=True):
        (specifier,) = pin.specifier
        lowest = min(Version(clause.version) for clause in requirement.specifier if clause.operator == ">=")
        assert (specifier.operator, Version(specifier.version)) == ("==", lowest)
        assert requirement.specifier.contains(specifier.version)


def test_missing_lower_bound_is_rejected():
    assert pin_oldest("flwr[simulation]>=1.41,<1.43") == "flwr[simulation]==1.41"
    with pytest.raises(ValueError, match="no lower bound"):
        pin_oldest("numpy<3")


@pytest.mark.parametrize(
    "licence",
    [
        *("MIT", "Apache-2.0", "BSD-3-Clause", "BSD License", "Apache Software License", "MPL-2.0", "ISC", "HPND"),
        *("Apache-2.0 OR BSD-3-Clause", "MIT AND PSF-2.0", "GPL-3.0 OR MIT", "Python Software Foundation License"),
        *("BSD-3-Clause AND 0BSD AND MIT AND Zlib AND CC0-1.0", "The Unlicense (Unlicense)", "3-Clause BSD License"),
    ],
)
def test_allowed_licences(licence):
    assert is_allowed(licence)


@pytest.mark.parametrize("licence", ["", "GPL-3.0", "AGPL-3.0", "MIT AND GPL-2.0", "Commercial", "UNKNOWN", "LGPL-2.1"])
def test_rejected_licences(licence):
    assert not is_allowed(licence)


def test_release_steps_use_installed_packages():
    excluded = re.compile(
        r"^\s*(import|from) (torch|playwright|flax|equinox|mlflow|cvxpy|cooper|ray|gymnasium)\b", re.M
    )
    files = [
        file
        for name in TESTS
        for file in ([ROOT / name] if name.endswith(".py") else sorted((ROOT / name).rglob("*.py")))
    ]
    assert len(files) > 20
    offending_files = [
        str(file.relative_to(ROOT)) for file in files if excluded.search(file.read_text(encoding="utf-8"))
    ]
    assert offending_files == list(WITH_TORCH)
