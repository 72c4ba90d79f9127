"""The command line interface, ``softswitch``."""

from softswitch.cli.main import app

__all__ = ["app"]
