"""Write docs/gallery.md from what ``softswitch paper all --out results`` wrote: python docs/gallery.py results."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

from softswitch_experiments.paper import EXPERIMENTS

DOCS = Path(__file__).parent
IMAGES = DOCS / "images" / "paper"
TEMPLATE = DOCS / "templates" / "gallery.md"
TITLES = {
    "np-comparison": "Against the penalty method and primal-dual",
    "np-tuning": "How wide the good settings are",
    "np-readings": "Every method tuned, all clients a round",
    "np-readings-partial": "Every method tuned, half of the clients a round",
    "alpha-sensitivity": "From the mean to the maximum",
    "local-steps": "More local steps",
    "local-steps-readings": "More local steps, under four readings",
    "participation": "Fewer clients a round",
    "sgm-comparison": "Whom the average hides",
    "np-noniid": "Clients that differ",
    "error-budget": "Measured errors beside the theory's",
    "alpha-tradeoff": "Where iterates settle, in two clients",
    "fair-comparison": "Parity: against the penalty method and primal-dual",
    "fair-tuning": "Parity: how wide the good settings are",
    "fair-readings": "Parity: every method tuned",
    "fair-passes": "Parity: local epochs as passes over the rows",
    "fair-criterion": "Parity: four criteria for the switch",
    "fair-alpha": "Parity: from the mean to the maximum",
    "fair-optimizer": "Parity: Adam and plain gradient steps",
    "fair-noniid": "Parity: every occupation a client",
    "fair-noniid-readings": "Parity by occupation: more rows a report",
    "fair-frontier": "Parity: accuracy against the gap, beside Fairlearn",
    "safe-rl": "Carts: fewer rounds above the budget",
    "safe-rl-alpha": "Carts: what α costs",
    "safe-rl-clients": "Carts: planet by planet",
    "alpha-scale": "One α for all tasks?",
}
"""What each experiment is about, in words: its heading, and what its picture is called among the contents."""


def page(told: dict[str, dict]) -> str:
    """The template with figures, commands and claims put in."""
    text = TEMPLATE.read_text(encoding="utf-8")
    text = text.replace("{{times}}", times(told)).replace("{{contents}}", contents(text, told))
    for name, one in told.items():
        claims = "\n".join(
            f"- **{'held' if claim['held'] else 'did not hold'}**: {claim['statement']} — {claim['measured']}"
            for claim in one["claims"]
        )
        figure = f"![{one['shows']}](images/paper/{name}.png)"
        shown = f"{figure}\n\n    softswitch paper {name}\n\n{with_seeds(name, one['seeds'])}\n\n{claims}"
        text = text.replace(f"{{{{{name}}}}}", shown)
        text = text.replace(f"\n## {name}\n", f"\n### {TITLES[name]} {{ #{name} }}\n\n`{name}`: {one['shows']}.\n")
    text = re.sub(r"\n# (?=\S)", "\n## ", text)  # one heading of the first level: the table of contents is made by them
    if "{{" in text:
        raise ValueError(f"{TEMPLATE.name} has a place that nothing fills: {text[text.index('{{') :][:40]}")
    return text


def contents(template: str, told: dict[str, dict]) -> str:
    """Small pictures that lead to the sections, in the template's order and under its headings."""
    parts: list[str] = []
    for level, heading in re.findall(r"^(#{1,2}) (.+)$", template, flags=re.MULTILINE):
        if level == "#":
            parts.append(f'</div>\n\n**{heading}**\n\n<div class="grid cards thumbnails" markdown>\n')
        elif heading in told:
            claims = told[heading]["claims"]
            held = sum(claim["held"] for claim in claims)
            picture = f"[![{told[heading]['shows']}](images/paper/{heading}.png){{ loading=lazy }}](#{heading})"
            words = f"[{TITLES[heading]}](#{heading})  \n    {held} of {len(claims)} claims held"
            parts.append(f"- {picture}\n\n    {words}\n")
    text = "\n".join([*parts, "</div>"]).removeprefix("</div>\n\n")
    return re.sub(r"\*\*[^*]+\*\*\n\n<div[^>]*>\n\n</div>\n*", "", text)  # headings without experiments


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
