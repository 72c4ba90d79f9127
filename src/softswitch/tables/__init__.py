"""From a table file to a trained model: reading, inspection, training and estimators."""
