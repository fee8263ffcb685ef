"""What all transfers to and from one worker had in common."""

from collections import Counter
from itertools import accumulate, repeat
from operator import mul

from expediter.worker.handover.legs import TransferReport
from expediter.worker.stats import Histogram

SECONDS_BUCKETS = (*(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0),)
BYTES_BUCKETS = tuple(accumulate(repeat(4.0, 12), mul, initial=2048.0))  # to 32 GiB


class TransferStats:
    """Counts of whole and of broken transfers; `failures` by reason."""

    def __init__(self) -> None:
        self.seconds = Histogram(SECONDS_BUCKETS)
        self.exposed_seconds = Histogram(SECONDS_BUCKETS)
        self.num_bytes = Histogram(BYTES_BUCKETS)
        self.hidden_bytes = 0
        self.num_descriptors = 0
        self.num_tokens = 0
        self.failures: Counter[str] = Counter()

    def record(self, report: TransferReport) -> None:
        """Add a transfer that is over; one of which nothing came only counts as a failure."""
        if report.failure is not None:
            self.failures[report.failure] += 1
        if report.exposed_seconds is not None:
            self.exposed_seconds.observe(report.exposed_seconds)
        self.num_tokens += report.num_tokens
        if report.num_bytes:
            self.seconds.observe(report.seconds)
            self.num_bytes.observe(report.num_bytes)
            self.hidden_bytes += report.hidden_bytes
            self.num_descriptors += report.num_descriptors
