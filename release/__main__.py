"""Try what is about to be released: `python -m release FOLDER` (`make release-check`), a quarter of an hour.

Source archive and wheel are built and looked into; the wheel is installed alone, in a fresh environment outside of the
checkout, and the demo run from it; licences of all that comes with it are listed; and a part of the tests runs with the
oldest versions of dependencies that pyproject.toml allows, and with the newest. Everything is below FOLDER.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from release.archives import build, check_sdist, check_wheel
from release.environments import Environment, Failed
from release.licences import list_licences
from release.versions import EXTRAS, TOOLS, oldest_pins
from release.with_versions import run_tests

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    """Try everything; what fails is told at the end."""
    parser = argparse.ArgumentParser(prog="python -m release", description=__doc__)
    parser.add_argument("folder", type=Path, help="outside of the checkout; made, and must be empty")
    parser.add_argument("--only", choices=("archives", "alone", "oldest", "newest"), action="append")
    asked = parser.parse_args()
    folder, parts = asked.folder.resolve(), asked.only or ["archives", "alone", "oldest", "newest"]
    if folder.is_relative_to(ROOT) or (folder.exists() and any(folder.iterdir())):
        parser.error(f"{folder} must be an empty folder outside of {ROOT}")
    wheel, sdist = build(ROOT, folder)
    failed: list[str] = []

    def attempt(name: str, work: object, *arguments: object) -> None:
        print(f"== {name}", flush=True)
        try:
            said = work(*arguments)  # type: ignore[operator]
        except Failed as error:
            failed.append(f"{name}: {error}")
            print(f"FAILED {error}", flush=True)
        else:
            print(said, flush=True)

    if "archives" in parts:
        attempt("the wheel's contents", check_wheel, ROOT, wheel)
        attempt("the source archive's contents", check_sdist, ROOT, sdist)
    if "alone" in parts:
        attempt("the wheel alone: its demo", _demo, folder, wheel)
    tests = ("pytest", *TOOLS)
    if "oldest" in parts:
        pins = oldest_pins(ROOT / "pyproject.toml")
        attempt("the oldest versions", run_tests, folder / "oldest", wheel, sdist, [*pins, *tests])
    if "newest" in parts:
        attempt("the newest versions", run_tests, folder / "newest", wheel, sdist, tests)
    print("\n".join(["", *failed, f"{len(failed)} failed" if failed else "All went well."]))
    return 1 if failed else 0


def _demo(folder: Path, wheel: Path) -> str:
    """Install the wheel and nothing else, run its demo, and list the licences of what came with it."""
    alone = Environment(folder / "alone")
    alone.install(str(wheel))
    version = wheel.name.split("-")[1]
    told = alone.run("softswitch", "--version").strip()
    if told != f"softswitch {version}":
        raise Failed(f"the command says {told!r}, but the wheel is {version}")
    said = alone.run("softswitch", "demo", "--out", str(folder / "demo"))
    made = sorted(file.name for file in (folder / "demo").iterdir())
    if not any(name.endswith(".png") for name in made):
        raise Failed(f"the demo made no figure, but {made}")
    with_extras = Environment(folder / "extras")
    with_extras.install(f"{wheel}[{','.join(EXTRAS)}]")
    listed = [list_licences(one, folder / f"licences-{one.name}.txt") for one in (alone, with_extras)]
    return "\n".join([said.strip().splitlines()[-1], f"made {', '.join(made)}", *listed])


if __name__ == "__main__":
    sys.exit(main())
