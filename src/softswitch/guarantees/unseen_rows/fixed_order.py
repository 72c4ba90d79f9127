"""Several claims tested on the same rows in a fixed order: all that pass hold together, and none costs confidence.

**Theorem** (tests in a fixed order; Maurer, Hothorn and Lehmacher, 1995). Let claims 1, …, m and their order be settled
before the rows are looked at, and let each have a test that passes it with a chance of at most δ if it is false. Test
them one after the other, and stop at the first that does not pass. Then the chance that any claim that passed is false
is at most δ, whichever of them are false.

*Proof.* If all claims are true, there is nothing to be wrong about. Else let j be the first false claim in the order;
which one that is does not depend on the rows. Any false claim that passed stands at j or later, and for one at j or
later to be tested, or to pass, j itself must pass. That has a chance of at most δ. ∎

So no test need be stricter for there being many, whatever they have in common: the same rows, like models. The price is
paid by the order: a claim behind one that did not pass is not tested, be it as true as it may. So those most likely to
pass stand in front.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

Claim = TypeVar("Claim")


def tested_in_order(claims: Iterable[Claim], passes: Callable[[Claim], bool]) -> tuple[bool, ...]:
    """Which claims passed, from the first on; the first that did not is the last that was tested.

    Args:
        claims: in an order that was settled before the rows were looked at.
        passes: tests a claim on the rows. Of claims behind the first that does not pass it is never asked.
    """
    found = []
    for claim in claims:
        found.append(passes(claim))
        if not found[-1]:
            break
    return tuple(found)
