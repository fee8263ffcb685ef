"""When a worker has become too hot to be exploited further.

Preble (section 3.2, "post-assignment load adjustment") sends what would exploit the heaviest
worker to the lightest while max load > Th_bal * min load. The paper gives no value; the released
code uses 1.5 (HIGH_LOAD_THRESHOLD).

That looks at minutes of past work, and next to an idle worker any work is too much. So one
condition comes with it here, as in `cache_aware.py`: the request would wait now, at the heavy
worker, for more than the other must compute anew.
"""

from expediter.routing.gpu_cost import GpuCost
from expediter.routing.view import WorkerView

TH_BAL = 1.5


def is_heavy(load: float, least: float, *, threshold: float) -> bool:
    """Whether rebalancing would take requests from a worker with this load, in seconds."""
    return load > threshold * least


def moving_pays(
    worker: WorkerView, other: WorkerView, *, added_seconds: float, cost: GpuCost
) -> bool:
    """Whether the request waits longer behind the worker's outstanding work than it costs to move.

    `added_seconds` is how much more the request itself costs on the other worker.
    """
    num_ahead = worker.load_tokens - other.load_tokens
    return num_ahead > 0 and cost.prefill_seconds(int(num_ahead)) > added_seconds
