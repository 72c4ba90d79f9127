"""A minimal deployable app: three sites with a few rows each."""
