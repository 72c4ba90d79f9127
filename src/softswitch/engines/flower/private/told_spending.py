"""What the server learns of its clients' privacy: how much ε each has spent, by its own word."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from flwr.app import ConfigRecord, RecordDict

from softswitch.clients.private.privacy_account import PrivacyAccount
from softswitch.engines.flower import wire
from softswitch.results.certificate import Certificate


class ToldSpending:
    """The last that each client told of it; nothing of clients that keep no count."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[float, float, str]] = {}

    def note(self, name: str, content: RecordDict) -> float | None:
        """Take what an answer says of it, and give back ε; raise ``Unacceptable`` where that makes no sense.

        Args:
            name: whose answer.
            content: of it.
        """
        told = content.get(wire.SPENT)
        if not isinstance(told, ConfigRecord):
            return None
        epsilon, delta = wire.real(told, "epsilon"), wire.real(told, "delta")
        if epsilon < 0 or not 0 < delta < 1:
            raise wire.Unacceptable(f"it says that it has spent ε = {epsilon:g}, δ = {delta:g}")
        self._told[name] = epsilon, delta, wire.word(told, "neighbours")
        return epsilon

    def journal(self) -> dict[str, tuple[float, float, str]]:
        """All of it, for a checkpoint: a client whose budget is spent may not tell it again."""
        return self._told

    def go_on(self, journal: Mapping[str, Any]) -> None:
        """Take up what a run before had been told.

        Args:
            journal: of it.
        """
        self._told = {
            name: (float(epsilon), float(delta), str(said)) for name, (epsilon, delta, said) in journal.items()
        }

    def account(self, names: Sequence[Any]) -> PrivacyAccount | None:
        """What clients have spent; None where none tells of it.

        Args:
            names: the clients of the result.
        """
        if not self._told:
            return None
        own = [self._told.get(str(name)) for name in names]
        return PrivacyAccount(
            epsilon=tuple(None if one is None else one[0] for one in own),
            delta=max(delta for _, delta, _ in self._told.values()),
            neighbours="; or ".join(sorted({neighbours for _, _, neighbours in self._told.values()})),
        )

    def in_certificate(self, certificate: Certificate) -> Certificate:
        """The certificate with what clients have spent in all, it included.

        Args:
            certificate: of clients of which some may keep their rows private.
        """
        if not self._told:
            return certificate
        spent = max(epsilon for epsilon, _, _ in self._told.values())
        return replace(certificate, epsilon=spent, delta=max(delta for _, delta, _ in self._told.values()))
