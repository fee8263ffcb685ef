"""Settings of how a fleet's workers are watched, avoided when they fail, and let go."""

from expediter.config.section import NotNegative, Positive, Seconds, Section


class HealthConfig(Section, frozen=True, kw_only=True):
    """What is held against a worker, and what it is asked.

    After `breaker_failures` in a row a worker gets no requests for `breaker_open_seconds`; each
    trial that fails doubles that, up to `breaker_max_open_seconds`. Every `load_interval_seconds`
    (0: never) a worker's metrics are read; what they said counts for `load_stale_seconds`. After
    `relearn_answers` answers in a row with much less cached than was predicted, the router's view
    of the worker is learnt anew.
    """

    breaker_failures: Positive = 5
    breaker_open_seconds: Seconds = 1.0
    breaker_max_open_seconds: Seconds = 30.0
    load_interval_seconds: NotNegative = 2.0
    load_stale_seconds: Seconds = 10.0
    drain_seconds: Seconds = 60.0  # what requests may take to finish at a worker that is removed
    relearn_answers: Positive = 32


class RetryConfig(Section, frozen=True, kw_only=True):
    """Requests earn retries: `fraction` of one each, and `per_second` whatever the traffic.

    At most `burst` are saved up.
    """

    fraction: NotNegative = 0.2
    per_second: NotNegative = 10.0
    burst: Positive = 100
