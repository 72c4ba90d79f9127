"""What a run bounds, in words and units, from its settings: for the report, for the command line, for a folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from softswitch.support.text import number, share


class KindInWords(NamedTuple):
    """How to speak of a kind of constraint.

    Attributes:
        constraint: what is bounded, as the head of a column.
        objective: what is to be small, likewise.
        write: a value of the constraint as people write it.
        sentence: what must hold, after "At every hospital"; with {bound}, {points} (a bound on a difference of
            shares), {positive} ("diagnosis = malignant"), {label}, {group} ("sex = F") and {constraint}.
        cost: the metric of clients that tells what the bound is paid with, where there is one.
    """

    constraint: str
    objective: str
    write: Callable[[float | None], str]
    sentence: str
    cost: str | None = None


LOSS, OF_POSITIVE, OF_NEGATIVE = "mean log loss", "log loss of positive rows", "log loss of negative rows"

IN_WORDS: dict[str, KindInWords] = {
    "miss-rate": KindInWords(
        "miss rate",
        OF_NEGATIVE,
        share,
        "at most {bound} of the rows with {positive} may be missed (decided otherwise).",
        "false_alarm_rate",
    ),
    "false-alarm-rate": KindInWords(
        "false-alarm rate",
        OF_POSITIVE,
        share,
        "at most {bound} of the rows without {positive} may raise a false alarm (be decided {positive}).",
        "miss_rate",
    ),
    "error-rate": KindInWords("error rate", LOSS, share, "at most {bound} of all rows may be decided wrongly."),
    "decision-parity": KindInWords(
        "gap of decisions",
        LOSS,
        share,
        "the share of rows decided {positive} may differ by at most {points} between those with {group} and all "
        "others.",
    ),
    "decision-opportunity": KindInWords(
        "gap of hit rates",
        LOSS,
        share,
        "of the rows with {positive}, the share that is decided so may differ by at most {points} between those with "
        "{group} and all others.",
    ),
    "neyman-pearson": KindInWords(
        OF_POSITIVE,
        OF_NEGATIVE,
        number,
        "the mean log loss of the rows with {positive} may be at most {bound}: what misses cost, not a share of rows.",
        "false_alarm_rate",
    ),
    "demographic-parity": KindInWords(
        "gap of probabilities",
        LOSS,
        share,
        "the mean predicted probability of {positive} may differ by at most {points} between rows with {group} and "
        "all others.",
    ),
    "equal-opportunity": KindInWords(
        "gap of probabilities",
        LOSS,
        share,
        "of the rows with {positive}, the mean predicted probability of it may differ by at most {points} between "
        "those with {group} and all others.",
    ),
    "group-loss": KindInWords(
        "larger group's log loss",
        LOSS,
        number,
        "the mean log loss may be at most {bound} for the rows with {group}, and for all others by themselves.",
    ),
    "class-miss-rate": KindInWords(
        "worst class's miss rate",
        LOSS,
        share,
        "of the rows of every {label} by itself at most {bound} may be missed (decided otherwise).",
    ),
    "mean-error": KindInWords(
        "mean error",
        "loss",
        number,
        "predictions of {label} may be off by at most {bound} (in the unit of {label}) on average, up or down.",
    ),
    "absolute-error": KindInWords(
        "mean absolute error",
        "loss",
        number,
        "predictions of {label} may be wrong by at most {bound} (in the unit of {label}) on average.",
    ),
    "coverage": KindInWords(
        "share above the prediction",
        "loss",
        share,
        "at most {bound} of the rows may have {label} above its prediction.",
    ),
    "custom": KindInWords("constraint", "objective", number, "{constraint} may be at most {bound}."),
}
"""One entry a kind; one that is not here is told by its name."""
NO_KIND = KindInWords("constraint", "objective", number, "the constraint may be at most {bound}.")


def kind_in_words(settings: Mapping[str, Any]) -> KindInWords:
    """How to speak of a run with these settings (section.name by section.name, as ``Run.settings``)."""
    kind = settings.get("task.kind")
    if kind is None:
        return NO_KIND
    return IN_WORDS.get(kind) or NO_KIND._replace(constraint=str(kind).replace("-", " "))


def bounded_in_words(settings: Mapping[str, Any], tolerance: float, positive: Any = None) -> str:
    """What must hold at every client, in one sentence.

    Args:
        settings: section.name by section.name; may be empty, as of a run by ``solve``.
        tolerance: the bound.
        positive: the label's value that counts as positive, where the settings do not say.
    """
    known, label = kind_in_words(settings), settings.get("data.label", "label")
    value = settings.get("data.positive", positive)
    said = known.sentence.format(
        bound=known.write(tolerance),
        points=f"{number(100 * tolerance)} percentage point{'s' * (tolerance != 0.01)}",
        positive=f"a positive {label}" if value is None else f"{label} = {value}",
        label=label,
        group=f"{settings.get('task.sensitive', 'group')} = {settings.get('task.protected', 'protected')}",
        constraint=settings.get("task.constraint", "the constraint"),
    )
    if known.sentence == NO_KIND.sentence and known.constraint != NO_KIND.constraint:
        said = f"the constraint ({known.constraint}) may be at most {known.write(tolerance)}."
    return f"At every {client_word(settings)} {said}"


def client_word(settings: Mapping[str, Any]) -> str:
    """What a client is called: the column that says whose row it is."""
    return str(settings.get("data.client", "client"))
