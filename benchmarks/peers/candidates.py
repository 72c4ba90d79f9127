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
        in_torch: networks are tried with one thread and with two, and the faster counts; logistic regression has one
            thread, since PyTorch shares out nothing so small. JAX takes the cores that it finds.
        most_threads: 1 leaves out the trial with two, which on a machine that others use may take for ever.
        rounds: of a turn; 0: as many as take about a second.
        races: whether it takes part in the race to an accuracy.
    """

    name: str
    peer: str
    script: str
    environment: str = ""
    word: str = ""
    in_torch: bool = False
    most_threads: int = 2
    rounds: int = 0
    races: bool = True

    def threads(self, model: str) -> tuple[int, ...]:
        """How many threads it is tried with; for JAX the number says nothing."""
        return (1,) if not self.in_torch or model == "logistic" or self.most_threads == 1 else (1, 2)


OURS = Candidate("softswitch, rounds", "softswitch", "with_softswitch.py", word="averaging")
CALL = Candidate("softswitch, the whole call", "softswitch", "with_softswitch.py", word="call")
CANDIDATES = (
    OURS,
    CALL,
    Candidate("softswitch, PyTorch module", "softswitch", "with_softswitch_torch.py", in_torch=True, races=False),
    Candidate("softswitch, switching", "softswitch", "with_softswitch.py", word="switching", races=False),
    Candidate("FedJAX", "fedjax", "with_fedjax.py", "fedjax"),
    Candidate("pfl-research", "pfl", "with_pfl.py", "pfl", in_torch=True),
    Candidate("Flower, Ray simulation", "flower", "with_flower.py", rounds=4, races=False),
    Candidate("PyTorch, usual loop", "torch", "with_torch.py", word="usual", in_torch=True),
    Candidate("PyTorch, lean loop", "torch", "with_torch.py", word="lean", in_torch=True),
    Candidate("PyTorch, torch.func.vmap", "torch", "with_torch.py", word="vmap", in_torch=True),
    Candidate("DrJAX", "drjax", "with_drjax.py", "drjax"),
)


def chosen(peers: Collection[str]) -> tuple[Candidate, ...]:
    """Ours, and those of these peers; all where none is named."""
    return tuple(one for one in CANDIDATES if not peers or one.peer in (*peers, "softswitch"))
