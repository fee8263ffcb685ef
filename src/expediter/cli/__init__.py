"""The command line."""

from expediter.cli.app import main

__all__ = ["main"]
