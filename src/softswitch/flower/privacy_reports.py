"""What the server learns of its clients' privacy: how much ε each has spent, and its noise, by its own word."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ConfigRecord, RecordDict

from softswitch.flower import messages as wire
from softswitch.privacy.account import PrivacyAccount
from softswitch.results.certificate import Certificate
from softswitch.results.result import Result


class Told(NamedTuple):
    """What a client that keeps its rows private says of it.

    Attributes:
        epsilon: ε so far.
        delta: δ.
        neighbours: what is compared, in words.
        deviations: of the noise on what it tells of an answer, f and then g; None for what it does not have. Empty
            where it does not say.
    """

    epsilon: float
    delta: float
    neighbours: str
    deviations: tuple[float | None, ...] = ()


class ToldSpending:
    """The last that each client told of it; nothing of clients that keep no count.

    Args:
        functions: how many a client tells of: f and all g.
    """

    def __init__(self, functions: int) -> None:
        self._functions = functions
        self._told: dict[str, Told] = {}

    def note(self, name: str, content: RecordDict) -> float | None:
        """Take what an answer says of it, and give back ε; raise ``InvalidMessageError`` where that makes no sense.

        Args:
            name: whose answer.
            content: of it.
        """
        told = content.get(wire.PRIVACY)
        if not isinstance(told, ConfigRecord):
            return None
        epsilon, delta = wire.read_float(told, "epsilon"), wire.read_float(told, "delta")
        if epsilon < 0 or not 0 < delta < 1:
            raise wire.InvalidMessageError(f"it says that it has spent ε = {epsilon:g}, δ = {delta:g}")
        self._told[name] = Told(epsilon, delta, wire.read_text(told, "neighbours"), self._deviations(told))
        return epsilon

    def _deviations(self, told: ConfigRecord) -> tuple[float | None, ...]:
        if "deviations" not in told:
            return ()
        found = wire.read_numbers(told, "deviations")
        if len(found) != self._functions or not all(one >= 0 for one in found):
            raise wire.InvalidMessageError(
                f"it must tell {self._functions} deviations of its noise, none below 0, but says {found!r:.80}"
            )
        return tuple(None if math.isinf(one) else one for one in found)

    def journal(self) -> dict[str, Told]:
        """All of it, for a checkpoint: a client whose budget is spent may not tell it again."""
        return self._told

    def go_on(self, journal: Mapping[str, Any]) -> None:
        """Take up what a run before had been told.

        Args:
            journal: of it.
        """
        self._told = {
            name: Told(float(epsilon), float(delta), str(said), *(tuple(one) for one in deviations))
            for name, (epsilon, delta, said, *deviations) in journal.items()
        }

    def account(self, names: Sequence[Any]) -> PrivacyAccount | None:
        """What clients have spent; None where none tells of it.

        Args:
            names: the clients of the result.
        """
        if not self._told:
            return None
        own, untold = [self._told.get(str(name)) for name in names], (None,) * self._functions
        noise = [untold if one is None else one.deviations or untold for one in own]
        return PrivacyAccount(
            epsilon=tuple(None if one is None else one.epsilon for one in own),
            delta=max(one.delta for one in self._told.values()),
            neighbours="; or ".join(sorted({one.neighbours for one in self._told.values()})),
            deviations=tuple(noise),
        )

    def in_result(self, result: Result) -> Result:
        """The result with what clients have spent; and its status with what is to be known of values with noise.

        Args:
            result: of clients of which some may keep their rows private.
        """
        account = self.account(result.names)
        if account is None or np.isnan(result.client_objective).all():  # nobody told of the answer
            return replace(result, privacy=account)
        status = replace(result.status, message=f"{result.status.message}; {account.of_values}")
        return replace(result, status=status, privacy=account)

    def in_certificate(self, certificate: Certificate) -> Certificate:
        """The certificate with what clients have spent in all, it included.

        Args:
            certificate: of clients of which some may keep their rows private.
        """
        if not self._told:
            return certificate
        spent = max(one.epsilon for one in self._told.values())
        return replace(certificate, epsilon=spent, delta=max(one.delta for one in self._told.values()))
