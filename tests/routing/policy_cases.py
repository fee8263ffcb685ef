"""Small prompts, views and a fleet, for tests of policies.

In the fleet PT(n) and DT(n) are n milliseconds, a block is 10 tokens, and an answer is 10 tokens
long until one has ended.
"""

from collections.abc import Mapping

from expediter.load import WorkerId
from expediter.routing.feedback import FirstToken
from expediter.routing.fleet_history import FleetHistory
from expediter.routing.gpu_cost import GpuCost
from expediter.routing.preble import PrebleE2
from expediter.routing.prompt import Prompt, token_prompt
from expediter.routing.view import Choice, ClusterView, RoutedRequest, WorkerView

A, B, C, D = (WorkerId(name) for name in "abcd")


def prompt(*parts: tuple[str, int]) -> Prompt:
    """Named runs of tokens: equal beginnings are shared beginnings."""
    tokens = []
    for name, num_tokens in parts:
        seed = int.from_bytes(name.encode()[:3], "big") * 100
        tokens += [seed + i for i in range(num_tokens)]
    return token_prompt(tokens)


def request(request_id: str, *parts: tuple[str, int], session: str | None = None) -> RoutedRequest:
    return RoutedRequest(request_id=request_id, prompt=prompt(*parts), session=session)


def view(
    *worker_ids: WorkerId,
    matched: Mapping[WorkerId, int] | None = None,
    load_tokens: Mapping[WorkerId, float] | None = None,
    num_requests: Mapping[WorkerId, int] | None = None,
) -> ClusterView:
    return ClusterView(
        workers=[
            WorkerView(
                worker_id=worker_id,
                load_tokens=(load_tokens or {}).get(worker_id, 0.0),
                num_requests=(num_requests or {}).get(worker_id, 0),
            )
            for worker_id in worker_ids
        ],
        matched=matched or {},
    )


ONE_MS = GpuCost(
    prefill_base=0.0, prefill_per_token=1.0, step_base=0.0, step_per_request=1.0, typical_batch=1
)
MS = 1e-3


class Fleet:
    """A policy with a clock that is set by hand."""

    def __init__(self, *, capacity_tokens: int = 1000, imbalance_ratio: float = 1.0) -> None:
        self.now = 0.0
        self.history = FleetHistory(
            cost=ONE_MS,
            block_size=10,
            window_seconds=180.0,
            expected_output_tokens=10,
            capacity_tokens=capacity_tokens,
        )
        self.policy = PrebleE2(
            self.history, clock=lambda: self.now, imbalance_ratio=imbalance_ratio
        )
        self.num_requests = 0

    def send(
        self,
        *parts: tuple[str, int],
        to: tuple[WorkerId, ...] = (A, B),
        matched: Mapping[WorkerId, int] | None = None,
        load_tokens: Mapping[WorkerId, float] | None = None,
    ) -> Choice:
        """Place one request; its id is its number, from 1."""
        self.num_requests += 1
        seen = view(*to, matched=matched, load_tokens=load_tokens)
        return self.policy.choose(request(str(self.num_requests), *parts), seen)

    def serve(self, *parts: tuple[str, int], on: WorkerId, cached: int = 0) -> None:
        """Place one request on a certain worker, which answers at once."""
        self.send(*parts, to=(on,), matched={on: cached})
        self.policy.observe(FirstToken(request_id=str(self.num_requests)))
