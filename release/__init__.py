"""What is tried before a release: `make release-check`."""
