"""Estimators with scikit-learn's face: classifiers, regressors, and a score of the worst client."""
