"""What a run bounds, in one sentence."""

import pytest

from softswitch.results.descriptions import IN_WORDS, bounded_in_words, kind_in_words
from softswitch.tables.settings import TASKS

SETTINGS = {
    "data.label": "diagnosis",
    "data.client": "hospital",
    "data.positive": "malignant",
    "task.sensitive": "sex",
    "task.protected": "F",
    "task.constraint": "mine:late",
}


@pytest.mark.parametrize("kind", TASKS)
def test_every_kind_has_a_sentence(kind):
    said = bounded_in_words(SETTINGS | {"task.kind": kind}, 0.05)
    assert said.startswith("At every hospital ")
    assert said.endswith(".")
    assert ("0.05" in said) != ("5%" in said or "5 percentage points" in said)
    if kind in ("decision-parity", "decision-opportunity", "demographic-parity", "equal-opportunity", "group-loss"):
        assert "sex = F" in said


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("miss-rate", "at most 5% of the rows with diagnosis = malignant may be missed (decided otherwise)."),
        ("custom", "mine:late may be at most 0.05."),
        ("brand-new", "the constraint (brand new) may be at most 0.05."),
    ],
)
def test_sentences(kind, said):
    assert bounded_in_words(SETTINGS | {"task.kind": kind}, 0.05) == f"At every hospital {said}"


def test_where_little_is_known():
    assert bounded_in_words({"seed": 0}, 0.125) == "At every client the constraint may be at most 0.125."
    without = {"task.kind": "miss-rate", "data.label": "late", "data.client": "branch"}
    assert "the rows with late = 1 may be missed" in bounded_in_words(without, 0.1, 1)
    assert "the rows with a positive late may be missed" in bounded_in_words(without, 0.1)
    assert kind_in_words({}).constraint == "constraint"


def test_one_point_is_one():
    one = bounded_in_words({"task.kind": "decision-parity"}, 0.01)
    assert "at most 1 percentage point between" in one


def test_values_are_written_in_their_unit():
    assert IN_WORDS["miss-rate"].write(0.0476) == "4.76%"
    assert IN_WORDS["neyman-pearson"].write(0.0476) == "0.0476"
