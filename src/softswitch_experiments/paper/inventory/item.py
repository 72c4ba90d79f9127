"""What the paper says in one place of it, where that is here, and how it is judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

Told = Mapping[str, Mapping[str, Any]]
"""What experiments' outputs tell, by name."""


class Judgement(StrEnum):
    """How an item stands after a run."""

    HELD = "held"
    PARTLY = "held in part"
    FAILED = "did not hold"
    NOT_RUN = "not run"
    TESTED = "checked by tests"
    PROOF = "used in proofs only"
    OPEN = "not done here"


@dataclass(frozen=True)
class Put:
    """Claims of an experiment that put an item to the test.

    Attributes:
        experiment: which.
        about: those of its claims whose statement has these words.
        reading: under which reading of the paper, where that is not the item's.
    """

    experiment: str
    about: str = ""
    reading: str = ""

    def claims(self, told: Told) -> list[Mapping[str, Any]]:
        """These claims, as the experiment's outputs tell them."""
        return [claim for claim in told[self.experiment]["claims"] if self.about in claim["statement"]]


@dataclass(frozen=True)
class Item:
    """An algorithm, theorem, lemma, figure, table or claim of the paper.

    Attributes:
        kind: under which heading it stands.
        number: what the paper calls it.
        label: its label in the paper's source; for what has none, a word of our own.
        says: one line, in our words.
        where: the names here that carry it, importable.
        put: which experiments put it to the test, and with which of their claims.
        tests: which tests check it: ``folder/file::test``, below tests/.
        reading: under which reading of the paper, where it leaves one open; ``put`` can name others.
        note: what else is to be said.
    """

    kind: str
    number: str
    label: str
    says: str
    where: tuple[str, ...] = ()
    put: tuple[Put, ...] = ()
    tests: tuple[str, ...] = ()
    reading: str = ""
    note: str = ""

    def claims(self, told: Told) -> list[Mapping[str, Any]]:
        """The claims of those experiments that were run; ``told``: their outputs, by name."""
        return [claim for put in self.put if put.experiment in told for claim in put.claims(told)]

    def by_reading(self, told: Told) -> dict[str, list[Mapping[str, Any]]]:
        """The same claims by the reading that they were put to the test under."""
        found: dict[str, list[Mapping[str, Any]]] = {}
        for put in self.put:
            if put.experiment in told:
                found.setdefault(put.reading or self.reading, []).extend(put.claims(told))
        return found

    def strongest(self, told: Told) -> tuple[str, Judgement]:
        """The reading that is kindest to the paper: under which the largest share of the claims held."""
        found = {reading: [bool(claim["held"]) for claim in own] for reading, own in self.by_reading(told).items()}
        reading = max(found, key=lambda one: sum(found[one]) / max(1, len(found[one])))
        return reading, judged(found[reading])

    def standing(self, told: Told) -> Judgement:
        """From the claims where an experiment puts it to the test, and else from what there is."""
        if self.put:
            return judged([bool(claim["held"]) for claim in self.claims(told)])
        if self.tests:
            return Judgement.TESTED
        return Judgement.OPEN if self.where else Judgement.PROOF


def judged(held: Sequence[bool]) -> Judgement:
    """All of them, some, none; or there are none."""
    if not held:
        return Judgement.NOT_RUN
    if all(held):
        return Judgement.HELD
    return Judgement.PARTLY if any(held) else Judgement.FAILED
