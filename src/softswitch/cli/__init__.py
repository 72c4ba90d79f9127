"""The command line."""

from softswitch.cli.main import app

__all__ = ["app"]
