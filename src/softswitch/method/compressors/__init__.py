"""How a vector is sent in fewer bytes than its numbers take: the largest of them, or all of them roughly."""

from softswitch.method.compressors.compressor import Compressor
from softswitch.method.compressors.quantised import Quantised
from softswitch.method.compressors.top_k import TopK

__all__ = ["Compressor", "Quantised", "TopK"]
