"""The inventory of the paper names what is there, covers it once, and its page says what a run found."""

import re
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path

import pytest

from softswitch_experiments.paper import EXPERIMENTS
from softswitch_experiments.paper.batch import Batch
from softswitch_experiments.paper.inventory import BESIDE, ITEMS, LABELS, Item, Judgement, Put
from softswitch_experiments.paper.outputs import told

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))
import reproduction  # noqa: E402


def test_every_label_of_the_paper_is_covered_once():
    counted = Counter(item.label for item in ITEMS)
    assert [label for label, times in counted.items() if times > 1] == []
    assert [label for label in LABELS if label not in counted] == []
    assert len({reproduction.anchor(item) for item in ITEMS}) == len(ITEMS)


def test_every_experiment_belongs_to_an_item_or_is_our_own():
    named = {put.experiment for item in ITEMS for put in item.put}
    assert named | set(BESIDE) == set(EXPERIMENTS)
    assert named.isdisjoint(BESIDE)


@pytest.mark.parametrize("name", sorted({name for item in ITEMS for name in item.where}))
def test_every_name_can_be_imported(name):
    try:
        import_module(name)
    except ModuleNotFoundError:
        module, _, attribute = name.rpartition(".")
        assert hasattr(import_module(module), attribute)


def test_every_test_is_there():
    missing = []
    for test in {test for item in ITEMS for test in item.tests}:
        file, _, name = test.partition("::")
        text = (ROOT / "tests" / file).read_text(encoding="utf-8")
        if not re.search(rf"^def {name}\(", text, flags=re.M):
            missing.append(test)
    assert missing == []


def test_the_words_of_every_item_are_among_its_experiments_claims():
    """The gallery has every claim of the last full run."""
    gallery = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    _, *parts = re.split(r"^###? .*?(?:\{ #(\S+) \})?$", gallery, flags=re.M)
    claims = {
        name: re.findall(r"^- \*\*.*\*\*: (.*?) — ", text, flags=re.M)
        for name, text in zip(parts[::2], parts[1::2], strict=True)
    }
    for item in ITEMS:
        for put in item.put:
            assert any(put.about in statement for statement in claims[put.experiment]), (item.label, put)


def test_the_page_is_there_with_every_item():
    page = reproduction.PAGE.read_text(encoding="utf-8")
    for item in ITEMS:
        assert f"{{ #{reproduction.anchor(item)} }}" in page
        assert reproduction._sentence(item.says) in page


def test_the_page_of_a_quick_run(tmp_path):
    for _ in Batch([EXPERIMENTS["alpha-tradeoff"]], tmp_path, quick=True).run():
        pass
    found = {"alpha-tradeoff": told(tmp_path, "alpha-tradeoff")}
    page = reproduction.page(found)
    assert f"from 1 of {len(EXPERIMENTS)} experiments in quick versions" in page
    for item in ITEMS:
        assert reproduction.entry(item, found) in page
    tradeoff = next(item for item in ITEMS if item.label == "fig:alpha_tradeoff")
    claims = found["alpha-tradeoff"]["claims"]
    assert len(claims) == 3
    assert all(claim["held"] and claim["measured"] in reproduction.entry(tradeoff, found) for claim in claims)
    other = next(item for item in ITEMS if item.label == "fig:NP_classification_main")
    assert "**Not run.**" in reproduction.entry(other, found)
    with pytest.raises(ValueError, match="no outputs of np-comparison"):
        reproduction.check(found)


def claimed(*held):
    claims = [{"statement": f"claim {i} on F", "held": one, "measured": f"{i}"} for i, one in enumerate(held)]
    return {"np-comparison": {"quick": False, "seeds": EXPERIMENTS["np-comparison"].seeds, "claims": claims}}


ITEM = Item("Figures", "Figure 0", "fig:none", "a figure", put=(Put("np-comparison", "on F"),))


