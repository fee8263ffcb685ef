"""Workloads against a live endpoint: an open-loop load generator, and calibration from outside."""
