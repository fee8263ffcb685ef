"""How transfers that run at the same time share links: max-min fairly.

Nobody gets more while somebody with less on one of the same links could. Found by progressive
filling: the link that gives its flows the smallest equal share fixes those flows at it; what they
leave free on other links goes to the rest, and so on (Bertsekas and Gallager, Data Networks,
section 6.5). It is what equally aggressive senders arrive at, and the usual model of TCP and RDMA
flows in simulators.

Pure arithmetic: time comes in as numbers, and must not run backwards.
"""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence

Link = Hashable
"""Any name; a transfer in one direction only loads links of that direction."""

_SLACK = 1e-9  # seconds of a flow's own rate: what is left of it then is rounding


class Flow:
    """A transfer under way over `links`; `rate` in bytes a second holds until anything changes.

    It never goes faster than `limit`.
    """

    __slots__ = ("limit", "links", "num_bytes_left", "rate")

    def __init__(self, links: Sequence[Link], num_bytes: float, limit: float = math.inf) -> None:
        self.links = links
        self.num_bytes_left = num_bytes
        self.limit = limit
        self.rate = 0.0

    @property
    def has_ended(self) -> bool:
        """Whether all of it has arrived."""
        return self.num_bytes_left <= self.rate * _SLACK


class Flows:
    """The transfers under way. Bytes a second of every link are given beforehand."""

    def __init__(self, bandwidth: Mapping[Link, float]) -> None:
        self._bandwidth = bandwidth
        self._flows: dict[Flow, None] = {}  # in order of start
        self._now = 0.0

    def __len__(self) -> int:
        return len(self._flows)

    def start(
        self, links: Sequence[Link], num_bytes: float, *, now: float, limit: float = math.inf
    ) -> Flow:
        """A new flow over all of these links at once; the others make room."""
        self._advance(now)
        flow = Flow(links, num_bytes, limit)
        self._flows[flow] = None
        self._share()
        return flow

    def stop(self, flow: Flow, *, now: float) -> None:
        """Take a flow out, however far it got; nothing happens if it has gone."""
        self._advance(now)
        if self._flows.pop(flow, flow) is None:
            self._share()

    def unlimit(self, flow: Flow, *, now: float) -> None:
        """Let a flow go as fast as the links allow; nothing happens if it has gone."""
        self._advance(now)
        if flow in self._flows:
            flow.limit = math.inf
            self._share()

    def take_ended(self, *, now: float) -> list[Flow]:
        """Take out all that have arrived by now, in order of start."""
        self._advance(now)
        ended = [flow for flow in self._flows if flow.has_ended]
        for flow in ended:
            del self._flows[flow]
        if ended:
            self._share()
        return ended

    def next_end(self) -> float | None:
        """When the next of them will have arrived, if nothing changes; None if there are none."""
        if not self._flows:
            return None
        return self._now + min(flow.num_bytes_left / flow.rate for flow in self._flows)

    def crossing(self, link: Link) -> list[Flow]:
        """The flows that use a link."""
        return [flow for flow in self._flows if link in flow.links]

    def _advance(self, now: float) -> None:
        for flow in self._flows:
            flow.num_bytes_left -= flow.rate * (now - self._now)
        self._now = now

    def _share(self) -> None:
        for flow, rate in max_min_shares(self._flows, self._bandwidth).items():
            flow.rate = rate


def max_min_shares(flows: Iterable[Flow], bandwidth: Mapping[Link, float]) -> dict[Flow, float]:
    """Every flow's rate in bytes a second; a limit is a link that nobody else uses."""
    on_link: dict[Link, dict[Flow, None]] = {}
    free: dict[Link, float] = {}
    for flow in flows:
        for link in flow.links:
            on_link.setdefault(link, {})[flow] = None
            free[link] = bandwidth[link]
        if flow.limit < math.inf:
            on_link[flow] = {flow: None}
            free[flow] = flow.limit
    rates: dict[Flow, float] = {}
    while on_link:
        tightest = min(on_link, key=lambda link: free[link] / len(on_link[link]))
        share = free[tightest] / len(on_link[tightest])
        for flow in list(on_link[tightest]):
            rates[flow] = share
            for link in dict.fromkeys((*flow.links, flow)):
                if link not in on_link:
                    continue
                free[link] -= share
                del on_link[link][flow]
                if not on_link[link]:
                    del on_link[link]
    return rates
