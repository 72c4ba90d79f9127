"""The readings of the paper that its items are put to the test under, and the claims that belong to each."""

from __future__ import annotations

from collections.abc import Iterator

from softswitch_experiments.paper.fair import fair_readings, occupation_readings
from softswitch_experiments.paper.inventory.item import Put
from softswitch_experiments.paper.neyman_pearson import np_readings, step_readings
from softswitch_experiments.paper.safe_rl import safe_rl_study

DRAWN = "batches of 32 drawn by class, γ = η, “local epochs” as local steps"
EXACT = "the theorems' own: γ = η/E, projection onto the domain, the average of the feasible iterates"
MODEL = "Adam on the server, the criterion from pooled sums unless said otherwise, “local epochs” as local steps"
CARTS = "α = 0.05"
OWN = ": Softmax SGM "
"""How the claims of a contest on Softmax SGM's last iterate go on after the reading's name."""
ANSWERS = {
    "at the paper's setting": "its last iterate at the paper's setting, the baselines tuned",
    "tuned": "last iterates, all methods tuned on equal terms",
}
"""Which answer of Softmax SGM they are about."""


def np_contests() -> Iterator[tuple[str, str, str]]:
    """Experiment, its reading's own name, and the reading in words, of every Neyman–Pearson contest."""
    for experiment, readings in (
        (np_readings.EXPERIMENT, np_readings.FULL_READINGS),
        (np_readings.PARTIAL_EXPERIMENT, np_readings.PARTIAL_READINGS),
    ):
        for reading in readings:
            yield experiment.name, reading.name, f"{reading.name}; {reading.way.name}"


NP_AT_PAPERS_SETTINGS = tuple(
    Put(experiment, f"{name}: at the paper's settings", f"{words}; last iterates at the paper's settings")
    for experiment, name, words in np_contests()
)
NP_ANSWERS = {
    **{f"{OWN}{how} meets G": answer for how, answer in ANSWERS.items()},
    ": Softmax SGM, w̄ tuned meets G": "its w̄, all methods tuned on equal terms",
}
NP_AGAINST_TUNED = tuple(
    Put(experiment, name + about, f"{words}; {answer}")
    for experiment, name, words in np_contests()
    for about, answer in NP_ANSWERS.items()
)
LOCAL_STEPS = tuple(
    Put(step_readings.EXPERIMENT.name, f"{data}, {local}, {iterate}:", f"{data}, {local}; {answer}")
    for data in step_readings.DATA
    for local in step_readings.LOCAL
    for iterate, answer in (("w̄", "w̄"), ("last", "the last iterate"))
)
FAIR_AT_PAPERS_SETTINGS = tuple(
    Put("fair-comparison", about)
    for about in ("average meets G", "at the paper's settings", "primal-dual does not recover")
)
FAIR_COMPARISON = (*FAIR_AT_PAPERS_SETTINGS, Put("fair-comparison", "last iterates meet G"))
"""Not the rounds in violation: the paper counts them for Neyman–Pearson and for the carts."""


def fair_contests(outcome: str) -> tuple[Put, ...]:
    """Claims of every contest on Adult with ten alike clients: that Softmax SGM "meets G" and is ahead, or near."""
    of_steps = (
        Put(
            fair_readings.EXPERIMENT.name,
            f"{name}, {one.judged_by}: {one.name} {how} {outcome}",
            f"{name}, {one.judged_by}; {answer}",
        )
        for name in fair_readings.READINGS
        for one in fair_readings.CONTENDERS
        if one.method == "Softmax SGM"
        for how, answer in ANSWERS.items()
    )
    of_passes = (
        Put(
            fair_readings.PASSES_EXPERIMENT.name,
            f"{fair_readings.PASSES} passes, {fair_readings.AT_WORST}{OWN}{how} {outcome}",
            f"“local epochs” as passes, {fair_readings.AT_WORST}; {answer}",
        )
        for how, answer in ANSWERS.items()
    )
    return (*of_steps, *of_passes)


FAIR_AGAINST_TUNED = fair_contests("meets G")
FAIR_COMPETITIVE = fair_contests("is competitive")
OCCUPATIONS = tuple(
    Put(
        occupation_readings.EXPERIMENT.name,
        f"{reading.name}{OWN}{how} meets G",
        f"a client an occupation, reports of {reading.name}; {answer}",
    )
    for reading in occupation_readings.READINGS
    for how, answer in ANSWERS.items()
)


def carts(*abouts: str) -> tuple[Put, ...]:
    """Claims of the comparison with Parallel CRPO, setting by setting; none named: all of them."""
    settings = (safe_rl_study.PRIMARY, safe_rl_study.SECONDARY, safe_rl_study.DRAWN, safe_rl_study.REFERENCE)
    return tuple(
        Put("safe-rl", f"{setting.name}: {about}", f"{CARTS}: {setting.name}")
        for setting in settings
        for about in abouts or ("",)
    )
