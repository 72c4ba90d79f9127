"""The lemmas."""

from __future__ import annotations

from softswitch_experiments.paper.inventory.item import Item

THEORY = "softswitch.theory."
LEMMAS = "Lemmas"

LEMMA_ITEMS: tuple[Item, ...] = (
    Item(
        LEMMAS,
        "Lemma B.1",
        "lemma:three_point_bregman_divergence_identity",
        "three-point identity of Bregman divergences",
        tests=("theory/test_lemmas.py::test_three_points_and_polarization",),
    ),
    Item(
        LEMMAS,
        "Lemma B.2",
        "lemma:polarization",
        "a step's inner product as a difference of squared distances",
        tests=("theory/test_lemmas.py::test_three_points_and_polarization",),
    ),
    Item(
        LEMMAS,
        "Lemma B.3",
        "lemma:properties_of_weighted_functions",
        "the worst of convex, L-Lipschitz functions is convex and L-Lipschitz",
        tests=("theory/test_lemmas.py::test_the_worst_of_convex_and_lipschitz_functions_is_both",),
    ),
    Item(
        LEMMAS,
        "Lemma B.4",
        "lemma:softmax_mean",
        "the softmax mean shifts, scales and rises with α, and is within ln(n)/α of the maximum",
        ("softswitch.softmax_mean",),
        tests=(
            "methods/test_weighting.py::test_shift",
            "methods/test_weighting.py::test_scale",
            "methods/test_weighting.py::test_mean_does_not_fall_as_alpha_grows",
            "methods/test_weighting.py::test_between_maximum_and_maximum_minus_log_over_alpha",
        ),
    ),
    Item(
        LEMMAS,
        "Lemma B.5",
        "lemma:masked_softmax_mean",
        "the same over those who take part, with ln(m)/α",
        ("softswitch.softmax_mean",),
        tests=("methods/test_weighting.py::test_between_maximum_and_maximum_minus_log_over_alpha",),
    ),
    Item(
        LEMMAS,
        "Lemma B.6",
        "lemma:deviation_bound_softmax_mean",
        "weights from values with errors δ lose at most 2‖δ‖∞ + ln(n)/α",
        ("softswitch.softmax_weights",),
        tests=("methods/test_weighting.py::test_weights_from_noisy_values_still_find_the_maximum",),
    ),
    Item(
        LEMMAS,
        "Lemma B.7",
        "lemma:subgaussianity",
        "mean 0 and E exp(X²) ≤ 2 give E exp(λX) ≤ exp(λ²/2)",
        tests=("theory/test_lemmas.py::test_small_exponential_squares_make_subgaussian",),
        note="Its remark puts X = ‖z‖/σ, which has no mean of 0; with X = ⟨e, z⟩/σ the conclusion stands.",
    ),
    Item(
        LEMMAS,
        "Lemma B.8",
        "lemma:average_subgaussian_random_vectors",
        "a sum of E such vectors, divided by 2√E, is such a vector again",
        tests=("theory/test_lemmas.py::test_sums_of_subgaussian_vectors",),
    ),
    Item(
        LEMMAS,
        "Lemma B.9",
        "lemma:conditional_expectation_independent_rv",
        "what is known may be held fixed under the expectation of what is independent of it",
    ),
    Item(
        LEMMAS,
        "Lemma B.10",
        "lemma:maximal_inequality_subgaussianity",
        "the largest of n noises, summed over the feasible rounds, is at most √(2 ln(2Kn/δ)) a round",
        tests=("theory/test_lemmas.py::test_the_largest_noises_summed_over_chosen_rounds",),
    ),
    Item(
        LEMMAS,
        "Lemma B.11",
        "lemma:upperbound_binom",
        "a ratio of binomial coefficients is at most (1 − m/n)^(n − n′)",
        tests=("theory/test_lemmas.py::test_ratios_of_binomials",),
    ),
    Item(
        LEMMAS,
        "Lemma B.12",
        "lemma:conditional_exponential_tail_bound",
        "the worst of m random clients is below the worst of all by t with probability exp(−|ln(1−r)|nt/σ) at most",
        (THEORY + "tail_bound",),
        tests=(
            "theory/test_theorems.py::test_tail_bound_with_a_uniform_gap",
            "theory/test_lemmas.py::test_what_the_worst_of_a_random_subset_misses_on_average",
        ),
    ),
    Item(
        LEMMAS,
        "Lemma B.13",
        "lemma:conditional_exponential_tail_bound_with_uniform_cdf",
        "the same for F and G at the iterates of a run",
        (THEORY + "tail_bound",),
        tests=("theory/test_theorems.py::test_tail_bound_against_exact_probabilities",),
    ),
    Item(
        LEMMAS,
        "Lemma B.14",
        "lemma:upper_bound_average_rv_conditional_exponential_tail",
        "three bounds on a sum of variables with exponential tails over rounds that may be chosen by them",
        tests=("theory/test_lemmas.py::test_sums_with_exponential_tails_over_chosen_rounds",),
    ),
    Item(
        LEMMAS,
        "Lemma F.1",
        "lemma:tail_bound_relaxed_assumption",
        "Lemma B.12 for gaps that are dominated by any variable U ≥ 0",
        (THEORY + "tail_bound",),
        tests=("theory/test_theorems.py::test_tail_bound_against_exact_probabilities",),
    ),
)
