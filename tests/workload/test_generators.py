"""What each generator shares, and that all keep a workload's promises."""

import random
import statistics
from collections import Counter
from itertools import islice, pairwise, takewhile

import msgspec
import pytest
from msgspec.structs import replace
from promises import GENERATORS, Make, keep_promises, told

from expediter.workload.arrivals import even
from expediter.workload.conversations import AGENTS, CHAT
from expediter.workload.demo import Demo
from expediter.workload.distributions import Constant, Zipf
from expediter.workload.hot_prefix import HotPrefix
from expediter.workload.robots import Robots
from expediter.workload.shared_prefix import DOCUMENTS, PARALLEL_SAMPLES

ALL = pytest.mark.parametrize("make", GENERATORS.values(), ids=GENERATORS.keys())


@ALL
def test_generators_keep_the_promises_of_a_workload(make: Make) -> None:
    assert keep_promises(islice(make(random.Random(3)), 300)) == 300


@ALL
def test_a_seed_gives_the_same_workload_again_and_another_seed_another(make: Make) -> None:
    one, again, other = ([told(t) for t in islice(make(random.Random(s)), 60)] for s in (1, 1, 2))
    assert one == again
    assert one != other


@ALL
def test_equal_names_in_one_workload_are_equal_segments(make: Make) -> None:
    segments = {}
    for turn in islice(make(random.Random(4)), 200):
        for segment in turn.transcript.segments:
            assert segments.setdefault(segment.name, segment) == segment


@pytest.mark.parametrize(
    "settings", [CHAT, AGENTS, DOCUMENTS, PARALLEL_SAMPLES, Robots(), HotPrefix(), Demo()]
)
def test_settings_survive_a_file(settings: msgspec.Struct) -> None:
    data = msgspec.json.encode(settings)
    assert msgspec.json.decode(data, type=type(settings)) == settings


def test_a_conversation_grows_by_answer_and_message_over_a_shared_system_prompt() -> None:
    settings = replace(CHAT, num_turns=Constant(4), system=Zipf(2))
    turns = list(settings.turns([0.0, 1.0, 2.0, 3.0, 4.0, 5.0], rng=random.Random(1)))
    assert len(turns) == 24
    systems = {turn.prompt.segments[0] for turn in turns}
    assert {system.name for system in systems} == {"chat/system/0", "chat/system/1"}
    for before, turn in pairwise(turns):
        if turn.session == before.session:
            assert turn.prompt.before is before.transcript
    roles = [segment.role for segment in turns[3].transcript.segments]
    assert roles == ["system", *["user", "assistant"] * 4]
    assert [turn.think_time is None for turn in turns[:5]] == [True, False, False, False, True]


def test_agents_read_results_of_tools() -> None:
    turns = list(AGENTS.turns([0.0], rng=random.Random(1)))
    roles = [segment.role for segment in turns[-1].prompt.segments]
    assert roles[:5] == ["system", "user", "assistant", "tool", "assistant"]
    assert roles[-1] == "tool"


def test_conversations_are_made_one_at_a_time() -> None:
    """A million starts: only those that were asked for have been drawn."""
    starts = iter(range(1_000_000))
    turns = replace(CHAT, num_turns=Constant(1)).turns(map(float, starts), rng=random.Random(1))
    list(islice(turns, 10))
    assert next(starts) == 10


def test_questions_on_one_document_share_it_and_nothing_more() -> None:
    settings = replace(DOCUMENTS, name="d")
    turns = list(
        islice(settings.turns(even(1.0).times(random.Random(1)), rng=random.Random(2)), 300)
    )
    by_document = Counter(turn.prompt.segments[1] for turn in turns)
    assert len(by_document) > 20
    assert by_document.most_common(1)[0][0].name == "d/1/0"
    questions = [turn.prompt.segments[2] for turn in turns]
    assert len({question.name for question in questions}) == 300


def test_parallel_samples_are_one_prompt_at_one_time_with_many_answers() -> None:
    turns = list(PARALLEL_SAMPLES.turns([0.0, 1.0], rng=random.Random(1)))
    assert len(turns) == 16
    first = turns[:8]
    assert {turn.arrival_time for turn in first} == {0.0}
    assert len({turn.prompt for turn in first}) == 1
    assert len({turn.transcript.segment.name for turn in turns}) == 16


def test_each_robot_sends_new_frames_at_its_rate_behind_a_prefix_that_stays() -> None:
    robots = Robots(num_frames=5, frames_per_second=4.0)
    turns = list(robots.turns([0.0, 0.1, 7.0], rng=random.Random(1)))
    assert len(turns) == 15
    second = [turn for turn in turns if turn.session == "robots/1"]
    assert [turn.arrival_time for turn in second] == pytest.approx([0.1, 0.35, 0.6, 0.85, 1.1])
    assert len({turn.prompt.before for turn in turns}) == 1
    assert len({turn.prompt.segment.name for turn in turns}) == 15


def test_the_hot_prefix_burst_has_the_three_classes() -> None:
    """8,000 tokens and 200 more at 100/s, 400 more at 5/s, nothing more at 20/s."""
    turns = list(takewhile(lambda t: t.arrival_time < 60, HotPrefix().turns(rng=random.Random(1))))
    rates = {label: num / 60 for label, num in Counter(turn.label for turn in turns).items()}
    assert rates == pytest.approx({"A": 100, "B": 5, "C": 20}, rel=0.15)
    lengths = {turn.label: turn.num_prompt_tokens for turn in turns}
    assert lengths == {"A": 8200, "B": 8400, "C": 8000}
    prompts = {label: {t.prompt for t in turns if t.label == label} for label in "ABC"}
    assert {label: len(found) for label, found in prompts.items()} == {"A": 1, "B": 50, "C": 1}
    assert len({turn.transcript.segments[0] for turn in turns}) == 1


def test_the_demos_histories_grow_by_500_and_start_over_above_20_000() -> None:
    times = even(1.0).times(random.Random(1))
    turns = list(islice(Demo(num_conversations=1).turns(times, rng=random.Random(1)), 45))
    lengths = [turn.num_prompt_tokens - 2300 for turn in turns]
    assert lengths[:2] == [500, 1000]
    assert lengths[39:41] == [20_000, 500]
    systems, openings = ([t.prompt.segments[i] for t in (turns[0], turns[40])] for i in (0, 1))
    assert systems[0] == systems[1]
    assert openings[0] != openings[1]


def test_the_demos_conversations_have_zipf_weights_and_four_system_prompts() -> None:
    times = even(1.0).times(random.Random(1))
    turns = list(islice(Demo().turns(times, rng=random.Random(1)), 20_000))
    visits = Counter(turn.session for turn in turns)
    harmonic = sum(1 / rank for rank in range(1, 501))
    assert visits["demo/0"] / 20_000 == pytest.approx(1 / harmonic, rel=0.05)
    systems = {turn.session: turn.prompt.segments[0].name for turn in turns}
    assert systems["demo/7"] == "demo/system/3"
    assert len(set(systems.values())) == 4
    assert statistics.fmean(turn.num_output_tokens for turn in turns) == 200
