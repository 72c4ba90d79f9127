"""The server's side of a sum: who is in it and by what weight, the masked directions, and the sum without masks."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict

from softswitch.flower import messages as wire
from softswitch.flower import secure_protocol as secrets
from softswitch.flower.exchange import Lost
from softswitch.flower.secure_protocol import (
    MASKED,
    MAX_SHARE_BYTES,
    SHARES,
    UNITS,
    UNMASKING,
    AggregationTerms,
    SecureAggregation,
    dequantize,
    effective_clients,
    has_enough_clients,
    parse_key,
)
from softswitch.results.events import EventLog

logger = logging.getLogger("softswitch.flower")
TOO_LONG = 1.001
"""A mean direction may be so many times as long as the limit, by rounding."""


class _NotSummed(Exception):  # noqa: N818
    """A round's directions cannot be summed; the text says why."""


class Summed(NamedTuple):
    """The weighted mean of directions that nobody has seen.

    Attributes:
        places: whose, by their places among the clients asked.
        mean: Σ r_i u_i / Σ r_i over them.
    """

    places: list[int]
    mean: wire.Arrays


class MaskedPart(NamedTuple):
    """A client's weighted direction under masks.

    Attributes:
        numbers: whole ones below 2³².
        letters: what it wrote to each of the others.
    """

    numbers: np.ndarray
    letters: list[bytes]


class _Told(NamedTuple):
    """What a client tells to take masks off: shares of those of who arrived, and masks in common with the others."""

    shares: list[bytes]
    masks: list[bytes]


