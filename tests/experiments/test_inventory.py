"""The inventory of the paper: completeness, consistency with code and tests, and rendering."""

import re
import sys
import tomllib
from collections import Counter
from importlib import import_module
from pathlib import Path

import pytest

from softswitch_experiments.paper import EXPERIMENTS, inventory
from softswitch_experiments.paper.batch import Batch
from softswitch_experiments.paper.inventory import ADDITIONAL_EXPERIMENTS, ITEMS, Evidence, Item, Verdict
from softswitch_experiments.paper.outputs import read_outputs

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))
import reproduction  # noqa: E402

TABLES = tomllib.loads(inventory.FILE.read_text(encoding="utf-8"))


def test_paper_labels_are_covered_once():
    counts = Counter(item.label for item in ITEMS)
    assert [label for label, count in counts.items() if count > 1] == []
    assert len(TABLES["labels"]) == 57
    assert [label for label in TABLES["labels"] if label not in counts] == []
    assert len({reproduction.anchor(item) for item in ITEMS}) == len(ITEMS)


def test_invalid_entries_are_rejected():
    with pytest.raises(ValueError, match=f"unique.*{ITEMS[0].label}"):
        inventory.read_items(TABLES | {"items": [*TABLES["items"], TABLES["items"][0]]})
    with pytest.raises(ValueError, match=ITEMS[0].label):
        inventory.read_items(TABLES | {"items": TABLES["items"][1:]})
    with pytest.raises(TypeError, match="sumary"):
        inventory.read_items(TABLES | {"items": [*TABLES["items"], {"sumary": "a figure"}]})
    with pytest.raises(KeyError, match="nowhere"):
        inventory.read_items(TABLES | {"items": [TABLES["items"][0] | {"shared": ["nowhere"]}]})


def test_experiments_belong_to_items_or_are_additional():
    named_experiments = {evidence.experiment for item in ITEMS for evidence in item.evidence}
    assert named_experiments | set(ADDITIONAL_EXPERIMENTS) == set(EXPERIMENTS)
    assert named_experiments.isdisjoint(ADDITIONAL_EXPERIMENTS)


@pytest.mark.parametrize("name", sorted({name for item in ITEMS for name in item.code}))
def test_names_can_be_imported(name):
    try:
        import_module(name)
    except ModuleNotFoundError:
        module, _, attribute = name.rpartition(".")
        assert hasattr(import_module(module), attribute)


def test_listed_tests_exist():
    missing = []
    for test in {test for item in ITEMS for test in item.tests}:
        file, _, name = test.partition("::")
        text = (ROOT / "tests" / file).read_text(encoding="utf-8")
        if not re.search(rf"^def {name}\(", text, flags=re.M):
            missing.append(test)
    assert missing == []


@pytest.fixture(scope="module")
def gallery_claims():
    """Return the claims of the last full run by experiment, as listed in the gallery."""
    gallery = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    _, *parts = re.split(r"^###? .*?(?:\{ #(\S+) \})?$", gallery, flags=re.M)
    return {
        name: {"claims": [{"statement": text} for text in re.findall(r"^- \*\*.*\*\*: (.*?) — ", section, flags=re.M)]}
        for name, section in zip(parts[::2], parts[1::2], strict=True)
    }


def test_evidence_matches_claims(gallery_claims):
    for item in ITEMS:
        for evidence in item.evidence:
            assert evidence.claims(gallery_claims), (item.label, evidence)


def test_items_count_claims_once(gallery_claims):
    for item in ITEMS:
        claims = [
            (evidence.experiment, claim["statement"])
            for evidence in item.evidence
            for claim in evidence.claims(gallery_claims)
        ]
        assert [claim for claim, count in Counter(claims).items() if count > 1] == [], item.label


def test_page_has_every_item():
    page = reproduction.PAGE.read_text(encoding="utf-8")
    for item in ITEMS:
        assert f"{{ #{reproduction.anchor(item)} }}" in page
        assert reproduction.sentence(item.summary) in page


def test_page_of_quick_run(tmp_path):
    for _ in Batch([EXPERIMENTS["alpha-tradeoff"]], tmp_path, quick=True).run():
        pass
    outputs = {"alpha-tradeoff": read_outputs(tmp_path, "alpha-tradeoff")}
    page = reproduction.render_page(outputs)
    assert f"from 1 of {len(EXPERIMENTS)} experiments in quick versions" in page
    for item in ITEMS:
        assert reproduction.render_item(item, outputs) in page
    tradeoff = next(item for item in ITEMS if item.label == "fig:alpha_tradeoff")
    claims = outputs["alpha-tradeoff"]["claims"]
    assert len(claims) == 3
    assert all(claim["held"] and claim["measured"] in reproduction.render_item(tradeoff, outputs) for claim in claims)
    other_item = next(item for item in ITEMS if item.label == "fig:NP_classification_main")
    assert "**Not run.**" in reproduction.render_item(other_item, outputs)
    with pytest.raises(ValueError, match="no outputs of np-comparison"):
        reproduction.check(outputs)


