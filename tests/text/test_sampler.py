"""The sampler against plain references, row by row."""

import itertools
import math
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from expediter.request import RequestId, SamplingParams
from expediter.scheduling.output import ScheduledChunk

torch = pytest.importorskip("torch")
from expediter.engine.sampler import Sampler, chance  # noqa: E402

ENGINE_SEED = 7
EOS = 0
LOGITS = [2.0, 1.0, 0.5, 0.0, -0.5, -1.0, 1.5, 0.2, -2.0, 0.9]


def make_chunk(
    sampling: SamplingParams, *, output: Sequence[int] = (), request_id: str = "a"
) -> ScheduledChunk:
    return ScheduledChunk(
        request_id=RequestId(request_id),
        token_ids=[1],
        num_new_tokens=1,
        num_computed_tokens=0,
        block_ids=[0],
        samples=True,
        sampling=sampling,
        output_token_ids=output,
    )


def make_sampler(vocab_size: int) -> Sampler:
    return Sampler(vocab_size=vocab_size, eos_token_ids=frozenset({EOS}), seed=ENGINE_SEED)


def sample(rows: Sequence[Sequence[float]], chunks: Sequence[ScheduledChunk]) -> list[int]:
    sampler = make_sampler(len(rows[0]))
    return [token.token_id for token in sampler.sample(torch.tensor(rows), chunks)]


def softmax(logits: Sequence[float]) -> list[float]:
    weights = [math.exp(logit - max(logits)) for logit in logits]
    return [weight / sum(weights) for weight in weights]


def kept_tokens(logits: Sequence[float], params: SamplingParams) -> dict[int, float]:
    """What temperature, top-k and top-p leave, likeliest first, written as they are defined."""
    probs = softmax([logit / params.temperature for logit in logits])
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    order = order[: params.top_k or len(order)]
    total = sum(probs[token] for token in order)
    kept: dict[int, float] = {}
    for token in order:
        if kept and sum(kept.values()) >= params.top_p:
            break
        kept[token] = probs[token] / total
    return kept


def margin_to_next(kept: dict[int, float], point: float) -> tuple[int, float]:
    """The token a point in [0, 1) falls on, and how far it is from the token's borders."""
    low = 0.0
    total = sum(kept.values())
    for token, prob in kept.items():
        high = low + prob / total
        if point < high:
            return token, min(point - low, high - point)
        low = high
    return token, 0.0


def chi_square(tokens: Sequence[int], expected: dict[int, float]) -> float:
    counts = Counter(tokens)
    assert set(counts) <= set(expected)
    total = len(tokens)
    return sum((counts[t] - p * total) ** 2 / (p * total) for t, p in expected.items())


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.7},
        {"temperature": 1.8},
        {"top_k": 4},
        {"top_p": 0.8},
        {"top_k": 6, "top_p": 0.7, "temperature": 1.3},
    ],
)
def test_frequencies_over_seeds_follow_the_distribution(params: dict[str, float]) -> None:
    num_draws = 20_000
    chunks = [make_chunk(SamplingParams(seed=i, **params)) for i in range(num_draws)]
    tokens = sample([LOGITS] * num_draws, chunks)
    expected = kept_tokens(LOGITS, chunks[0].sampling)
    normalised = {t: p / sum(expected.values()) for t, p in expected.items()}
    assert chi_square(tokens, normalised) < 27.88  # 0.1% point at 9 degrees of freedom


def test_frequencies_within_one_request_follow_the_distribution() -> None:
    chunks = [make_chunk(SamplingParams(), output=range(i)) for i in range(5_000)]
    tokens = sample([LOGITS] * len(chunks), chunks)
    assert chi_square(tokens, kept_tokens(LOGITS, SamplingParams())) < 27.88


def test_successive_draws_of_one_request_are_independent() -> None:
    chunks = [make_chunk(SamplingParams(seed=3), output=range(i)) for i in range(4_000)]
    tokens = sample([[0.0] * 4] * len(chunks), chunks)
    pairs = [4 * a + b for a, b in itertools.pairwise(tokens)]
    assert chi_square(pairs, dict.fromkeys(range(16), 1 / 16)) < 37.70  # 0.1% at 15


