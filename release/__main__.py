"""Check a release: `python -m release FOLDER` (`make release-check`). Takes about 15 minutes.

Builds source archive and wheel and checks their contents. Installs the wheel alone in a fresh environment outside the
checkout, and runs its commands. Lists the licences of all dependencies. Runs a part of the tests with the oldest and
the newest versions of the dependencies that pyproject.toml allows. All files are written below FOLDER.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from release.archives import build, check_sdist, check_wheel
from release.environments import Environment, Failed
from release.licences import list_licences
from release.versions import EXTRAS, TOOLS, oldest_pins
from release.with_versions import run_tests

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    """Run all checks, and list the failures at the end."""
    parser = argparse.ArgumentParser(prog="python -m release", description=__doc__)
    parser.add_argument("folder", type=Path, help="an empty folder outside the checkout; it is created")
    parser.add_argument("--only", choices=("archives", "alone", "oldest", "newest"), action="append")
    arguments = parser.parse_args()
    folder, parts = arguments.folder.resolve(), arguments.only or ["archives", "alone", "oldest", "newest"]
    if folder.is_relative_to(ROOT) or (folder.exists() and any(folder.iterdir())):
        parser.error(f"{folder} must be an empty folder outside {ROOT}")
    wheel, sdist = build(ROOT, folder)
    failed: list[str] = []

    def attempt(name: str, check: Callable[..., str], *arguments: object) -> None:
        print(f"== {name}", flush=True)
        try:
            message = check(*arguments)
        except Failed as error:
            failed.append(f"{name}: {error}")
            print(f"FAILED {error}", flush=True)
        else:
            print(message, flush=True)

    if "archives" in parts:
        attempt("the wheel's contents", check_wheel, ROOT, wheel)
        attempt("the source archive's contents", check_sdist, ROOT, sdist)
    if "alone" in parts:
        attempt("the wheel alone", _check_alone, folder, wheel)
    tests = ("pytest", *TOOLS)
    if "oldest" in parts:
        pins = oldest_pins(ROOT / "pyproject.toml")
        attempt("the oldest versions", run_tests, folder / "oldest", wheel, sdist, [*pins, *tests])
    if "newest" in parts:
        attempt("the newest versions", run_tests, folder / "newest", wheel, sdist, tests)
    print("\n".join(["", *failed, f"{len(failed)} failed" if failed else "All checks passed."]))
    return 1 if failed else 0


def _check_alone(folder: Path, wheel: Path) -> str:
    """Install only the wheel, run its commands, and list the licences of its dependencies."""
    alone = Environment(folder / "alone")
    alone.install(str(wheel))
    version = wheel.name.split("-")[1]
    printed = alone.run("softswitch", "--version").strip()
    if printed != f"softswitch {version}":
        raise Failed(f"softswitch --version prints {printed!r}, but the wheel is {version}")
    for command in ("paper", "bench", "play"):
        alone.run("softswitch", command, "--help")
    output = alone.run("softswitch", "demo", "--out", str(folder / "demo"))
    files = sorted(file.name for file in (folder / "demo").iterdir())
    if not any(name.endswith(".png") for name in files):
        raise Failed(f"the demo wrote no figure, only {files}")
    with_extras = Environment(folder / "extras")
    with_extras.install(f"{wheel}[{','.join(EXTRAS)}]")
    listed = [list_licences(one, folder / f"licences-{one.name}.txt") for one in (alone, with_extras)]
    return "\n".join([output.strip().splitlines()[-1], f"wrote {', '.join(files)}", *listed])


if __name__ == "__main__":
    sys.exit(main())