class Summing:
    """The sums of a run.

    Args:
        secure: how.
        limit: the largest norm of a direction.
        like: the arrays' shapes.
        events: for a file.
    """

    def __init__(
        self, secure: SecureAggregation, limit: float, like: Mapping[str, wire.ArraySpec], events: EventLog
    ) -> None:
        self._secure, self._limit, self._like, self._events = secure, limit, like, events
        self._size = sum(math.prod(shape.shape) for shape in like.values())
        self._terms: AggregationTerms | None = None
        self._places: list[int] = []

    def begin(
        self, k: int, names: Mapping[int, str], answers: Sequence[Any], weights: np.ndarray
    ) -> AggregationTerms | None:
        """The terms of a round's sum; None, and a word in the log, where too few would hide each other.

        Args:
            k: the round.
            names: of those in it, by their places among the clients asked.
            answers: what the clients asked answered in the first exchange.
            weights: theirs.
        """
        self._terms, self._places = None, list(names)
        own = [float(weights[place]) for place in self._places]
        if len(own) < 2 or not has_enough_clients(own, self._secure.min_clients):
            self._void(k, f"the effective number of clients would be {effective_clients(own):.2f}")
            return None
        keys, signatures = zip(*(parse_key(answers[place].content) for place in self._places), strict=True)
        signed = list(signatures) if all(signatures) else []
        enough = self._secure.required_shares(len(own), signed=bool(signed))
        self._terms = AggregationTerms(k, list(names.values()), list(keys), own, enough, self._limit, signed)
        return self._terms

    def part(self, content: RecordDict) -> MaskedPart:
        """What a client sent, or raise.

        Args:
            content: of its answer.
        """
        expected = {"sum": wire.ArraySpec((self._size,), "uint32")}
        numbers = wire.parse_arrays(content.get(MASKED), expected, 2.0**32)["sum"]
        record = content.get(SHARES)
        letters: Any = record.get("shares") if isinstance(record, ConfigRecord) else None
        if not isinstance(letters, list) or len(letters) != len(self._places):
            raise wire.InvalidMessageError("it sends no letters to the others")
        if not all(isinstance(letter, bytes) and len(letter) <= MAX_SHARE_BYTES for letter in letters):
            raise wire.InvalidMessageError("its letters to the others are none")
        return MaskedPart(numbers, letters)

    def mean(
        self,
        k: int,
        parts: Mapping[int, MaskedPart],
        ask: Callable[[dict[int, RecordDict]], Mapping[int, Message | Lost]],
    ) -> Summed | None:
        """The weighted mean direction; None, and a word in the log, where masks cannot be taken off.

        Args:
            k: the round.
            parts: what arrived, by places among the clients asked.
            ask: sends these clients, by place, a message each, and returns their answers.
        """
        try:
            return self._mean(k, parts, ask)
        except _NotSummed as why:
            self._void(k, str(why))
            return None

    def _mean(
        self,
        k: int,
        parts: Mapping[int, MaskedPart],
        ask: Callable[[dict[int, RecordDict]], Mapping[int, Message | Lost]],
    ) -> Summed:
        terms, places = self._terms, self._places
        assert terms is not None
        arrived = [i for i, place in enumerate(places) if place in parts]
        weights = [terms.weights[i] for i in arrived]
        left = sum(weights) / sum(terms.weights)
        if len(arrived) < terms.shares or left < self._secure.min_weight:
            raise _NotSummed(f"{len(arrived)} of {len(places)} directions came, with {left:.0%} of the weight")
        if not has_enough_clients(weights, self._secure.min_clients):
            raise _NotSummed(f"the effective number of clients is {effective_clients(weights):.2f}")
        letters: dict[int, dict[str, Any]] = {
            places[i]: {"arrived": arrived, "shares": [parts[places[j]].letters[i] for j in arrived]} for i in arrived
        }
        answers = ask({place: RecordDict({SHARES: ConfigRecord(own)}) for place, own in letters.items()})
        told = {i: found for i in arrived if (found := self._told(k, i, answers[places[i]], arrived)) is not None}
        total = np.zeros(self._size, np.uint32)
        for i in arrived:
            total += parts[places[i]].numbers
        total -= self._masks_of(arrived, told)
        mean = {name: part / sum(weights) for name, part in dequantize(total, self._limit, self._like).items()}
        length = math.sqrt(sum(float(np.square(part).sum()) for part in mean.values()))
        rounding = len(arrived) * self._limit / UNITS / sum(weights)
        if length > TOO_LONG * self._limit + self._size**0.5 * rounding:
            raise _NotSummed(f"their mean has length {length:.3g}, above {self._limit:g}: somebody did not keep to it")
        return Summed([places[i] for i in arrived], mean)

    def _masks_of(self, arrived: list[int], told: Mapping[int, _Told]) -> np.ndarray:
        """All masks that are left in the sum: each client's own, and those in common with clients that are lost."""
        terms, total = self._terms, np.zeros(self._size, np.uint32)
        assert terms is not None
        for position, i in enumerate(arrived):
            shares = [own.shares[position] for own in told.values() if own.shares[position]]
            if len(shares) < terms.shares:
                raise _NotSummed(f"{len(shares)} shares of the mask of {terms.names[i]!r} came, of {terms.shares}")
            try:
                total += secrets.generate_mask(secrets.combine_shares(shares[: terms.shares]), self._size)
            except ValueError:
                raise _NotSummed(f"the shares of the mask of {terms.names[i]!r} do not go together") from None
        lost = [i for i in range(len(terms.names)) if i not in arrived]
        for i in arrived if lost else ():
            if i not in told:
                raise _NotSummed(f"{terms.names[i]!r} does not tell the masks that it shares with those who are lost")
            for other, seed in zip(lost, told[i].masks, strict=True):
                shared = secrets.generate_mask(seed, self._size)
                total = total + shared if other > i else total - shared
        return total

    def _told(self, k: int, i: int, answer: Message | Lost, arrived: list[int]) -> _Told | None:
        """A client's shares and masks; None, and a word in the log, where it tells none."""
        assert self._terms is not None
        name, lost = self._terms.names[i], len(self._terms.names) - len(arrived)
        try:
            if isinstance(answer, Lost):
                raise answer
            if (why := wire.read_refusal(answer.content)) is not None:
                raise wire.InvalidMessageError(f"it refused: {why}")
            record = answer.content.get(UNMASKING)
            told: dict[str, Any] = dict(record) if isinstance(record, ConfigRecord) else {}
            shares, masks = told.get("shares"), told.get("masks")
            if not isinstance(shares, list) or not isinstance(masks, list) or len(shares) != len(arrived):
                raise wire.InvalidMessageError("it does not tell what takes masks off")
            if len(masks) != lost or not all(isinstance(own, bytes) for own in (*shares, *masks)):
                raise wire.InvalidMessageError("it does not tell what takes masks off")
            if any(len(own) != secrets.SEED_BYTES for own in masks):
                raise wire.InvalidMessageError("a mask that it shares with others is none")
        except (Lost, wire.InvalidMessageError) as error:
            logger.warning("round %d: client %r takes no masks off: %s", k, name, error)
            self._events.record("lost" if isinstance(error, Lost) else "refused", str(error), client=name)
            return None
        return _Told(shares, masks)

    def _void(self, k: int, why: str) -> None:
        logger.warning("round %d: directions are not summed: %s", k, why)
        self._events.record("not summed", why)
