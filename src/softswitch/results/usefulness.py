"""Whether a model beats the best constant prediction, judged with its sampling error."""

from __future__ import annotations

from dataclasses import dataclass

from softswitch.results.json_numbers import JsonRecord
from softswitch.support.text import format_number, format_percent, join_first

FALSE_ALARMS, MISSES = "false_alarm_rate", "miss_rate"
_WORDS = {  # by metric: what happens to the rows at the model, and what the constant prediction does to all of them
    FALSE_ALARMS: ("are called positive", "calls all of them positive"),
    MISSES: ("are missed", "misses all of them"),
}


@dataclass(frozen=True)
class Usefulness(JsonRecord):
    """A comparison of a model with the best constant prediction.

    Miss rates and false-alarm rates are compared at the worst client, other metrics by their mean over the clients.

    Attributes:
        is_useful: Whether the model is better than the constant, beyond the sampling error, or no constant prediction
            meets the bound.
        metric: The compared metric: "false_alarm_rate", "miss_rate", "error_rate" or "loss".
        worst: Its value at the worst client.
        mean: Its mean over the clients.
        constant: The value of the constant prediction, at the worst client or on average.
        upper: Upper confidence limit of the model's value, at the worst client or on average. For a mean it is the
            constant's value minus the lower limit of the paired difference.
        confidence: Confidence of that limit.
        worst_client: Label of the worst client as text; empty if all rows were pooled.
        errors: Number of errors at the worst client; 0 if the metric is a loss.
        rows: Number of rows at the worst client.
        condition: The rows that a rate refers to, such as "disease = 0"; empty if all.
        prediction: The constant prediction, such as "disease = 1"; empty if it is a probability or a number.
        not_judged: Clients with too few rows to be judged, with their errors and rows, such as "va (9 of 12)".
        constant_is_feasible: Whether the constant prediction meets the bound. Default: True.
        is_held_out: Whether the rows were held out; training rows favour the model. Default: True.
    """

    is_useful: bool
    metric: str
    worst: float
    mean: float
    constant: float
    upper: float
    confidence: float
    worst_client: str
    errors: int
    rows: int
    condition: str = ""
    prediction: str = ""
    not_judged: tuple[str, ...] = ()
    constant_is_feasible: bool = True
    is_held_out: bool = True

    @property
    def constant_prediction(self) -> str:
        """The constant prediction in words, such as "always predicting disease = 1"."""
        return f"always predicting {self.prediction}" if self.prediction else "the best constant prediction"

    def describe(self, noun: str = "client") -> str:
        """Return the comparison as a sentence; ``noun`` is the name of a client, such as "hospital"."""
        text = self._describe_rate(noun) if self.metric in _WORDS else self._describe_mean(noun)
        if not self.constant_is_feasible:
            text += " No constant prediction meets the bound."
        return text if self.is_held_out else f"On training rows: {text[0].lower()}{text[1:]}"

    def _describe_rate(self, noun: str) -> str:
        worst = f"At the worst {noun}{' with enough rows' if self.not_judged else ''}"
        where = f"{worst} ({self.worst_client})" if self.worst_client else "Over all rows"
        happens, does = _WORDS[self.metric]
        level = f"with {format_percent(self.confidence)} confidence"
        count = f"{self.errors:,} of {self.rows:,}; at most {format_percent(self.upper)} {level}"
        rate = f"{format_percent(self.worst)} of the rows with {self.condition} {happens} ({count})"
        others = f" Too few rows to judge {join_first(list(self.not_judged), 3)}." if self.not_judged else ""
        return f"{where}, {rate}; {self.constant_prediction} {does}.{others}"

    def _describe_mean(self, noun: str) -> str:
        write = format_percent if self.metric.endswith("_rate") else format_number
        name = self.metric.replace("_", " ")
        level = f"with {format_percent(self.confidence)} confidence"
        if self.upper < self.constant:
            gain = f"an improvement of at least {write(self.constant - self.upper)} {level}"
        elif self.mean < self.constant:
            gain = "a difference within the sampling error"
        else:
            gain = "no improvement"
        values = f"The {name} at the average {noun} is {write(self.mean)}"
        text = f"{values}, compared with {write(self.constant)} for {self.constant_prediction}"
        worst = f" At the worst {noun} ({self.worst_client}) it is {write(self.worst)}." if self.worst_client else ""
        return f"{text}: {gain}.{worst}"
