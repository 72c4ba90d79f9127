"""What `make release-check` is made of; it runs as a whole only before a release."""

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


def test_every_dependency_is_pinned_to_its_lower_bound():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pins = [Requirement(pin) for pin in oldest_pins(ROOT / "pyproject.toml")]
    asked = [Requirement(one) for one in project["dependencies"]]
    asked += [Requirement(one) for extra in EXTRAS for one in project["optional-dependencies"][extra]]
    assert [pin.name for pin in pins] == list(dict.fromkeys(one.name for one in asked))
    for pin, one in zip(pins, asked, strict=True):
        (only,) = pin.specifier
        lowest = min(Version(part.version) for part in one.specifier if part.operator == ">=")
        assert (only.operator, Version(only.version)) == ("==", lowest)
        assert one.specifier.contains(only.version)


def test_a_dependency_needs_a_lower_bound():
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
def test_licences_that_are_allowed(licence):
    assert is_allowed(licence)


@pytest.mark.parametrize("licence", ["", "GPL-3.0", "AGPL-3.0", "MIT AND GPL-2.0", "Commercial", "UNKNOWN", "LGPL-2.1"])
def test_licences_that_are_not(licence):
    assert not is_allowed(licence)


def test_what_is_run_is_there_and_needs_only_what_is_installed():
    left_out = re.compile(
        r"^\s*(import|from) (torch|playwright|flax|equinox|mlflow|cvxpy|cooper|ray|gymnasium)\b", re.M
    )
    files = [
        file
        for name in TESTS
        for file in ([ROOT / name] if name.endswith(".py") else sorted((ROOT / name).rglob("*.py")))
    ]
    assert len(files) > 20
    needing = [str(file.relative_to(ROOT)) for file in files if left_out.search(file.read_text(encoding="utf-8"))]
    assert needing == list(WITH_TORCH)
