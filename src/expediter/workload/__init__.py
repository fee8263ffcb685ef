"""Requests to simulate or to send: generators, public traces, and what can be done to either."""
