"""Write docs/reproduction.md from what ``softswitch paper all`` wrote: python docs/reproduction.py results.

The page lists everything that the paper states and shows: where it is, by which command, and whether it held.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from softswitch_experiments.paper import EXPERIMENTS
from softswitch_experiments.paper.durations import record
from softswitch_experiments.paper.inventory import BESIDE, ITEMS, Item, Judgement, judged
from softswitch_experiments.paper.inventory.item import Told
from softswitch_experiments.paper.outputs import told

DOCS = Path(__file__).parent
PAGE = DOCS / "reproduction.md"
TEMPLATE = DOCS / "templates" / "reproduction.md"


def page(found: Told, items: tuple[Item, ...] = ITEMS) -> str:
    """The page; ``found``: what each experiment's outputs tell, by name."""
    verdicts = {item.label: item.standing(found) for item in items}
    counts = Counter(verdicts.values())
    summary = "\n".join(f"| {verdict} | {counts[verdict]} |" for verdict in Judgement if counts[verdict])
    parts = [f"| verdict | items |\n|---|---|\n{summary}\n"]
    failed = [item for item in items if verdicts[item.label] in (Judgement.FAILED, Judgement.PARTLY)]
    if failed:
        lines = [
            f"- [{item.number}](#{anchor(item)}): {item.says} — **{verdicts[item.label]}**{_kindest(item, found)}"
            for item in failed
        ]
        parts.append("\n".join(["## What did not hold, or not all of it\n", *lines, ""]))
    for kind, own in groupby(items, key=lambda item: item.kind):
        parts.append(f"## {kind}\n")
        parts += [entry(item, found) for item in own]
    beside = ", ".join(f"[{name}](gallery.md#{name})" for name in BESIDE)
    parts.append(f"## Besides\n\nExperiments on questions that the paper does not raise: {beside}.\n")
    text = TEMPLATE.read_text(encoding="utf-8").replace("{{made with}}", _made_with(found))
    return text.replace("{{items}}\n", "\n".join(parts))


def _made_with(found: Told) -> str:
    """Which run the page is from."""
    quick = " in quick versions, whose claims need not hold" if any(one["quick"] for one in found.values()) else ""
    fewer = [f"{name} ({one['seeds']})" for name, one in found.items() if one["seeds"] < EXPERIMENTS[name].seeds]
    earlier = f" With fewer seeds than they now have, from an earlier run: {', '.join(fewer)}." if fewer else ""
    return f"This page is from {len(found)} of {len(EXPERIMENTS)} experiments{quick}.{earlier if not quick else ''}"


def anchor(item: Item) -> str:
    """The item's place on the page."""
    return re.sub(r"[^a-z0-9]+", "-", item.label.lower())


def entry(item: Item, found: Told) -> str:
    """One item: what it says, where, by which command, and what came out."""
    lines = [
        f"### {item.number} {{ #{anchor(item)} }}\n",
        f"{_sentence(item.says)} **{_sentence(item.standing(found))}**\n",
    ]
    if item.where:
        lines.append(f"- Where: {', '.join(map(_linked, item.where))}")
    for name in dict.fromkeys(put.experiment for put in item.put):
        shown = f"- Command: `softswitch paper {name}` ([figure](gallery.md#{name}))"
        lines.append(shown if name in found else f"{shown}, not run")
    if item.tests:
        lines.append(f"- Tests: {', '.join(f'`{test}`' for test in item.tests)}")
    if item.note:
        lines.append(f"- {item.note}")
    readings = item.by_reading(found)
    if item.reading and not readings:
        lines.append(f"- Reading: {item.reading}")
    for reading, claims in readings.items():
        if reading:
            lines.append(f"- Reading: {reading} — **{judged([claim['held'] for claim in claims])}**")
        lines += [f"{'    ' if reading else ''}- {_said(claim)}" for claim in claims]
    return "\n".join(lines) + "\n"


def _said(claim: Mapping[str, Any]) -> str:
    held = Judgement.HELD if claim["held"] else Judgement.FAILED
    return f"**{held}**: {claim['statement']} — {claim['measured']}"


def _kindest(item: Item, found: Told) -> str:
    """What came out under the reading that is kindest to the paper, and of how many that is."""
    reading, verdict = item.strongest(found)
    tried = len(item.by_reading(found))
    which = f"the strongest of {tried} readings tried" if tried > 1 else "the one reading tried"
    return f"; {which}: {reading or 'as the paper has it'} — **{verdict}**"


def _sentence(says: str) -> str:
    return f"{says[0].upper()}{says[1:]}."


def _linked(name: str) -> str:
    """A name, with its place in the reference where it has one."""
    place = references().get(name)
    shown = f"`{name.removeprefix('softswitch.')}`"
    return f"[{shown}](reference/{place}#{name})" if place else shown


def references() -> dict[str, str]:
    """Which page of the reference has which name."""
    return {
        name: file.name
        for file in sorted((DOCS / "reference").glob("*.md"))
        for name in re.findall(r"^::: (\S+)$", file.read_text(encoding="utf-8"), flags=re.M)
    }


def check(found: Told) -> None:
    """Every experiment in its full version, and every item's words among its claims: the page says what was found."""
    for name, experiment in EXPERIMENTS.items():
        if name not in found:
            raise ValueError(f"there are no outputs of {name}")
        if found[name]["quick"] or found[name]["seeds"] != experiment.seeds:
            raise ValueError(f"the outputs of {name} are of a shorter version; the page is made of full ones")
    for item in ITEMS:
        for put in item.put:
            if not put.claims(found):
                raise ValueError(f"{item.number} ({item.label}): no claim of {put.experiment} has {put.about!r} in it")


def main(results: Path) -> None:
    """Write the page, and what experiments took into the table that estimates are made of."""
    found = {name: one for name in EXPERIMENTS if (one := told(results, name)) is not None}
    check(found)
    PAGE.write_text(page(found), encoding="utf-8")
    record(found)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
