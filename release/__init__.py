"""Checks before a release: `make release-check`."""
