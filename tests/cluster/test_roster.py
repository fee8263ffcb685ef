"""What is remembered of who may get requests is what a look at every worker would find."""

from fake_client import FakeClient
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from expediter.cluster.membership import Member, Membership, Model, WorkerStatus
from expediter.config import HealthConfig, WorkerEndpoint
from expediter.load import WorkerId
from expediter.routing.prefix_index import PrefixIndex

NAMES = st.sampled_from(["a", "b", "c", "d"])
MODELS = ["base", "poet", "nobody's"]


class Fleet(RuleBasedStateMachine):
    """Workers that come, go and change while it is asked who may get requests."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.membership = Membership(
            connect=lambda _: FakeClient(),
            index=PrefixIndex(clock=self.clock, block_size=2, assumed_capacity=10),
            interval_seconds=1.0,
            config=HealthConfig(breaker_failures=2, breaker_open_seconds=5.0),
            clock=self.clock,
        )

    def clock(self) -> float:
        return self.now

    def member(self, name: str) -> Member:
        worker_id = WorkerId(name)
        if worker_id not in self.membership.members:
            return self.membership.add(WorkerEndpoint(url=f"http://{name}", worker_id=name))
        return self.membership.members[worker_id]

    @rule(name=NAMES, health=st.sampled_from([*WorkerStatus]))
    def changes_health(self, name: str, health: WorkerStatus) -> None:
        self.member(name).health = health

    @rule(name=NAMES, models=st.sets(st.sampled_from(MODELS[:2])))
    def serves(self, name: str, models: set[str]) -> None:
        parents = {"poet": "base"}
        self.member(name).models = {m: Model(m, parent=parents.get(m)) for m in models}

    @rule(name=NAMES, drains=st.booleans())
    def drains(self, name: str, *, drains: bool) -> None:
        self.member(name)
        change = self.membership.drain if drains else self.membership.undrain
        change(WorkerId(name))

    @rule(name=NAMES)
    def goes(self, name: str) -> None:
        self.membership.drop(self.member(name).worker_id)

    @rule(name=NAMES, outcome=st.sampled_from(["failed", "answered", "ended", "nothing yet"]))
    def gets_a_request(self, name: str, outcome: str) -> None:
        breaker = self.member(name).breaker
        if breaker.allows():
            ticket = breaker.begin()
            if outcome != "nothing yet":
                getattr(breaker, outcome)(ticket)

    @rule(seconds=st.sampled_from([0.1, 5.0, 20.0]))
    def waits(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def nothing_is_remembered_wrongly(self) -> None:
        members = self.membership.members.values()
        assert self.membership.is_adapter("poet") == any("poet" in m.models for m in members)
        assert not self.membership.is_adapter("base")
        ready = [
            m
            for m in self.membership.members.values()
            if m.status is WorkerStatus.UP and m.breaker.allows()
        ]
        for _ in range(2):  # found, and remembered
            assert list(self.membership.ready()) == ready
            for model in MODELS:
                serving = [m for m in ready if model in m.models]
                assert list(self.membership.serving(model)) == (serving or ready)


TestFleet = Fleet.TestCase
