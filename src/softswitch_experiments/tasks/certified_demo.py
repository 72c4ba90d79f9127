"""The demonstration's second part: three hospitals want to miss few malignant cases on rows that nobody has seen."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from softswitch.data.splits import Parts
from softswitch.engine.certified import Certified, solve_certified
from softswitch.methods.softmax_sgm import SoftmaxSGM
from softswitch.problem.networks import false_alarms, moved_network, network, row_scores
from softswitch.problem.problem import Problem
from softswitch.problem.ranges import ZERO_ONE
from softswitch.problem.rates import miss_rate

BOUNDS = (0.05, 0.2)
"""At most so many malignant cases are to be missed, at every hospital: what one would want, and what rows allow."""
HOSPITALS = ("north", "south", "west")
ROUNDS = 1000


def hospitals(seed: int = 0) -> Parts:
    """Breast cancer, dealt at random over three hospitals: half to learn from, a fifth to choose by, the rest apart."""
    from sklearn.datasets import load_breast_cancer

    features, benign = load_breast_cancer(return_X_y=True)
    standardised = ((features - features.mean(axis=0)) / features.std(axis=0)).astype(np.float32)
    owner = np.random.default_rng(seed).choice(HOSPITALS, len(benign))
    data = {"x": standardised, "y": (1 - benign).astype(np.int32)}
    return Parts.from_arrays(data, owner, alike=("y",), choosing=0.2, held_out=0.3, strata="y", seed=seed)


def certified(bound: float, parts: Parts, rounds: int = ROUNDS) -> Certified:
    """A model for a bound on the rate of misses: trained, chosen, and certified or not."""
    rate = miss_rate(row_scores)
    start = jax.tree.map(jnp.zeros_like, network(30, ()))
    problem = Problem(
        false_alarms, rate.constraint, start, constraint_surrogate=rate.stand_in, constraint_range=ZERO_ONE
    )
    return solve_certified(problem, parts, SoftmaxSGM(tolerance=bound), move=moved_network, rounds=rounds)


def story(rounds: int = ROUNDS) -> str:
    """What happens for both bounds, in words: what can be certified, what was chosen, and what came of it."""
    parts = hospitals()
    lines = [
        "Three hospitals, breast cancer: half of each one's cases to learn from, a fifth to choose a model by, and "
        f"{int(parts.certify.sizes.sum())} cases that are looked at once, at the end.",
    ]
    for bound in BOUNDS:
        found = certified(bound, parts, rounds)
        chosen = f"Chosen of {found.looked_at} models: {found.model}. " if found.model else ""
        lines += [
            "",
            f"Asked for: at most {bound:.0%} of malignant cases are missed, at every hospital.",
            f"  Before training: {found.certifiability}",
            f"  On training rows: {found.result.worst_constraint:.1%} are missed at the worst hospital. {chosen}",
            f"  On cases nobody has seen: {str(found).splitlines()[0]}",
        ]
    return "\n".join(lines)
