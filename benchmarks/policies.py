"""What one placement costs in each policy: microseconds for `choose` and its feedback.

Conversations over shared system prompts, as in chat traffic, on workers whose caches are full.
Policies take turns on the same requests in one process, a few hundred at a time, so that a slow
moment slows all of them; what counts is processor time. `--blocks` and `--workers` set the size
of the problem. Hashing and matching are not included:
they are the index's work, done once whatever the policy. Nor is the garbage collector, which
would have each policy pay for all the others' memory.
"""

import argparse
import gc
import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from expediter.load import WorkerId
from expediter.routing.cache_aware import CacheAware
from expediter.routing.dynamo import DynamoKv
from expediter.routing.feedback import Finished, FirstToken, Learner
from expediter.routing.fleet_history import FleetHistory
from expediter.routing.gpu_cost import LLAMA3_70B_8XH100_SGLANG
from expediter.routing.outstanding import OutstandingWork, Work
from expediter.routing.policy import LeastLoaded, RoutingPolicy
from expediter.routing.power_of_two import PowerOfTwo
from expediter.routing.preble import PrebleE2
from expediter.routing.prefix_index import PrefixIndex
from expediter.routing.prompt import token_prompt
from expediter.routing.sglang import SglangCacheAware
from expediter.routing.slo import PredictedCost
from expediter.routing.sticky import Sticky
from expediter.routing.view import ClusterView, RoutedRequest, WorkerView

BLOCK_SIZE = 16
SYSTEM_TOKENS = 2000
REQUESTS_PER_SECOND = 50.0
IN_FLIGHT = 40
TURN = 250  # requests


@dataclass(slots=True)
class Lane:
    """One policy with its own fleet: what was sent where, what is in flight, what it took."""

    policy: RoutingPolicy
    index: PrefixIndex
    work: OutstandingWork
    running: list[tuple[str, Work]]
    seconds: list[float]


def policies(clock: Callable[[], float], capacity: int) -> dict[str, RoutingPolicy]:
    history = FleetHistory(
        cost=LLAMA3_70B_8XH100_SGLANG,
        block_size=BLOCK_SIZE,
        window_seconds=180.0,
        expected_output_tokens=128,
        capacity_tokens=capacity,
    )
    sticky = Sticky(
        max_imbalance=0.25, slack_requests=8, block_size=16, num_blocks=160, num_points=100
    )
    return {
        "least-loaded": LeastLoaded(),
        "power-of-two": PowerOfTwo(rng=random.Random(1)),
        "sticky": sticky,
        "cache-aware": CacheAware(load_weight=0.0, max_imbalance=0.2, slack_tokens=1024),
        "sglang": SglangCacheAware(block_size=BLOCK_SIZE),
        "dynamo": DynamoKv(rng=random.Random(1), block_size=BLOCK_SIZE),
        "preble": PrebleE2(history, clock=clock),
        "slo": PredictedCost(clock=clock, cost=LLAMA3_70B_8XH100_SGLANG, block_size=BLOCK_SIZE),
    }


def prompts(rng: random.Random, num_requests: int, num_blocks: int) -> Iterator[list[int]]:
    """Conversations that grow up to about twice `num_blocks`, then start again."""
    histories: dict[int, list[int]] = {}
    weights = [1 / (i + 1) for i in range(500)]
    for i in rng.choices(range(500), weights=weights, k=num_requests):
        tokens = histories.get(i)
        if tokens is None or len(tokens) > 2 * num_blocks * BLOCK_SIZE:
            tokens = [i % 4] * SYSTEM_TOKENS
        histories[i] = tokens = tokens + [rng.randrange(1000, 32000) for _ in range(500)]
        yield tokens


def place(lane: Lane, request: RoutedRequest, workers: list[WorkerId]) -> None:
    """One request through one lane; only the policy's own work is timed."""
    assert request.prompt is not None
    view = ClusterView(
        workers=[
            WorkerView(
                worker_id=w,
                load_tokens=lane.work.tokens(w),
                num_requests=lane.work.num_requests(w),
            )
            for w in workers
        ],
        matched=lane.index.match(request.prompt),
    )
    start = time.thread_time()
    choice = lane.policy.choose(request, view)
    spent = time.thread_time() - start
    lane.index.assume(choice.worker_id, request.prompt, seconds=1e9)
    prefill = request.num_tokens - choice.matched_tokens
    lane.running.append(
        (
            request.request_id,
            lane.work.start(choice.worker_id, prefill_tokens=prefill, max_output_tokens=None),
        )
    )
    ended = lane.running.pop(0) if len(lane.running) > IN_FLIGHT else None
    start = time.thread_time()
    if isinstance(lane.policy, Learner):
        lane.policy.observe(FirstToken(request_id=request.request_id))
        if ended is not None:
            lane.policy.observe(Finished(request_id=ended[0], output_tokens=100))
    lane.seconds.append(spent + time.thread_time() - start)
    if ended is not None:
        lane.work.finish(ended[1])


def run(num_workers: int, num_blocks: int, num_requests: int) -> dict[str, Lane]:
    now = 0.0
    workers = [WorkerId(f"worker-{i}") for i in range(num_workers)]
    capacity = 400_000
    lanes = {}
    for name, policy in policies(lambda: now, capacity).items():
        index = PrefixIndex(
            clock=lambda: now, block_size=BLOCK_SIZE, assumed_capacity=capacity // BLOCK_SIZE
        )
        for worker_id in workers:
            index.add_worker(worker_id)
        lanes[name] = Lane(policy, index, OutstandingWork(), [], [])
    made = prompts(random.Random(1), num_requests, num_blocks)
    for start in range(0, num_requests, TURN):
        requests = []
        for i, tokens in enumerate(islice(made, TURN), start):
            prompt = token_prompt(tokens)
            prompt.keys(BLOCK_SIZE)
            requests.append(RoutedRequest(request_id=str(i), prompt=prompt))
        for lane in lanes.values():
            now = start / REQUESTS_PER_SECOND
            for request in requests:
                now += 1 / REQUESTS_PER_SECOND
                place(lane, request, workers)
    return lanes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--blocks", type=int, default=300, help="mean blocks of a prompt")
    parser.add_argument("--requests", type=int, default=20_000, help="the first half warms up")
    args = parser.parse_args()
    gc.disable()
    lanes = run(args.workers, args.blocks, args.requests)
    print(f"{args.workers} workers, {args.requests} requests, microseconds a placement")
    print(f"{'policy':<14}{'median':>9}{'mean':>9}{'p99':>9}")
    for name, lane in lanes.items():
        measured = sorted(lane.seconds[args.requests // 2 :])
        p99 = measured[int(0.99 * len(measured))]
        mean, median = statistics.fmean(measured), statistics.median(measured)
        print(f"{name:<14}{median * 1e6:>9.1f}{mean * 1e6:>9.1f}{p99 * 1e6:>9.1f}")


if __name__ == "__main__":
    main()
