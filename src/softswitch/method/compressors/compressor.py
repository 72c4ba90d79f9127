"""What every way to compress can do: in a compiled program, and in bytes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np


@dataclass(frozen=True)
class Compressor(ABC):
    """C: a vector, made such that it takes few bytes.

    ``C(v)`` is what arrives, the same for JAX and NumPy: what ``decode`` makes of what ``encode`` made. To compress
    what was compressed changes nothing. A way of your own is a subclass, a frozen dataclass; over Flower only those of
    this package are known to the other side.
    """

    keeps_all: ClassVar[bool] = False
    """Whether what arrives is the vector itself."""

    @abstractmethod
    def __call__(self, vector: Any) -> Any:
        """What arrives of a vector.

        Args:
            vector: JAX's or NumPy's, of one axis.
        """

    @abstractmethod
    def size(self, numbers: int, itemsize: int) -> int:
        """How many bytes a vector takes.

        Args:
            numbers: how many it has.
            itemsize: how many bytes one takes as it is.
        """

    @abstractmethod
    def encode(self, vector: np.ndarray) -> bytes:
        """A vector in bytes.

        Args:
            vector: finite, of one axis.
        """

    @abstractmethod
    def decode(self, code: bytes, numbers: int, dtype: np.dtype) -> np.ndarray:
        """What arrives of it, or raise ``ValueError`` where these bytes cannot come from ``encode``.

        Args:
            code: what was sent.
            numbers: how many the vector has.
            dtype: of what type.
        """
