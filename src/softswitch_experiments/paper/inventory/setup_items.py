"""The problem, its definitions, and the algorithms."""

from __future__ import annotations

from softswitch_experiments.paper.inventory.item import Item

METHOD = "softswitch.methods."
SETUP = "Problem and definitions"
ALGORITHMS = "Algorithms"

SETUP_ITEMS: tuple[Item, ...] = (
    Item(
        SETUP,
        "Equation 1",
        "eq:fed_op_prb",
        "federated learning as a weighted mean over clients, for contrast",
        ("softswitch.AverageSGM",),
        tests=("methods/test_rules.py::test_average_is_softmax_at_zero",),
    ),
    Item(
        SETUP,
        "Equation 2",
        "eq:afl_objective",
        "the worst client as a maximum over weights on the simplex",
        ("softswitch.HardSGM",),
        tests=("methods/test_rules.py::test_hard_is_the_limit_of_softmax",),
    ),
    Item(
        SETUP,
        "Equation 3",
        "eq:constrained_minimax_intro",
        "the worst client's loss, subject to every client's constraint",
        ("softswitch.Problem",),
        tests=("engine/test_convex.py::test_minimax_quadratic_program",),
    ),
    Item(
        SETUP,
        "Equation (†)",
        "eq:opt_constrained",
        "the same with expectations over each client's data",
        ("softswitch.Problem", "softswitch.ClientData"),
        tests=("engine/test_convex.py::test_neyman_pearson_in_a_ball",),
    ),
    Item(
        SETUP,
        "Equation (∗)",
        "eq:opt_sol",
        "the optimum w*: how far an answer is from it can be bounded from below",
        ("softswitch.lower_bound",),
        tests=("certification/test_best_possible.py::test_it_is_at_or_below_the_optimum_and_near_it",),
    ),
    Item(
        SETUP,
        "Equation 5",
        "eq:approx_function_values",
        "values estimated from B_ζ rows a client",
        ("softswitch.solve", "softswitch.oracles.federation.TakingPart"),
        tests=("data/test_sampling.py::test_weighted_means_are_unbiased",),
    ),
    Item(
        SETUP,
        "Equation 6",
        "eq:approx_gradients",
        "gradients estimated from B_g rows a client",
        ("softswitch.oracles.gradient",),
        tests=("data/test_sampling.py::test_a_round_draws_the_same_whatever_the_chunk",),
    ),
    Item(
        SETUP,
        "Equation 8",
        "eq:global_update",
        "the server's step: directions weighed by the softmax of the reports",
        (METHOD + "round.advance",),
        tests=("engine/test_trajectories.py::test_engine_follows_the_reference_loop",),
    ),
    Item(
        SETUP,
        "Equation 9",
        "eq:masked_softmax",
        "softmax over those who take part",
        ("softswitch.softmax_weights",),
        tests=("methods/test_weighting.py::test_weights_form_a_distribution_on_the_mask",),
    ),
    Item(
        SETUP,
        "Equation 10",
        "eq:max_function_values_subsets",
        "the worst of those who take part",
        (METHOD + "weighting.maximum",),
        tests=("methods/test_rules.py::test_absent_clients_count_nothing",),
    ),
    Item(
        SETUP,
        "Equation 11",
        "eq:constraint_criteria_subsets",
        "the switch's criterion: the softmax mean of the constraints of those who take part",
        ("softswitch.softmax_mean", METHOD + "rules.switching.switch"),
        tests=("methods/test_rules.py::test_softmax_switches_and_weighs_by_hand",),
    ),
    Item(
        ALGORITHMS,
        "Algorithm 1",
        "alg:switching_gd_softmax_fedpartial",
        "Softmax-weighted switching gradient, m of n clients a round, E local steps",
        ("softswitch.SoftmaxSGM", "softswitch.solve"),
        tests=(
            "engine/test_trajectories.py::test_engine_follows_the_reference_loop",
            "data/test_sampling.py::test_subsets_are_uniform",
            "methods/test_round.py::test_only_feasible_iterates_before_their_step_are_averaged",
        ),
        note="Also over real machines (`softswitch.flower`), and with a memory of absent clients (`Memory`).",
    ),
    Item(
        ALGORITHMS,
        "Function 1",
        "function:local_solver",
        "E local steps, and the direction (w₀ − w_E)/(γE)",
        ("softswitch.oracles.gradient",),
        tests=(
            "engine/test_solve.py::test_one_backward_pass_equals_the_local_solver_at_one_step",
            "engine/test_trajectories.py::test_local_step_size_of_its_own_and_projection",
        ),
    ),
    Item(
        ALGORITHMS,
        "Algorithm 2",
        "alg:switching_gd_softmax",
        "the special case m = n, E = 1",
        ("softswitch.SoftmaxSGM",),
        tests=("engine/test_trajectories.py::test_engine_follows_the_reference_loop",),
    ),
    Item(
        ALGORITHMS,
        "Algorithm 3",
        "alg:switching_gd_softmax_fedfull",
        "the special case m = n, E ≥ 1",
        ("softswitch.SoftmaxSGM",),
        tests=("engine/test_trajectories.py::test_engine_follows_the_reference_loop",),
    ),
    Item(
        ALGORITHMS,
        "Appendix A",
        "softmax-entropy",
        "softmax weights maximise the mean plus entropy/α: the average for α → 0, the maximum for α → ∞",
        ("softswitch.softmax_weights",),
        tests=(
            "methods/test_weighting.py::test_weights_maximise_mean_plus_entropy",
            "methods/test_weighting.py::test_limits_of_alpha",
        ),
    ),
)
