"""The theorems' own promise, over many runs with a plan's settings on a problem whose optimum is known."""

import numpy as np
import pytest

from benchmarks.promise import keep_promise

SLOW = [
    pytest.param(*case, marks=pytest.mark.slow)
    for case in ((1, False, 100), (2, True, 200), (2, False, 200), (3, True, 200))
]


@pytest.mark.parametrize(("theorem", "binding", "seeds"), [(1, True, 100), (3, False, 60), *SLOW])
def test_the_promise_is_kept(optimised, theorem, binding, seeds):
    tried = keep_promise(theorem, seeds=seeds, delta=0.1, binding=binding)
    assert tried.plan.met
    assert tried.plan.bound.theorem == theorem
    assert tried.kept >= 0.9
    assert np.ptp(tried.gaps) > 0
    if not binding:
        assert (tried.gaps > -1e-5).all(), "then no answer is better than the optimum"
        assert tried.gaps.max() > 1e-3
