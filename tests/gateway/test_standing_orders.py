"""Orders that a process is told of when it starts again."""

import msgspec

from expediter.config import GatewayConfig, RoutingConfig, WorkerEndpoint
from expediter.gateway.standing_orders import Order, StandingOrders

ADD = Order("POST", "/workers", b'{"url":"http://b","worker-id":"b"}')
DRAIN = Order("POST", "/workers/b/drain")
UNDRAIN = Order("POST", "/workers/b/undrain")
REMOVE = Order("DELETE", "/workers/b")


def policy(**changes: object) -> Order:
    return Order("POST", "/policy", msgspec.json.encode(changes))


def config(*urls: str, policy: str = "slo") -> GatewayConfig:
    workers = tuple(WorkerEndpoint(url=f"http://{url}", worker_id=url) for url in urls)
    return GatewayConfig(workers=workers, routing=RoutingConfig(policy=policy))  # type: ignore[arg-type]


def orders(*given: Order) -> StandingOrders:
    kept = StandingOrders()
    for order in given:
        kept.keep(order, worker_id=None if order.target == "/policy" else "b")
    return kept


def test_the_last_word_about_a_worker_holds() -> None:
    assert orders(ADD, DRAIN, UNDRAIN, DRAIN).all() == [ADD, DRAIN]
    assert orders(ADD, DRAIN, REMOVE).all() == [REMOVE]
    assert orders(REMOVE, ADD).all() == [REMOVE, ADD]
    assert len(orders(*[DRAIN, UNDRAIN] * 1000).all()) == 1


def test_changes_of_the_policy_add_up() -> None:
    [order] = orders(policy(policy="sticky"), policy(retries={}), policy(policy="random")).all()
    assert msgspec.json.decode(order.body) == {"policy": "random", "retries": {}}


def test_a_file_that_says_something_new_ends_the_orders_about_it() -> None:
    given = (ADD, policy(policy="random"))
    kept = orders(*given)
    kept.overrule(config("a"), config("a", "c"))
    assert kept.all() == list(given)
    kept.overrule(config("a"), config("a", policy="sticky"))
    assert kept.all() == [ADD]
    kept.overrule(config("a"), config("a", "b"))
    assert kept.all() == []