@settings(max_examples=150, deadline=None)
@given(
    logits=st.lists(st.integers(-40, 40).map(lambda n: n / 8), min_size=1, max_size=40),
    temperature=st.sampled_from([0.05, 0.5, 1.0, 3.0]),
    top_k=st.integers(0, 45),
    top_p=st.floats(0.01, 1.0),
    seed=st.integers(-(2**63), 2**64),
)
def test_a_draw_is_the_one_a_plain_reference_makes(
    logits: list[float], temperature: float, top_k: int, top_p: float, seed: int
) -> None:
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    chunk = make_chunk(params)
    [token] = sample([logits], [chunk])
    kept = kept_tokens(logits, params)
    if top_p < 1 or 0 < top_k < len(logits):
        expected, margin = margin_to_next(kept, chance(chunk, engine_seed=ENGINE_SEED))
        # At a border, or where top_p ends just at a token, float32 may decide either way.
        close = abs(sum(kept.values()) - top_p) < 1e-5 or any(
            abs(sum(list(kept.values())[:i]) - top_p) < 1e-5 for i in range(len(kept))
        )
        assert token == expected or margin < 1e-5 or close
    else:
        in_id_order = dict(sorted(kept.items()))
        expected, margin = margin_to_next(in_id_order, chance(chunk, engine_seed=ENGINE_SEED))
        assert token == expected or margin < 1e-5


@pytest.mark.parametrize("params", [{"top_p": 0.97}, {"top_k": 3000}, {"top_k": 900, "top_p": 0.6}])
def test_wide_top_sets_of_a_large_vocabulary_match_the_reference(params: dict[str, float]) -> None:
    logits = torch.randn(5000, generator=torch.Generator().manual_seed(1)).tolist()
    chunks = [make_chunk(SamplingParams(seed=i, **params)) for i in range(64)]
    kept = kept_tokens(logits, chunks[0].sampling)
    for token, chunk in zip(sample([logits] * 64, chunks), chunks, strict=True):
        expected, margin = margin_to_next(kept, chance(chunk, engine_seed=ENGINE_SEED))
        assert token == expected or margin < 1e-5


any_params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.6, 1.0]),
    top_k=st.sampled_from([0, 1, 3, 20]),
    top_p=st.sampled_from([0.3, 0.9, 1.0]),
    seed=st.one_of(st.none(), st.integers(0, 5)),
    presence_penalty=st.sampled_from([0.0, 0.7]),
    frequency_penalty=st.sampled_from([0.0, -0.4]),
    min_tokens=st.sampled_from([0, 3]),
    num_logprobs=st.sampled_from([None, 0, 3]),
)


@settings(max_examples=60, deadline=None)
@given(
    batch=st.lists(
        st.tuples(any_params, st.lists(st.integers(0, 600), max_size=6)), min_size=1, max_size=7
    ),
    seed=st.integers(0, 1000),
    data=st.data(),
)
def test_a_row_gets_the_same_token_alone_and_in_any_batch(
    batch: list[tuple[SamplingParams, list[int]]], seed: int, data: st.DataObject
) -> None:
    logits = torch.randn(len(batch), 601, generator=torch.Generator().manual_seed(seed))
    chunks = [
        make_chunk(params, output=output, request_id=str(i))
        for i, (params, output) in enumerate(batch)
    ]
    sampler = make_sampler(601)
    alone = [sampler.sample(logits[i : i + 1], [chunk])[0] for i, chunk in enumerate(chunks)]
    order = data.draw(st.permutations(range(len(batch))))
    together = make_sampler(601).sample(logits[order], [chunks[i] for i in order])
    assert [t.token_id for t in together] == [alone[i].token_id for i in order]
    for token, i in zip(together, order, strict=True):
        assert [(p.token_id, p.rank) for p in token.logprobs] == [
            (p.token_id, p.rank) for p in alone[i].logprobs
        ]


def test_unseeded_requests_differ_by_id_and_engine_seed() -> None:
    chunks = [make_chunk(SamplingParams(), request_id=str(i)) for i in range(8)]
    chances = {chance(chunk, engine_seed=seed) for chunk in chunks for seed in (0, 1)}
    assert len(chances) == 16
    seeded = make_chunk(SamplingParams(seed=5), request_id="x")
    assert chance(seeded, engine_seed=0) == chance(seeded, engine_seed=1)


