"""Clients without their rows."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from softswitch.clients.client_data import ClientData, Rows
from softswitch.clients.streamed.streamed_data import StreamedData


class Outline(ClientData):
    """The clients' names, sizes and columns without their rows: what is needed to draw, and to know shapes.

    Args:
        data: whose outline.
        sizes: of clients × strata in place of the data's own; None: those.
    """

    def __init__(self, data: StreamedData, sizes: np.ndarray | None = None) -> None:
        self.names, self.strata = data.names, data.strata
        self.stratum_sizes = data.stratum_sizes if sizes is None else sizes
        self.sizes = self.stratum_sizes.sum(axis=1)
        offsets = np.cumsum(self.stratum_sizes).reshape(self.stratum_sizes.shape) - self.stratum_sizes
        self.rows = Rows(
            {key: jnp.zeros((1, *row.shape), row.dtype) for key, row in data.columns.items()},
            jnp.asarray(offsets.astype(np.int32)),
            jnp.asarray(self.stratum_sizes.astype(np.int32)),
        )
