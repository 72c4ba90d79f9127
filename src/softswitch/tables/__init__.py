"""From a file of columns to a model: settings, encoding, training, estimators."""
