"""Inventory of the paper: every statement and figure, what implements it, and what tests it.

The entries are in ``inventory.toml``, which also explains how to add one.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_suffix(".toml")
Outputs = Mapping[str, Mapping[str, Any]]
"""Contents of each experiment's claims.json, by the name of the experiment."""


class Verdict(StrEnum):
    """Outcome of an item."""

    HELD = "held"
    PARTLY = "held in part"
    FAILED = "did not hold"
    NOT_RUN = "not run"
    TESTED = "checked by tests"
    PROOF = "used in proofs only"
    OPEN = "not done here"


@dataclass(frozen=True)
class Evidence:
    """Claims of an experiment that test an item."""

    experiment: str  # name of the experiment
    about: str = ""  # text that the statements of the claims contain. Default: all claims of the experiment
    reading: str = ""  # reading of the paper, if it is not that of the item

    def claims(self, outputs: Outputs) -> list[Mapping[str, Any]]:
        """Return these claims, or nothing if the experiment was not run."""
        claims = outputs.get(self.experiment, {}).get("claims", ())
        return [claim for claim in claims if self.about in claim["statement"]]


@dataclass(frozen=True)
class Item:
    """An algorithm, theorem, lemma, figure, table or claim of the paper. ``inventory.toml`` explains the attributes."""

    kind: str
    number: str
    label: str
    summary: str
    code: tuple[str, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    tests: tuple[str, ...] = ()
    reading: str = ""
    note: str = ""

    def claims_by_reading(self, outputs: Outputs) -> dict[str, list[Mapping[str, Any]]]:
        """Return the claims of the experiments that were run, by the reading of the paper that they test."""
        claims: dict[str, list[Mapping[str, Any]]] = {}
        for evidence in self.evidence:
            if evidence.experiment in outputs:
                claims.setdefault(evidence.reading or self.reading, []).extend(evidence.claims(outputs))
        return claims

    def best_reading(self, outputs: Outputs) -> tuple[str, Verdict]:
        """Return the reading under which the largest share of the claims held, and its verdict."""
        held = {
            reading: [bool(claim["held"]) for claim in claims]
            for reading, claims in self.claims_by_reading(outputs).items()
        }
        best = max(held, key=lambda reading: sum(held[reading]) / max(1, len(held[reading])))
        return best, combine(held[best])

    def verdict(self, outputs: Outputs) -> Verdict:
        """Return the verdict on the claims, or, without evidence, whether tests or code exist."""
        if self.evidence:
            return combine([bool(claim["held"]) for one in self.evidence for claim in one.claims(outputs)])
        if self.tests:
            return Verdict.TESTED
        return Verdict.OPEN if self.code else Verdict.PROOF


def combine(held: Sequence[bool]) -> Verdict:
    """Return the verdict on several claims."""
    if not held:
        return Verdict.NOT_RUN
    if all(held):
        return Verdict.HELD
    return Verdict.PARTLY if any(held) else Verdict.FAILED


def read_items(tables: Mapping[str, Any]) -> tuple[Item, ...]:
    """Return the items of the parsed file, with shared evidence and readings filled in."""

    def fill(reading: str) -> str:
        return reading.format_map(tables["readings"])

    items = []
    for table in tables["items"]:
        entry = dict(table)
        shared = [claim for name in entry.pop("shared", ()) for claim in tables["evidence"][name]]
        evidence = tuple(
            Evidence(**{**claim, "reading": fill(claim.get("reading", ""))})
            for claim in (*entry.pop("evidence", ()), *shared)
        )
        lists = {name: tuple(entry.pop(name, ())) for name in ("code", "tests")}
        items.append(Item(**{**entry, **lists, "evidence": evidence, "reading": fill(entry.get("reading", ""))}))
    labels = [item.label for item in items]
    if repeated := sorted({label for label in labels if labels.count(label) > 1}):
        raise ValueError(f"{FILE.name}: labels must be unique, but {repeated} occur more than once")
    if missing := [label for label in tables["labels"] if label not in labels]:
        raise ValueError(f"{FILE.name}: every label of the paper needs an item, but {missing} have none")
    return tuple(items)


_TABLES = tomllib.loads(FILE.read_text(encoding="utf-8"))
ITEMS = read_items(_TABLES)
ADDITIONAL_EXPERIMENTS: tuple[str, ...] = tuple(_TABLES["additional_experiments"])
"""Experiments on questions that the paper does not raise."""
