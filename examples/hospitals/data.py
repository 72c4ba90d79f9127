"""Make five hospitals' files out of scikit-learn's breast cancer data: `python data.py FOLDER`.

The hospitals differ in size and in their share of malignant tumours. Columns are standardised, as if the hospitals had
agreed on units beforehand.
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer

HOSPITALS = 5


def main(folder: Path) -> None:
    """Write hospital-1.csv to hospital-5.csv."""
    x, y = load_breast_cancer(return_X_y=True)
    x, malignant = (x - x.mean(axis=0)) / x.std(axis=0), (y == 0).astype(int)
    generator = np.random.default_rng(0)
    owner = np.empty(len(y), int)
    for label in (0, 1):
        own = generator.permutation(np.flatnonzero(malignant == label))
        shares = generator.dirichlet(np.full(HOSPITALS, 4.0))
        owner[own] = np.repeat(np.arange(HOSPITALS), generator.multinomial(len(own), shares))
    folder.mkdir(parents=True, exist_ok=True)
    for hospital in range(HOSPITALS):
        mine = generator.permutation(np.flatnonzero(owner == hospital))
        table = pd.DataFrame(x[mine], columns=[f"feature_{i + 1}" for i in range(x.shape[1])])
        table["malignant"] = malignant[mine]
        table.to_csv(folder / f"hospital-{hospital + 1}.csv", index=False, float_format="%.6g")
        print(f"hospital-{hospital + 1}.csv: {len(mine)} rows, {int(malignant[mine].sum())} malignant")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python data.py FOLDER")
    main(Path(sys.argv[1]))
