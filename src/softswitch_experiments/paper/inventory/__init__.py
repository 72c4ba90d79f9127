"""Everything that the paper states and shows: one entry each.

To add one: an ``Item`` in the file of its kind, with the paper's number and label. docs/reproduction.py makes the page
of it, and tests/experiments/test_inventory.py sees that names, experiments, claims and tests are there.
"""

from softswitch_experiments.paper.inventory.claim_items import CLAIM_ITEMS
from softswitch_experiments.paper.inventory.figure_items import FIGURE_ITEMS
from softswitch_experiments.paper.inventory.item import Item, Judgement, Put, judged
from softswitch_experiments.paper.inventory.labels import LABELS
from softswitch_experiments.paper.inventory.lemma_items import LEMMA_ITEMS
from softswitch_experiments.paper.inventory.setup_items import SETUP_ITEMS
from softswitch_experiments.paper.inventory.theory_items import THEORY_ITEMS

ITEMS: tuple[Item, ...] = (*SETUP_ITEMS, *THEORY_ITEMS, *LEMMA_ITEMS, *FIGURE_ITEMS, *CLAIM_ITEMS)
BESIDE = ("fair-frontier", "alpha-scale")
"""Experiments on questions of our own, which the paper does not raise."""

__all__ = ["BESIDE", "ITEMS", "LABELS", "Item", "Judgement", "Put", "judged"]
