"""What a client keeps of its budget: for the direction that belongs to a report, and for judging the answer."""

import itertools
import json

import pytest

import softswitch as ss
import softswitch.flower as fl
from softswitch.flower.private_client import SpentBudget
from softswitch.privacy.accounting import compute_epsilon
from softswitch.privacy.settings import NoiseLevels, Releases

ALL_ROWS = 1.0


def budget_in(file, local_steps=1, evaluations=2, **settings):
    privacy = ss.RecordPrivacy(epsilon=1, **settings)
    return SpentBudget(file, privacy, Releases.planned(privacy, 50, local_steps, evaluations))


def charged(budget, **more):
    try:
        budget.charge(**more)
    except fl.RefusalError:
        return False
    return True


@pytest.mark.parametrize("settings", [{}, {"local_steps": 3}, {"public_sizes": False}])
def test_with_noise_and_a_budget_rounds_leave_enough_for_their_directions_and_the_judgings(tmp_path, settings):
    budget = budget_in(tmp_path / "spent", noise=30.0, **settings)
    if "public_sizes" in settings:
        budget.release_sizes(lambda: [1.0])
    steps = settings.get("local_steps", 1)
    rounds = sum(itertools.takewhile(bool, (charged(budget, reports=1) for _ in range(3))))
    assert rounds == 3  # rounds that were void: nothing is kept for their directions any more
    while charged(budget, reports=1):
        budget.charge(steps=steps)
        rounds += 1
    for _ in range(2):
        budget.charge(evaluations=1)
    told = budget.releases
    assert told[:3] == (rounds, (rounds - 3) * steps, 2)
    assert rounds > 5
    levels = NoiseLevels(*json.loads((tmp_path / "spent").read_text())["levels"])
    another = told._replace(reports=told.reports + 1, steps=told.steps + steps)
    assert compute_epsilon(told, levels, ALL_ROWS, 1e-5) <= 1 < compute_epsilon(another, levels, ALL_ROWS, 1e-5)


def test_a_budget_that_allows_no_round_is_refused_before_anything_is_told(tmp_path):
    with pytest.raises(ValueError, match=r"epsilon = 1 does not allow a single round with noise = 5: raise the noise"):
        budget_in(tmp_path / "spent", noise=5.0)
    assert not (tmp_path / "spent").exists()
