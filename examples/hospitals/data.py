"""Write the tables of five hospitals: `python data.py FOLDER`.

Patients are simulated: their 30 features are drawn from normal distributions with the means and covariances of the
malignant and of the benign tumours in scikit-learn's breast cancer data, which has too few rows for five hospitals. The
hospitals differ in size, in their share of malignant tumours, and in a shift of each feature.
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer

SIZES = (900, 400, 600, 1500, 700)
SHIFT = 0.15
"""Standard deviation of a hospital's shift of a standardised feature."""


def main(folder: Path) -> None:
    """Write hospital-1.csv to hospital-5.csv."""
    x, y = load_breast_cancer(return_X_y=True)
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    classes = [x[y == 1], x[y == 0]]  # benign, malignant
    generator = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    for hospital, size in enumerate(SIZES, start=1):
        malignant = generator.random(size) < generator.uniform(0.25, 0.5)
        features = np.empty((size, x.shape[1]))
        for label, rows in enumerate(classes):
            mean, covariance = rows.mean(axis=0), np.cov(rows.T)
            features[malignant == label] = generator.multivariate_normal(mean, covariance, (malignant == label).sum())
        features += generator.normal(scale=SHIFT, size=x.shape[1])
        table = pd.DataFrame(features, columns=[f"feature_{i + 1}" for i in range(x.shape[1])])
        table["malignant"] = malignant.astype(int)
        table.to_csv(folder / f"hospital-{hospital}.csv", index=False, float_format="%.6g")
        print(f"hospital-{hospital}.csv: {size} rows, {int(malignant.sum())} malignant")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python data.py FOLDER")
    main(Path(sys.argv[1]))
