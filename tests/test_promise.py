"""The theorems' own promise, over 200 runs with a plan's settings on a problem whose optimum is known."""

import numpy as np
import pytest
from benchmarks.promise import keep_promise


@pytest.mark.parametrize("theorem", [1, 2, 3])
def test_the_promise_is_kept(theorem):
    tried = keep_promise(theorem, seeds=200, delta=0.1)
    assert tried.plan.met
    assert tried.plan.bound.theorem == theorem
    assert tried.kept >= 0.9
    # The runs must be worth looking at: they reach the optimum's neighbourhood from F(0) − F* > 0.1, and differ.
    assert tried.gaps.max() < 0.1
    assert np.ptp(tried.violations) > 0
