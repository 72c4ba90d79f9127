"""The server's side of secure aggregation: the terms of a round, the masked updates, and their weighted mean."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict

from softswitch.flower import messages as wire
from softswitch.flower import secure_protocol as secrets
from softswitch.flower.exchange import NoReply
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
NORM_SLACK = 1.001
"""Tolerance for rounding of the norm of a mean direction, as a factor."""


class _AggregationFailed(Exception):  # noqa: N818
    """A round's directions cannot be aggregated; the text gives the reason."""


class SecureMean(NamedTuple):
    """The weighted mean of directions, Σ r_i u_i / Σ r_i, and the places of the clients in it."""

    places: list[int]
    mean: wire.Arrays


class MaskedUpdate(NamedTuple):
    """A client's masked weighted direction, as integers below 2³², and its encrypted shares for each client."""

    numbers: np.ndarray
    letters: list[bytes]


class _Unmasking(NamedTuple):
    """A client's shares of the masks of those that arrived, and the masks it has in common with lost clients."""

    shares: list[bytes]
    masks: list[bytes]


class SecureAggregator:
    """Secure aggregation of the directions of one run."""

    def __init__(
        self, secure: SecureAggregation, clip_norm: float, shapes: Mapping[str, wire.ArraySpec], events: EventLog
    ) -> None:
        self._secure, self._clip_norm, self._shapes, self._events = secure, clip_norm, shapes, events
        self._size = sum(math.prod(shape.shape) for shape in shapes.values())
        self._terms: AggregationTerms | None = None
        self._places: list[int] = []

    def begin_round(
        self, k: int, names: Mapping[int, str], replies: Sequence[Any], weights: np.ndarray
    ) -> AggregationTerms | None:
        """Return the terms of a round for the clients in ``names``, by place; None if too few hide each other."""
        self._terms, self._places = None, list(names)
        used = [float(weights[place]) for place in self._places]
        if len(used) < 2 or not has_enough_clients(used, self._secure.min_clients):
            self._log_void(k, f"the effective number of clients would be {effective_clients(used):.2f}")
            return None
        keys, signatures = zip(*(parse_key(replies[place].content) for place in self._places), strict=True)
        signed = list(signatures) if all(signatures) else []
        threshold = self._secure.required_shares(len(used), signed=bool(signed))
        self._terms = AggregationTerms(k, list(names.values()), list(keys), used, threshold, self._clip_norm, signed)
        return self._terms

    def read_update(self, content: RecordDict) -> MaskedUpdate:
        """Return the masked update in a client's reply, or raise ``InvalidMessageError``."""
        expected = {"sum": wire.ArraySpec((self._size,), "uint32")}
        numbers = wire.parse_arrays(content.get(MASKED), expected, 2.0**32)["sum"]
        record = content.get(SHARES)
        letters: Any = record.get("shares") if isinstance(record, ConfigRecord) else None
        if not isinstance(letters, list) or len(letters) != len(self._places):
            raise wire.InvalidMessageError(f"it must send {len(self._places)} letters to clients")
        if not all(isinstance(letter, bytes) and len(letter) <= MAX_SHARE_BYTES for letter in letters):
            raise wire.InvalidMessageError(f"its letters to clients must be at most {MAX_SHARE_BYTES} bytes each")
        return MaskedUpdate(numbers, letters)

    def aggregate(
        self,
        k: int,
        updates: Mapping[int, MaskedUpdate],
        ask: Callable[[dict[int, RecordDict]], Mapping[int, Message | NoReply]],
    ) -> SecureMean | None:
        """Return the weighted mean direction; None, with a warning, if the masks cannot be removed.

        ``ask`` sends a message to each of these clients, by place, and returns their replies.
        """
        try:
            return self._aggregate(k, updates, ask)
        except _AggregationFailed as reason:
            self._log_void(k, str(reason))
            return None

    def _aggregate(
        self,
        k: int,
        updates: Mapping[int, MaskedUpdate],
        ask: Callable[[dict[int, RecordDict]], Mapping[int, Message | NoReply]],
    ) -> SecureMean:
        terms, places = self._terms, self._places
        assert terms is not None
        arrived = [i for i, place in enumerate(places) if place in updates]
        weights = [terms.weights[i] for i in arrived]
        share = sum(weights) / sum(terms.weights)
        if len(arrived) < terms.shares or share < self._secure.min_weight:
            raise _AggregationFailed(f"{len(arrived)} of {len(places)} directions came, with {share:.0%} of the weight")
        if not has_enough_clients(weights, self._secure.min_clients):
            raise _AggregationFailed(f"the effective number of clients is {effective_clients(weights):.2f}")
        letters: dict[int, dict[str, Any]] = {
            places[i]: {"arrived": arrived, "shares": [updates[places[j]].letters[i] for j in arrived]} for i in arrived
        }
        replies = ask({place: RecordDict({SHARES: ConfigRecord(record)}) for place, record in letters.items()})
        unmasking = {
            i: read for i in arrived if (read := self._read_unmasking(k, i, replies[places[i]], arrived)) is not None
        }
        total = np.zeros(self._size, np.uint32)
        for i in arrived:
            total += updates[places[i]].numbers
        total -= self._total_mask(arrived, unmasking)
        mean = {name: part / sum(weights) for name, part in dequantize(total, self._clip_norm, self._shapes).items()}
        norm = math.sqrt(sum(float(np.square(part).sum()) for part in mean.values()))
        rounding = len(arrived) * self._clip_norm / UNITS / sum(weights)
        if norm > NORM_SLACK * self._clip_norm + self._size**0.5 * rounding:
            raise _AggregationFailed(f"the mean has norm {norm:.3g}, above clip_norm={self._clip_norm:g}")
        return SecureMean([places[i] for i in arrived], mean)

    def _total_mask(self, arrived: list[int], unmasking: Mapping[int, _Unmasking]) -> np.ndarray:
        """Return the sum of the masks left in the total: each client's own, and those shared with lost clients."""
        terms, total = self._terms, np.zeros(self._size, np.uint32)
        assert terms is not None
        for position, i in enumerate(arrived):
            shares = [sent.shares[position] for sent in unmasking.values() if sent.shares[position]]
            if len(shares) < terms.shares:
                raise _AggregationFailed(
                    f"{len(shares)} shares of the mask of {terms.names[i]!r} came, {terms.shares} are needed"
                )
            try:
                total += secrets.generate_mask(secrets.combine_shares(shares[: terms.shares]), self._size)
            except ValueError:
                raise _AggregationFailed(f"the shares of the mask of {terms.names[i]!r} do not match") from None
        lost = [i for i in range(len(terms.names)) if i not in arrived]
        for i in arrived if lost else ():
            if i not in unmasking:
                raise _AggregationFailed(f"{terms.names[i]!r} does not send the masks that it shares with lost clients")
            for other, seed in zip(lost, unmasking[i].masks, strict=True):
                shared = secrets.generate_mask(seed, self._size)
                total = total + shared if other > i else total - shared
        return total

    def _read_unmasking(self, k: int, i: int, reply: Message | NoReply, arrived: list[int]) -> _Unmasking | None:
        """Return a client's shares and masks; None, with a warning, if it sends none."""
        assert self._terms is not None
        name, lost = self._terms.names[i], len(self._terms.names) - len(arrived)
        try:
            if isinstance(reply, NoReply):
                raise reply
            if (reason := wire.read_refusal(reply.content)) is not None:
                raise wire.InvalidMessageError(f"it refused: {reason}")
            record = reply.content.get(UNMASKING)
            sent: dict[str, Any] = dict(record) if isinstance(record, ConfigRecord) else {}
            shares, masks = sent.get("shares"), sent.get("masks")
            if not isinstance(shares, list) or not isinstance(masks, list) or len(shares) != len(arrived):
                raise wire.InvalidMessageError("its shares or masks are missing")
            if len(masks) != lost or not all(isinstance(part, bytes) for part in (*shares, *masks)):
                raise wire.InvalidMessageError("its shares or masks are malformed")
            if any(len(mask) != secrets.SEED_BYTES for mask in masks):
                raise wire.InvalidMessageError(f"its masks must have {secrets.SEED_BYTES} bytes")
        except (NoReply, wire.InvalidMessageError) as error:
            logger.warning("round %d: client %r does not help to remove masks: %s", k, name, error)
            self._events.record("lost" if isinstance(error, NoReply) else "refused", str(error), client=name)
            return None
        return _Unmasking(shares, masks)

    def _log_void(self, k: int, reason: str) -> None:
        logger.warning("round %d: directions are not aggregated: %s", k, reason)
        self._events.record("not aggregated", reason)
