"""Who is compared: a name, a script, whose Python, and how many threads may be tried."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class Candidate:
    """One way to play rounds of federated averaging.

    Attributes:
        name: as tables have it.
        peer: as ``--only`` has it.
        script: in the folder ``rounds``.
        environment: whose Python; "": ours.
        word: for the script.
        threads: how many threads it is tried with; the fastest counts. PyTorch is often faster with one, and on a
            machine that others use too by far. JAX takes the cores that it finds.
        races: whether it takes part in the race to an accuracy.
    """

    name: str
    peer: str
    script: str
    environment: str = ""
    word: str = ""
    threads: tuple[int, ...] = (2,)
    races: bool = True


OURS = Candidate("softswitch, rounds", "softswitch", "with_softswitch.py", word="averaging")
CALL = Candidate("softswitch, the whole call", "softswitch", "with_softswitch.py", word="call")
CANDIDATES = (
    OURS,
    CALL,
    Candidate("softswitch, switching", "softswitch", "with_softswitch.py", word="switching", races=False),
    Candidate("FedJAX", "fedjax", "with_fedjax.py", "fedjax"),
    Candidate("pfl-research", "pfl", "with_pfl.py", "pfl", threads=(1, 2)),
    Candidate("Flower, Ray simulation", "flower", "with_flower.py", races=False),
    Candidate("PyTorch, usual loop", "torch", "with_torch.py", word="usual", threads=(1, 2)),
    Candidate("PyTorch, lean loop", "torch", "with_torch.py", word="lean", threads=(1, 2)),
    Candidate("PyTorch, torch.func.vmap", "torch", "with_torch.py", word="vmap", threads=(1, 2)),
    Candidate("DrJAX", "drjax", "with_drjax.py", "drjax"),
)


def chosen(peers: Collection[str]) -> tuple[Candidate, ...]:
    """Ours, and those of these peers; all where none is named."""
    return tuple(one for one in CANDIDATES if not peers or one.peer in (*peers, "softswitch"))
