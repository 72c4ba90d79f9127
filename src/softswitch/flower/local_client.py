"""What a client must be able to do, whatever it computes with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from flwr.app import ArrayRecord, Context, Message, RecordDict

from softswitch.flower import messages as wire
from softswitch.flower.codec import digest
from softswitch.flower.messages import Arrays, Values
from softswitch.methods.messages import LocalLoss
from softswitch.problem.ranges import Range
from softswitch.results.certificate import Interval


def merge_ranges(given: Sequence[Range | None], own: Sequence[Range | None]) -> list[Range | None]:
    """The ranges that the server gives, and the client's own where it gives none."""
    return [mine if theirs is None else theirs for theirs, mine in zip(given, own, strict=True)]


class RefusalError(Exception):
    """Raise this in a client to say that it does not take part in a round; the text is told to the server."""


class Task(NamedTuple):
    """What the server tells with the parameters of a round.

    Attributes:
        round: k.
        seed: of the run; a client's batches come from the seed, its name and k alone.
        local_steps: E.
        step_size: γ.
        switches: whether the local loss is either f_i or a mix of client i's constraints, never both.
    """

    round: int
    seed: int
    local_steps: int
    step_size: float
    switches: bool


@runtime_checkable
class LocalOracle(Protocol):
    """One client. Parameters come and directions go as arrays by name.

    Attributes:
        name: its label in history, log and report; different for every client.
        rows: how many rows it trains on.
        held_out_rows: how many it holds out for the certificate.
        value_rows: on how many rows a report is computed,
        gradient_rows: and on how many a gradient.
        constraints: how many constraints it has.

    One whose constraint is pooled may also tell ``statistics``, how many additive statistics it reports: a server that
    remembers must know it beforehand. One whose constraint is not differentiable and has a surrogate may set
    ``has_surrogate = True``: the switch then accepts a constraint equal to the tolerance. One whose ``report`` draws
    the same batch for the same task may set ``can_repeat_reports = True``: a server whose memory is corrected then asks
    for two reports a round, at w_k and at w_{k−1}.
    """

    name: str
    rows: int
    held_out_rows: int
    value_rows: int
    gradient_rows: int
    constraints: int

    def report(self, params: Arrays, task: Task) -> Values:
        """f_i and g_i at w_k, on a batch.

        Args:
            params: w_k, arrays by name.
            task: the round's number, seed and settings.
        """
        ...

    def update(self, params: Arrays, task: Task, loss: LocalLoss) -> Arrays:
        """u_i: E local steps from w_k on the local loss; ``loss.constraint`` is this client's row of the mix.

        Args:
            params: w_k, arrays by name.
            task: the round's number, seed, E and γ.
            loss: what to descend on: weights of objective and constraints.
        """
        ...

    def evaluate(self, params: Arrays) -> Values:
        """f_i and g_i on all of its rows.

        Args:
            params: the model to judge, arrays by name.
        """
        ...

    def certify(self, params: Arrays, error: float, ranges: Sequence[Range | None]) -> list[Interval]:
        """Where f_i and g_i lie, from the rows held out; ``error`` is that of each side of each interval.

        One that also takes ``levels`` (of the type ``ErrorLevels``) is told at which other error probability a limit is
        wanted, and the tolerance, so that its intervals can have p-values. Without them its verdict may need more rows.

        Args:
            params: the model to certify, arrays by name.
            error: the probability with which a limit may be wrong.
            ranges: of a single row's objective and constraints, where they are known.
            levels: a second error probability and the tolerance, for p-values; a client may leave this argument out.
        """
        ...


PREVIOUS = "before"
"""The digest of w_{k−1} in a round's settings, and w_{k−1} itself in a message."""
PREVIOUS_VALUES = "earlier"
"""What the same batch gave there, in a client's answer."""


def find_previous_params(
    wanted: Any, params: wire.Arrays, came_by: Iterable[wire.Arrays], message: Message, context: Context
) -> wire.Arrays | None:
    """w_{k−1}, if the client has it; None where it has not.

    Args:
        wanted: its digest, as the server tells it.
        params: w_k.
        came_by: the parameters that it came by on the way to w_k.
        message: the server's.
        context: Flower's, as the last round left it.
    """
    if not isinstance(wanted, bytes):
        raise wire.InvalidMessageError(f"its {PREVIOUS} must be a digest, but is {wanted!r:.80}")
    if digest(params) == wanted:  # a run, or a cycle of one, begins: there is no other before it
        return params
    records = message.content.get(PREVIOUS), context.state.get(wire.PARAMS)
    held = (wire.from_record(record) for record in records if isinstance(record, ArrayRecord))
    for found in (*came_by, *held):
        if digest(found) == wanted:
            return found
    return None


class PreviousParams:
    """The server's side: which clients have w_{k−1}. After a restart it knows of none, and all are sent it."""

    def __init__(self) -> None:
        self._has: dict[int, bytes] = {}
        self._now = self.digest = b""
        self._record = ArrayRecord()

    def begin(self, params: Mapping[str, Any], before: Mapping[str, Any]) -> None:
        """A round begins.

        Args:
            params: w_k.
            before: w_{k−1}.
        """
        self._now, self.digest, self._record = digest(params), digest(before), wire.to_record(before)

    def beside(self, index: int, content: RecordDict) -> RecordDict:
        """What a client is sent, with w_{k−1} where it gets whole parameters and has it not.

        Args:
            index: which client.
            content: what it is sent anyway.
        """
        if wire.PARAMS not in content or self.digest in (self._now, self._has.get(index)):
            return content
        return RecordDict({**content, PREVIOUS: self._record})

    def heard(self, index: int, answer: Any) -> None:
        """Note whether a client has the round's parameters: it has them once it has answered.

        Args:
            index: which client.
            answer: to its report.
        """
        self._has.pop(index, None)
        if isinstance(answer, Message) and wire.read_refusal(answer.content) is None:
            self._has[index] = self._now
