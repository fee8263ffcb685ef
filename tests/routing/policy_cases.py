"""Small prompts and views, for tests of policies."""

from collections.abc import Mapping

from expediter.load import WorkerId
from expediter.routing.prompt import Prompt, token_prompt
from expediter.routing.view import ClusterView, RoutedRequest, WorkerView

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
