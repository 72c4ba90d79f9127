"""Whoever stays silent is asked ever more rarely."""

from __future__ import annotations

RAREST = 64
"""Whoever stays silent is asked again after at most so many rounds, or looks."""


class Silence:
    """How often each stayed silent in a row, and when it is to be asked again.

    Args:
        allowed: so many times in a row are let pass.
    """

    def __init__(self, allowed: int = 0) -> None:
        self._allowed = allowed
        self._times: dict[int, int] = {}
        self._again: dict[int, int] = {}

    def note(self, who: int, now: int) -> int:
        """It stayed silent; the number of rounds (or looks) from now on until it is asked again, 0 for the next one.

        Args:
            who: its number.
            now: the present round, or look.
        """
        self._times[who] = self._times.get(who, 0) + 1
        beyond = self._times[who] - self._allowed
        if beyond <= 0:
            return 0
        rest = min(2**beyond, RAREST)
        self._again[who] = now + rest
        return rest

    def times(self, who: int) -> int:
        """How often it stayed silent in a row.

        Args:
            who: its number.
        """
        return self._times.get(who, 0)

    def answered(self, who: int) -> bool:
        """It answered, and is asked as before; whether it had been asked more rarely.

        Args:
            who: its number.
        """
        self._times.pop(who, None)
        return self._again.pop(who, None) is not None

    def rests(self, who: int, now: int) -> bool:
        """Whether it is not to be asked yet.

        Args:
            who: its number.
            now: the present round, or look.
        """
        return self._again.get(who, now) > now
