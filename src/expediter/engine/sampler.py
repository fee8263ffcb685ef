"""Picks the next token of every row of logits.

A row's chance is one number in [0, 1), a hash of (seed, how many tokens the request has
generated), looked up in the row's cumulative distribution. Nothing is remembered between
steps: from the same logits a seeded request draws the same tokens alone or in a batch,
preempted or not.

The order of the steps is vLLM's: log probabilities of the raw logits (its `raw_logprobs`
default), `min_tokens`, penalties over generated tokens, temperature, top-k, top-p. Where
tokens tie, the lower id counts as the likelier.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence

import torch

from expediter.request import SampledToken, SamplingParams, TokenLogprob
from expediter.scheduling.output import ScheduledChunk

_GREEDY_BELOW = 1e-5  # temperatures under this are 0, as in vLLM
_FIRST_CANDIDATES = 256  # top-p looks at this many tokens first, then at 8 times as many
_NUM_CHANCES = 2**52  # one bit less than a double holds: chance * total stays below total


class Sampler:
    """Samples one token a row.

    A NaN logit counts as minus infinity, an infinite one as the largest float; of a row
    without any finite logit greedy takes token 0 and sampling any token.
    """

    def __init__(self, *, vocab_size: int, eos_token_ids: frozenset[int], seed: int) -> None:
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._seed = seed

    def sample(self, logits: torch.Tensor, chunks: Sequence[ScheduledChunk]) -> list[SampledToken]:
        """The next token of each chunk; row i of `logits` is `chunks[i]`'s and stays as it is.

        Columns past the vocabulary (padding of the output matrix) are never sampled.
        """
        if not chunks:
            return []
        raw = _finite(logits[:, : self._vocab_size].float())
        adjusted = self._mask_stops(_penalise(raw, chunks), chunks)
        token_ids = self._pick(adjusted, chunks)
        logprobs = _logprobs(raw, token_ids, chunks)
        return [
            SampledToken(token_id=token_id, logprobs=row)
            for token_id, row in zip(token_ids, logprobs, strict=True)
        ]

    def _mask_stops(self, logits: torch.Tensor, chunks: Sequence[ScheduledChunk]) -> torch.Tensor:
        """Forbid end-of-sequence and stop tokens to rows still short of `min_tokens`."""
        rows: list[int] = []
        columns: list[int] = []
        for row, chunk in enumerate(chunks):
            if len(chunk.output_token_ids) < chunk.sampling.min_tokens:
                stops = self._eos_token_ids | chunk.sampling.stop_token_ids
                inside = [token_id for token_id in stops if 0 <= token_id < self._vocab_size]
                rows += [row] * len(inside)
                columns += inside
        if not rows:
            return logits
        return logits.index_put(
            (_index(rows, logits), _index(columns, logits)),
            torch.tensor(-torch.inf, device=logits.device),
        )

    def _pick(self, logits: torch.Tensor, chunks: Sequence[ScheduledChunk]) -> list[int]:
        token_ids: list[int] = [0] * len(chunks)
        groups: dict[str, list[int]] = {}
        for row, chunk in enumerate(chunks):
            groups.setdefault(_group(chunk.sampling, self._vocab_size), []).append(row)
        for name, rows in groups.items():
            part = logits if len(rows) == len(chunks) else logits[_index(rows, logits)]
            if name == "greedy":
                picked = part.max(dim=-1).indices
            else:
                picked = self._draw(part, [chunks[row] for row in rows], filtered=name == "top")
            for row, token_id in zip(rows, picked.tolist(), strict=True):
                token_ids[row] = token_id
        return token_ids

    def _draw(
        self, logits: torch.Tensor, chunks: Sequence[ScheduledChunk], *, filtered: bool
    ) -> torch.Tensor:
        params = [chunk.sampling for chunk in chunks]
        # From the maximum down, so that no small temperature overflows.
        logits = logits - logits.amax(dim=-1, keepdim=True)
        logits = logits / _column([p.temperature for p in params], logits)
        # Row by row, so that a row's rounding does not depend on its neighbours.
        probs = torch.softmax(logits, dim=-1)
        chances = [chance(chunk, engine_seed=self._seed) for chunk in chunks]
        targets = _column(chances, logits, torch.float64)
        if filtered:
            return _draw_from_top(logits, probs, targets, params)
        cumulative = probs.cumsum(dim=-1, dtype=torch.float64)
        return _first_above(cumulative, targets * cumulative[:, -1:]).squeeze(-1)


def chance(chunk: ScheduledChunk, *, engine_seed: int) -> float:
    """A number in [0, 1) that only the request's seed and its output length decide.

    A request without a seed gets one from the engine's seed and its own id.
    """
    seed = chunk.sampling.seed
    source = f"{engine_seed}/{chunk.request_id}" if seed is None else str(seed)
    name = f"{source}:{len(chunk.output_token_ids)}".encode()
    digest = hashlib.blake2b(name, digest_size=8).digest()
    return int.from_bytes(digest) % _NUM_CHANCES / _NUM_CHANCES


def _group(params: SamplingParams, vocab_size: int) -> str:
    if params.temperature < _GREEDY_BELOW:
        return "greedy"
    return "top" if params.top_p < 1 or 0 < params.top_k < vocab_size else "all"


def _finite(logits: torch.Tensor) -> torch.Tensor:
    """The same tensor if no NaN or plus infinity is in it, else a repaired copy."""
    # NaN wins every maximum, so one pass tells.
    if bool((logits.amax(dim=-1) < torch.inf).all()):
        return logits
    return logits.nan_to_num(nan=-torch.inf, posinf=None, neginf=-torch.inf)


def _penalise(logits: torch.Tensor, chunks: Sequence[ScheduledChunk]) -> torch.Tensor:
    """Subtract presence + frequency * count from every token a request has generated."""
    rows: list[int] = []
    columns: list[int] = []
    penalties: list[float] = []
    for row, chunk in enumerate(chunks):
        presence, frequency = chunk.sampling.presence_penalty, chunk.sampling.frequency_penalty
        if presence or frequency:
            counts = Counter(chunk.output_token_ids)
            rows += [row] * len(counts)
            columns += counts
            penalties += [presence + frequency * count for count in counts.values()]
    if not rows:
        return logits
    places = (_index(rows, logits), _index(columns, logits))
    return logits.index_put(places, logits[places] - torch.tensor(penalties).to(logits.device))


def _draw_from_top(
    logits: torch.Tensor,
    probs: torch.Tensor,
    targets: torch.Tensor,
    params: Sequence[SamplingParams],
) -> torch.Tensor:
    """Draw from each row's likeliest tokens: its `top_k`, and of these `top_p` of the mass.

    Only as many tokens are sorted as the widest row needs.
    """
    vocab_size = logits.shape[-1]
    top_k = _column([p.top_k if p.top_k > 0 else vocab_size for p in params], logits, torch.int64)
    top_k = top_k.clamp(1, vocab_size)
    top_p = _column([p.top_p for p in params], logits, torch.float64)
    whole = probs.sum(dim=-1, keepdim=True, dtype=torch.float64)
    num_candidates = min(_FIRST_CANDIDATES, vocab_size)
    while True:
        candidates = _likeliest(logits, num_candidates)
        mass = probs.gather(-1, candidates).cumsum(dim=-1, dtype=torch.float64)
        last_of_k = mass.gather(-1, top_k.clamp(max=num_candidates) - 1)
        total = torch.where(top_k < vocab_size, last_of_k, whole)
        # The shortest run that reaches top_p, never more than top_k.
        num_for_p = (mass < top_p * total).sum(dim=-1, keepdim=True) + 1
        num_kept = torch.minimum(num_for_p, top_k)
        short = (num_kept > num_candidates) | ((top_k < vocab_size) & (top_k > num_candidates))
        if num_candidates == vocab_size or not bool(short.any()):
            break
        num_candidates = min(num_candidates * 8, vocab_size)
    kept_mass = mass.gather(-1, num_kept.clamp(max=num_candidates) - 1)
    return candidates.gather(-1, _first_above(mass, targets * kept_mass)).squeeze(-1)


def _first_above(cumulative: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The first column of each row whose value exceeds the row's target."""
    found = torch.searchsorted(cumulative, target, right=True)
    return found.clamp(max=cumulative.shape[-1] - 1)  # a row of NaN has none


