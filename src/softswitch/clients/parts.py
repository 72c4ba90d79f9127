"""Three parts of every client's rows: to learn from, to choose by, and to certify with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from softswitch.clients.client_data import ClientData
from softswitch.clients.splits import hold_out


class Parts(NamedTuple):
    """Three parts of every client's rows.

    Attributes:
        learn: what models are trained on.
        choose: what one of them is chosen by.
        certify: what is looked at once, at the end, to say what holds on rows that nobody has seen.
    """

    learn: ClientData
    choose: ClientData
    certify: ClientData

    @classmethod
    def from_arrays(
        cls,
        data: Mapping[str, Any],
        client: ArrayLike,
        *,
        alike: tuple[str, ...] = (),
        choosing: float = 0.15,
        held_out: float = 0.25,
        strata: ArrayLike | None = None,
        seed: int = 0,
    ) -> Parts:
        """Parts of arrays with one row a sample, and a column that says whose row it is.

        Args:
            data: the columns.
            client: one label a sample.
            alike: names of columns with few values (labels, groups) of which every part has the same shares.
            choosing: the share of each client's rows to choose by,
            held_out: and to certify with.
            strata: as for ``ClientData.from_arrays``; a column's name, or several.
            seed: of the choice of rows.
        """
        masks = part_masks(client, *(data[name] for name in alike), choosing=choosing, held_out=held_out, seed=seed)
        owner, found = np.asarray(client), []
        for name, mask in zip(cls._fields, masks, strict=True):
            if not mask.any():
                raise ValueError(f"no client has enough rows for the part {name!r}; give it a larger share")
            part = {key: np.asarray(column)[mask] for key, column in data.items()}
            found.append(ClientData.from_arrays(part, owner[mask], strata=strata))
        return cls(*found)


def part_masks(
    client: Any, *columns: Any, choosing: float, held_out: float, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Which rows are to learn from, to choose by and to certify with: shares of each client's rows of each kind.

    Args:
        client: whose row it is.
        columns: what else to keep the proportions of: labels, groups.
        choosing: the share to choose by, 0 or more,
        held_out: and to certify with; together below 1.
        seed: of the choice.
    """
    for name, share in (("choosing", choosing), ("held_out", held_out)):
        if not 0 <= share < 1:
            raise ValueError(f"{name} must be a share >= 0 and < 1, but is {share!r}")
    if not choosing + held_out < 1:
        raise ValueError(
            f"choosing and held_out must leave rows to learn from, but together are {choosing + held_out:g}"
        )
    owner = np.asarray(client)
    last = hold_out(owner, *columns, share=held_out, seed=seed)
    rest = np.flatnonzero(~last)
    chosen = hold_out(
        owner[rest], *(np.asarray(column)[rest] for column in columns), share=choosing / (1 - held_out), seed=seed
    )
    second = np.zeros_like(last)
    second[rest[chosen]] = True
    return ~(last | second), second, last


def sample_of(data: ClientData, most: int, seed: int = 0) -> ClientData:
    """At most so many rows of each client, at random; the data themselves where no client has more."""
    if int(data.sizes.max()) <= most:
        return data
    generator = np.random.default_rng(seed)
    picks = [
        first + np.sort(generator.choice(size, min(size, most), replace=False))
        for first, size in zip(np.cumsum(data.sizes) - data.sizes, data.sizes, strict=True)
    ]
    rows = np.concatenate(picks)
    owner = np.repeat(np.arange(len(picks)), [len(own) for own in picks])
    columns = {key: np.asarray(column)[rows] for key, column in data.rows.columns.items()}
    return ClientData(columns, owner, None, data.names)
