"""Build source archive and wheel, and check their contents."""

from __future__ import annotations

import re
import subprocess
import tarfile
import tomllib
import zipfile
from email.parser import HeaderParser
from pathlib import Path

from release.environments import Environment, Failed

ODD = re.compile(r"(^|/)(__pycache__|\.git|\.venv|\.pytest_cache|\.hypothesis|\.mypy_cache|\.ruff_cache)(/|$)|\.pyc$")
"""Paths that must not be in an archive."""
PACKAGES = ("softswitch", "softswitch_experiments")
DATA = (
    "softswitch/py.typed",
    "softswitch_experiments/py.typed",
    "softswitch/tables/hints.toml",
    "softswitch_experiments/paper/inventory.toml",
    "softswitch_experiments/paper/seconds.json",
    "softswitch_experiments/tasks/data/adult.csv.xz",
)
"""Files of the wheel besides Python modules."""
NEEDED = ("LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml", "constraints.txt", "Makefile")


def build(root: Path, folder: Path) -> tuple[Path, Path]:
    """Build the source archive, and the wheel from it; return wheel and archive."""
    tools = Environment(folder / "tools")
    tools.install("build")
    tools.run("python", "-m", "build", "--outdir", str(folder / "dist"), str(root))
    (wheel,), (sdist,) = (list((folder / "dist").glob(ending)) for ending in ("*.whl", "*.tar.gz"))
    return wheel, sdist


def check_wheel(root: Path, wheel: Path) -> str:
    """Raise unless the wheel has exactly the files of both packages, with data, licence and version."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
        about = HeaderParser().parsestr(_text(archive.read(_one(names, "METADATA"))))
    files = {name for name in names if ".dist-info/" not in name}
    tracked = {name.removeprefix("src/") for name in _tracked(root, "src")}
    if files != tracked:
        raise Failed(f"the wheel lacks {sorted(tracked - files)[:5]}, and also has {sorted(files - tracked)[:5]}")
    if {name.split("/")[0] for name in files} != set(PACKAGES):
        raise Failed(f"the wheel must have the packages {PACKAGES}")
    if missing := [name for name in DATA if name not in files]:
        raise Failed(f"the wheel lacks {missing}")
    if not any(name.endswith(".dist-info/licenses/LICENSE") for name in names):
        raise Failed("the wheel has no LICENSE")
    _check_about(root, about["Version"], about["License-Expression"])
    if odd := [name for name in names if ODD.search(name)]:
        raise Failed(f"the wheel holds {odd[:5]}")
    return f"{wheel.name}: {len(files)} files of both packages, {wheel.stat().st_size / 1e6:.2f} MB"


def check_sdist(root: Path, sdist: Path) -> str:
    """Raise unless the source archive has all files needed to build and to test, and no others."""
    with tarfile.open(sdist) as archive:
        members = archive.getmembers()
        names = [member.name.partition("/")[2] for member in members if member.isfile()]
        packed = archive.extractfile(next(m for m in members if m.name.endswith("/PKG-INFO")))
        assert packed is not None
        about = HeaderParser().parsestr(_text(packed.read()))
    _check_about(root, about["Version"], about["License-Expression"])
    if missing := [name for name in NEEDED if name not in names]:
        raise Failed(f"the source archive lacks {missing}")
    for folder in ("src", "tests", "docs", "examples", "benchmarks", "release"):
        if missing := sorted(set(_tracked(root, folder)) - set(names)):
            raise Failed(f"the source archive lacks {missing[:5]}")
    if odd := [name for name in names if ODD.search(name)]:
        raise Failed(f"the source archive holds {odd[:5]}")
    return f"{sdist.name}: {len(names)} files, {sdist.stat().st_size / 1e6:.2f} MB"


def _check_about(root: Path, version: str, licence: str) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    if (version, licence) != (project["version"], project["license"]):
        raise Failed(f"version {version} and licence {licence} differ from pyproject.toml ({project['version']})")
    if f"## {version}" not in (root / "CHANGELOG.md").read_text(encoding="utf-8"):
        raise Failed(f"CHANGELOG.md has no section for version {version}")


def _tracked(root: Path, folder: str) -> list[str]:
    """Return the files in a folder that git tracks."""
    listed = subprocess.run(["git", "ls-files", folder], cwd=root, capture_output=True, text=True, check=True)
    return listed.stdout.splitlines()


def _one(names: list[str], ending: str) -> str:
    return next(name for name in names if name.endswith(f".dist-info/{ending}"))


def _text(content: bytes) -> str:
    return content.decode("utf-8")