def _likeliest(logits: torch.Tensor, num_tokens: int) -> torch.Tensor:
    """Ids of the `num_tokens` largest logits of each row, largest first, ties by lower id."""
    # A float's bits order like an integer once negative ones are flipped; with the id below
    # them every key is unique, and an unstable selection has only one answer.
    bits = (logits + 0.0).view(torch.int32)  # + 0.0 turns -0.0 into 0.0
    bits ^= (bits >> 31) & 0x7FFFFFFF
    last = logits.shape[-1] - 1
    keys = torch.arange(last, -1, -1, device=logits.device).add(bits.long(), alpha=1 << 32)
    return last - (keys.topk(num_tokens, dim=-1).values & 0xFFFFFFFF)


def _logprobs(
    raw: torch.Tensor, token_ids: Sequence[int], chunks: Sequence[ScheduledChunk]
) -> list[tuple[TokenLogprob, ...]]:
    """For rows that ask: the sampled token, then the likeliest; others get an empty tuple."""
    found: list[tuple[TokenLogprob, ...]] = [()] * len(chunks)
    rows = [row for row, chunk in enumerate(chunks) if chunk.sampling.num_logprobs is not None]
    if not rows:
        return found
    logits = raw[_index(rows, raw)]
    widest = max(chunks[row].sampling.num_logprobs or 0 for row in rows)
    top = _likeliest(logits, min(widest, logits.shape[-1]))
    sampled = _index([token_ids[row] for row in rows], raw).unsqueeze(-1)
    shown = torch.cat([sampled, top], dim=-1)
    values = torch.log_softmax(logits, dim=-1).gather(-1, shown).tolist()
    ranks = ((logits > logits.gather(-1, sampled)).sum(dim=-1) + 1).tolist()
    for place, (row, ids) in enumerate(zip(rows, shown.tolist(), strict=True)):
        num_shown = 1 + (chunks[row].sampling.num_logprobs or 0)
        found[row] = tuple(
            TokenLogprob(token_id=token_id, logprob=logprob, rank=rank)
            for token_id, logprob, rank in zip(
                ids[:num_shown], values[place], [ranks[place], *range(1, num_shown)], strict=False
            )
        )
    return found


def _index(values: Sequence[int], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64, device=like.device)


def _column(
    values: Sequence[float], like: torch.Tensor, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype, device=like.device).unsqueeze(-1)