def make_outputs(*held):
    claims = [{"statement": f"claim {i} on F", "held": is_held, "measured": f"{i}"} for i, is_held in enumerate(held)]
    return {"np-comparison": {"quick": False, "seeds": EXPERIMENTS["np-comparison"].seeds, "claims": claims}}


ITEM = Item("Figures", "Figure 0", "fig:none", "a figure", evidence=(Evidence("np-comparison", "on F"),))


@pytest.mark.parametrize(
    ("held", "verdict"),
    [
        ((True, True), Verdict.HELD),
        ((True, False), Verdict.PARTLY),
        ((False, False), Verdict.FAILED),
        ((), Verdict.NOT_RUN),
    ],
)
def test_item_verdict(held, verdict):
    assert ITEM.verdict(make_outputs(*held)) is verdict


def test_page_lists_failures():
    page = reproduction.render_page(make_outputs(True, False), (ITEM,))
    assert "## What did not hold, or not all of it\n\n- [Figure 0](#fig-none)" in page
    assert "**Held in part.**" in page
    assert "- **did not hold**: claim 1 on F — 1\n" in page
    assert "What did not hold" not in reproduction.render_page(make_outputs(True, True), (ITEM,))


ITEM_WITH_READINGS = Item(
    "Figures",
    "Figure 0",
    "fig:none",
    "a figure",
    evidence=(Evidence("np-comparison", "claim 0"), Evidence("np-comparison", "claim 1", "all rows")),
    reading="drawn rows",
)


def test_failed_item_shows_best_reading():
    page = reproduction.render_page(make_outputs(False, True), (ITEM_WITH_READINGS,))
    assert ITEM_WITH_READINGS.verdict(make_outputs(False, True)) is Verdict.PARTLY
    assert ITEM_WITH_READINGS.best_reading(make_outputs(False, True)) == ("all rows", Verdict.HELD)
    assert ITEM_WITH_READINGS.best_reading(make_outputs(True, False)) == ("drawn rows", Verdict.HELD)
    assert "**held in part**; the strongest of 2 readings tried: all rows — **held**\n" in page
    assert "- Reading: drawn rows — **did not hold**\n    - **did not hold**: claim 0 on F — 0\n" in page
    assert "- Reading: all rows — **held**\n    - **held**: claim 1 on F — 1\n" in page
    failed = reproduction.render_page(make_outputs(False, False), (ITEM_WITH_READINGS,))
    assert "**did not hold**; the strongest of 2 readings tried: drawn rows — **did not hold**\n" in failed
    page_of_one_reading = reproduction.render_page(make_outputs(False), (ITEM,))
    assert "**did not hold**; the one reading tried: as the paper has it — **did not hold**\n" in page_of_one_reading


def test_page_lists_experiments_with_fewer_seeds():
    outputs = make_outputs(True)
    assert "fewer seeds" not in reproduction.render_page(outputs, (ITEM,))
    outputs["np-comparison"]["seeds"] = 3
    assert "from an earlier run: np-comparison (3)." in reproduction.render_page(outputs, (ITEM,))


def test_verdict_without_evidence():
    assert Item("k", "n", "l", "s", ("softswitch.solve",), tests=("a::b",)).verdict({}) is Verdict.TESTED
    assert Item("k", "n", "l", "s", ("softswitch.solve",)).verdict({}) is Verdict.OPEN
    assert Item("k", "n", "l", "s").verdict({}) is Verdict.PROOF


def test_outdated_outputs_are_rejected(monkeypatch):
    monkeypatch.setattr(reproduction, "EXPERIMENTS", {"np-comparison": EXPERIMENTS["np-comparison"]})
    monkeypatch.setattr(reproduction, "ITEMS", (ITEM,))
    reproduction.check(make_outputs(True))
    other_item = Item("k", "n", "l", "s", evidence=(Evidence("np-comparison", "on G"),))
    monkeypatch.setattr(reproduction, "ITEMS", (other_item,))
    with pytest.raises(ValueError, match="'on G'"):
        reproduction.check(make_outputs(True))
    quick_outputs = make_outputs(True)
    quick_outputs["np-comparison"]["seeds"] = 2
    with pytest.raises(ValueError, match=r"np-comparison.*shorter"):
        reproduction.check(quick_outputs)
