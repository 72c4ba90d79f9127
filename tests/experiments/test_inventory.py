"""The inventory of the paper: complete, consistent with code and tests, and rendered as the run found it."""

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


def test_every_label_of_the_paper_is_covered_once():
    counts = Counter(item.label for item in ITEMS)
    assert [label for label, times in counts.items() if times > 1] == []
    assert len(TABLES["labels"]) == 57
    assert [label for label in TABLES["labels"] if label not in counts] == []
    assert len({reproduction.anchor(item) for item in ITEMS}) == len(ITEMS)


def test_repeated_missing_and_misspelt_entries_are_refused():
    with pytest.raises(ValueError, match=f"unique.*{ITEMS[0].label}"):
        inventory.read_items(TABLES | {"items": [*TABLES["items"], TABLES["items"][0]]})
    with pytest.raises(ValueError, match=ITEMS[0].label):
        inventory.read_items(TABLES | {"items": TABLES["items"][1:]})
    with pytest.raises(TypeError, match="sumary"):
        inventory.read_items(TABLES | {"items": [*TABLES["items"], {"sumary": "a figure"}]})
    with pytest.raises(KeyError, match="nowhere"):
        inventory.read_items(TABLES | {"items": [TABLES["items"][0] | {"shared": ["nowhere"]}]})


def test_every_experiment_belongs_to_an_item_or_is_additional():
    named = {evidence.experiment for item in ITEMS for evidence in item.evidence}
    assert named | set(ADDITIONAL_EXPERIMENTS) == set(EXPERIMENTS)
    assert named.isdisjoint(ADDITIONAL_EXPERIMENTS)


@pytest.mark.parametrize("name", sorted({name for item in ITEMS for name in item.code}))
def test_every_name_can_be_imported(name):
    try:
        import_module(name)
    except ModuleNotFoundError:
        module, _, attribute = name.rpartition(".")
        assert hasattr(import_module(module), attribute)


def test_every_test_exists():
    missing = []
    for test in {test for item in ITEMS for test in item.tests}:
        file, _, name = test.partition("::")
        text = (ROOT / "tests" / file).read_text(encoding="utf-8")
        if not re.search(rf"^def {name}\(", text, flags=re.M):
            missing.append(test)
    assert missing == []


@pytest.fixture(scope="module")
def gallery_claims():
    """Claims of the last full run, by experiment, as the gallery lists them."""
    gallery = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    _, *parts = re.split(r"^###? .*?(?:\{ #(\S+) \})?$", gallery, flags=re.M)
    return {
        name: {"claims": [{"statement": text} for text in re.findall(r"^- \*\*.*\*\*: (.*?) — ", section, flags=re.M)]}
        for name, section in zip(parts[::2], parts[1::2], strict=True)
    }


def test_the_evidence_of_every_item_matches_claims(gallery_claims):
    for item in ITEMS:
        for evidence in item.evidence:
            assert evidence.claims(gallery_claims), (item.label, evidence)


def test_no_item_counts_a_claim_twice(gallery_claims):
    for item in ITEMS:
        claims = [
            (evidence.experiment, claim["statement"])
            for evidence in item.evidence
            for claim in evidence.claims(gallery_claims)
        ]
        assert [claim for claim, times in Counter(claims).items() if times > 1] == [], item.label


def test_the_page_has_every_item():
    page = reproduction.PAGE.read_text(encoding="utf-8")
    for item in ITEMS:
        assert f"{{ #{reproduction.anchor(item)} }}" in page
        assert reproduction.sentence(item.summary) in page


def test_the_page_of_a_quick_run(tmp_path):
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
    other = next(item for item in ITEMS if item.label == "fig:NP_classification_main")
    assert "**Not run.**" in reproduction.render_item(other, outputs)
    with pytest.raises(ValueError, match="no outputs of np-comparison"):
        reproduction.check(outputs)


def outputs_with(*held):
    claims = [{"statement": f"claim {i} on F", "held": one, "measured": f"{i}"} for i, one in enumerate(held)]
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
def test_an_item_is_judged_by_its_claims(held, verdict):
    assert ITEM.verdict(outputs_with(*held)) is verdict


def test_the_page_lists_what_failed():
    page = reproduction.render_page(outputs_with(True, False), (ITEM,))
    assert "## What did not hold, or not all of it\n\n- [Figure 0](#fig-none)" in page
    assert "**Held in part.**" in page
    assert "- **did not hold**: claim 1 on F — 1\n" in page
    assert "What did not hold" not in reproduction.render_page(outputs_with(True, True), (ITEM,))


READ = Item(
    "Figures",
    "Figure 0",
    "fig:none",
    "a figure",
    evidence=(Evidence("np-comparison", "claim 0"), Evidence("np-comparison", "claim 1", "all rows")),
    reading="drawn rows",
)


def test_a_failed_item_is_shown_under_its_best_reading():
    page = reproduction.render_page(outputs_with(False, True), (READ,))
    assert READ.verdict(outputs_with(False, True)) is Verdict.PARTLY
    assert READ.best_reading(outputs_with(False, True)) == ("all rows", Verdict.HELD)
    assert READ.best_reading(outputs_with(True, False)) == ("drawn rows", Verdict.HELD)
    assert "**held in part**; the strongest of 2 readings tried: all rows — **held**\n" in page
    assert "- Reading: drawn rows — **did not hold**\n    - **did not hold**: claim 0 on F — 0\n" in page
    assert "- Reading: all rows — **held**\n    - **held**: claim 1 on F — 1\n" in page
    failed = reproduction.render_page(outputs_with(False, False), (READ,))
    assert "**did not hold**; the strongest of 2 readings tried: drawn rows — **did not hold**\n" in failed
    alone = reproduction.render_page(outputs_with(False), (ITEM,))
    assert "**did not hold**; the one reading tried: as the paper has it — **did not hold**\n" in alone


def test_the_page_names_experiments_with_fewer_seeds():
    outputs = outputs_with(True)
    assert "fewer seeds" not in reproduction.render_page(outputs, (ITEM,))
    outputs["np-comparison"]["seeds"] = 3
    assert "from an earlier run: np-comparison (3)." in reproduction.render_page(outputs, (ITEM,))


def test_the_verdict_without_evidence():
    assert Item("k", "n", "l", "s", ("softswitch.solve",), tests=("a::b",)).verdict({}) is Verdict.TESTED
    assert Item("k", "n", "l", "s", ("softswitch.solve",)).verdict({}) is Verdict.OPEN
    assert Item("k", "n", "l", "s").verdict({}) is Verdict.PROOF


def test_a_page_of_shorter_versions_or_other_claims_is_refused(monkeypatch):
    monkeypatch.setattr(reproduction, "EXPERIMENTS", {"np-comparison": EXPERIMENTS["np-comparison"]})
    monkeypatch.setattr(reproduction, "ITEMS", (ITEM,))
    reproduction.check(outputs_with(True))
    other = Item("k", "n", "l", "s", evidence=(Evidence("np-comparison", "on G"),))
    monkeypatch.setattr(reproduction, "ITEMS", (other,))
    with pytest.raises(ValueError, match="'on G'"):
        reproduction.check(outputs_with(True))
    short = outputs_with(True)
    short["np-comparison"]["seeds"] = 2
    with pytest.raises(ValueError, match=r"np-comparison.*shorter"):
        reproduction.check(short)
