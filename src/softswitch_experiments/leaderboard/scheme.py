"""How clients take part in the runs that are compared."""

from __future__ import annotations

from typing import NamedTuple


class Scheme(NamedTuple):
    """How many take part, and how many local steps each takes.

    Attributes:
        participation: m/n.
        local_steps: E.
    """

    participation: float
    local_steps: int

    @property
    def name(self) -> str:
        """For tables and files."""
        share = "all" if self.participation == 1 else f"{self.participation:.0%}"
        return f"{share}, E = {self.local_steps}"


MAIN = Scheme(0.5, 2)
"""That of the leaderboard."""
OTHERS = (Scheme(1.0, 1), Scheme(1.0, 5), Scheme(0.25, 1), Scheme(0.25, 5))
"""Those that some tasks are tried with as well."""
