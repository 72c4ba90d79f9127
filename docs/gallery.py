"""Write docs/gallery.md from what ``softswitch paper all --out results`` wrote: python docs/gallery.py results."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from softswitch.paper import EXPERIMENTS

DOCS = Path(__file__).parent
IMAGES = DOCS / "images" / "paper"
TEMPLATE = DOCS / "templates" / "gallery.md"


def page(told: dict[str, dict]) -> str:
    """The template with figures, commands and claims put in."""
    text = TEMPLATE.read_text(encoding="utf-8")
    text = text.replace("{{times}}", times(told))
    for name, one in told.items():
        claims = "\n".join(
            f"- **{'held' if claim['held'] else 'did not hold'}**: {claim['statement']} — {claim['measured']}"
            for claim in one["claims"]
        )
        figure = f"![{one['shows']}](images/paper/{name}.png)"
        shown = f"{figure}\n\n    softswitch paper {name}\n\n{with_seeds(name, one['seeds'])}\n\n{claims}"
        text = text.replace(f"{{{{{name}}}}}", shown)
    if "{{" in text:
        raise ValueError(f"{TEMPLATE.name} has a place that nothing fills: {text[text.index('{{') :][:40]}")
    return text


def with_seeds(name: str, seeds: int) -> str:
    """With how many seeds an experiment ran; where that is not the number it now has, also that."""
    now = EXPERIMENTS[name].seeds
    return f"{seeds} seeds." if seeds == now else f"{seeds} seeds, from an earlier run; the command now takes {now}."


def times(told: dict[str, dict]) -> str:
    """What each experiment took, the longest first, and all together."""
    longest = sorted(told, key=lambda name: -told[name]["seconds"])
    rows = [f"| [{name}](#{name}) | {told[name]['seconds']:.0f} |" for name in longest]
    total = sum(one["seconds"] for one in told.values())
    return "\n".join(["| experiment | seconds |", "|---|---|", *rows, f"| all | {total:.0f} |"])


def main(results: Path) -> None:
    """Keep the pictures, write the page."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    told = {}
    for name in EXPERIMENTS:
        told[name] = json.loads((results / name / "claims.json").read_text(encoding="utf-8"))
        if told[name]["quick"] or told[name]["seeds"] != EXPERIMENTS[name].seeds:
            raise ValueError(f"{results / name} holds a shorter version; the gallery shows full ones")
        shutil.copy(results / name / f"{name}.png", IMAGES)
    (DOCS / "gallery.md").write_text(page(told), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
