"""The command line: parses, calls, prints."""

from softswitch.cli.main import app

__all__ = ["app"]