def test_greedy_takes_the_lowest_of_tied_tokens() -> None:
    greedy = make_chunk(SamplingParams(temperature=0.0))
    assert sample([[1.0, 3.0, 3.0, 2.0]], [greedy]) == [1]
    top_1 = make_chunk(SamplingParams(top_k=1))
    assert sample([[1.0, 3.0, 3.0, 2.0]], [top_1]) == [1]


def test_top_p_keeps_no_token_more_than_it_takes() -> None:
    chunks = [make_chunk(SamplingParams(top_p=0.5, seed=i)) for i in range(32)]
    assert set(sample([[1.0, 1.0]] * 32, chunks)) == {0}


def test_penalties_count_only_generated_tokens() -> None:
    params = SamplingParams(temperature=0.0, presence_penalty=0.5, frequency_penalty=0.25)
    rows = [[0.0, 2.0, 1.3, 0.9]] * 3
    once = make_chunk(params, output=[1])  # 2 - 0.75 = 1.25 < 1.3
    twice_each = make_chunk(params, output=[1, 2, 1, 2])  # 1.0, 0.3 against 0.9
    assert sample(rows, [make_chunk(params), once, twice_each]) == [1, 2, 1]


def test_eos_and_stop_tokens_wait_for_min_tokens() -> None:
    params = SamplingParams(
        temperature=0.0, min_tokens=2, stop_token_ids=frozenset({1, 999}), ignore_eos=True
    )
    rows = [[9.0, 8.0, 7.0]] * 3
    assert sample(rows, [make_chunk(params, output=[2] * n) for n in range(3)]) == [2, 2, 0]


def test_logprobs_are_of_the_raw_logits_with_the_sampled_token_first() -> None:
    params = SamplingParams(
        temperature=0.0, num_logprobs=2, presence_penalty=9.0, min_tokens=5, top_k=1
    )
    logits = torch.tensor([[0.0, 2.0, 1.0, -1.0]])
    [token] = make_sampler(4).sample(logits, [make_chunk(params, output=[1])])
    probs = softmax([0.0, 2.0, 1.0, -1.0])
    assert [(p.token_id, p.rank) for p in token.logprobs] == [(2, 2), (1, 1), (2, 2)]
    assert [p.logprob for p in token.logprobs] == pytest.approx(
        [math.log(probs[i]) for i in (2, 1, 2)], abs=1e-5
    )
    assert logits.tolist() == [[0.0, 2.0, 1.0, -1.0]]


def test_each_row_gets_as_many_logprobs_as_it_asked_for() -> None:
    asked = [None, 0, 3, 50]
    chunks = [make_chunk(SamplingParams(num_logprobs=n), request_id=str(n)) for n in asked]
    tokens = make_sampler(10).sample(torch.tensor([LOGITS] * 4), chunks)
    assert [len(token.logprobs) for token in tokens] == [0, 1, 4, 11]


@pytest.mark.parametrize("params", [{"temperature": 0.0}, {}, {"top_k": 2}, {"top_p": 0.5}])
def test_nan_is_never_picked_and_infinities_do_no_harm(params: dict[str, float]) -> None:
    nan, inf = math.nan, math.inf
    chunks = [make_chunk(SamplingParams(seed=i, **params)) for i in range(4)]
    rows = [[nan, 1.0, -inf, nan], [nan, 0.0, inf, -inf], [nan] * 4, [-inf, -inf, -inf, 3.0]]
    tokens = sample(rows, chunks)
    assert tokens[:2] == [1, 2]
    assert tokens[2] in range(4)
    assert tokens[3] == 3


def test_padding_columns_and_half_precision_are_fine() -> None:
    logits = torch.tensor([[1.0, 2.0, 9.0]], dtype=torch.bfloat16)
    [token] = make_sampler(2).sample(logits, [make_chunk(SamplingParams(temperature=0.0))])
    assert token.token_id == 1


def test_no_rows_give_no_tokens() -> None:
    assert make_sampler(4).sample(torch.empty(0, 4), []) == []