@pytest.mark.parametrize(
    ("held", "verdict"),
    [
        ((True, True), Judgement.HELD),
        ((True, False), Judgement.PARTLY),
        ((False, False), Judgement.FAILED),
        ((), Judgement.NOT_RUN),
    ],
)
def test_an_item_is_judged_by_its_claims(held, verdict):
    assert ITEM.standing(claimed(*held)) is verdict


def test_a_claim_that_failed_is_said_so_on_the_page():
    page = reproduction.page(claimed(True, False), (ITEM,))
    assert "## What did not hold, or not all of it\n\n- [Figure 0](#fig-none)" in page
    assert "**Held in part.**" in page
    assert "- **did not hold**: claim 1 on F — 1\n" in page
    assert "What did not hold" not in reproduction.page(claimed(True, True), (ITEM,))


READ = Item(
    "Figures",
    "Figure 0",
    "fig:none",
    "a figure",
    put=(Put("np-comparison", "claim 0"), Put("np-comparison", "claim 1", "all rows")),
    reading="drawn rows",
)


def test_what_failed_under_one_reading_is_shown_under_the_strongest():
    page = reproduction.page(claimed(False, True), (READ,))
    assert READ.standing(claimed(False, True)) is Judgement.PARTLY
    assert READ.strongest(claimed(False, True)) == ("all rows", Judgement.HELD)
    assert READ.strongest(claimed(True, False)) == ("drawn rows", Judgement.HELD)
    assert "**held in part**; the strongest of 2 readings tried: all rows — **held**\n" in page
    assert "- Reading: drawn rows — **did not hold**\n    - **did not hold**: claim 0 on F — 0\n" in page
    assert "- Reading: all rows — **held**\n    - **held**: claim 1 on F — 1\n" in page
    failed = reproduction.page(claimed(False, False), (READ,))
    assert "**did not hold**; the strongest of 2 readings tried: drawn rows — **did not hold**\n" in failed
    alone = reproduction.page(claimed(False), (ITEM,))
    assert "**did not hold**; the one reading tried: as the paper has it — **did not hold**\n" in alone


def test_no_item_counts_a_claim_twice():
    sections = re.split(r"^## ", (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8"), flags=re.M)
    told = {
        s.split("\n")[0]: {"claims": [{"statement": c} for c in re.findall(r"^- \*\*.*\*\*: (.*?) — ", s, flags=re.M)]}
        for s in sections
    }
    for item in ITEMS:
        counted = Counter(claim["statement"] for claim in item.claims(told))
        assert [statement for statement, times in counted.items() if times > 1] == [], item.label


def test_fewer_seeds_than_an_experiment_has_are_said():
    found = claimed(True)
    assert "fewer seeds" not in reproduction.page(found, (ITEM,))
    found["np-comparison"]["seeds"] = 3
    assert "from an earlier run: np-comparison (3)." in reproduction.page(found, (ITEM,))


def test_what_no_experiment_puts_to_the_test():
    assert Item("k", "n", "l", "s", ("softswitch.solve",), tests=("a::b",)).standing({}) is Judgement.TESTED
    assert Item("k", "n", "l", "s", ("softswitch.solve",)).standing({}) is Judgement.OPEN
    assert Item("k", "n", "l", "s").standing({}) is Judgement.PROOF


def test_a_page_of_shorter_versions_or_other_words_is_refused(monkeypatch):
    monkeypatch.setattr(reproduction, "EXPERIMENTS", {"np-comparison": EXPERIMENTS["np-comparison"]})
    monkeypatch.setattr(reproduction, "ITEMS", (ITEM,))
    reproduction.check(claimed(True))
    monkeypatch.setattr(reproduction, "ITEMS", (Item("k", "n", "l", "s", put=(Put("np-comparison", "on G"),)),))
    with pytest.raises(ValueError, match="'on G'"):
        reproduction.check(claimed(True))
    short = claimed(True)
    short["np-comparison"]["seeds"] = 2
    with pytest.raises(ValueError, match="shorter"):
        reproduction.check(short)
