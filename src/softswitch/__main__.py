"""The command line as ``python -m softswitch``."""

from softswitch.cli import app

if __name__ == "__main__":
    app()
