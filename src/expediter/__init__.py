"""Expediter: a serving layer for fleets of LLM engines."""

__version__ = "0.1.0"
