"""A prompt computed by one worker and answered by another, over loopback and shared memory."""

import pytest
from handover_pair import pair

PROMPT = "abc def gh" * 8


@pytest.mark.parametrize("way", ["serial", "concurrent"])
async def test_the_answer_is_that_of_one_worker_and_only_the_decode_worker_decodes(
    way: str,
) -> None:
    async with pair() as both:
        answer = await getattr(both, way)(PROMPT, max_tokens=12)
        expected = both.decode.model.expected(PROMPT.encode(), 12).decode()
        assert answer["choices"][0]["text"] == expected
        report = answer["kv_transfer"]
        assert report["failure"] is None
        assert (report["tokens"], report["first_token"]) == (len(PROMPT), "prefill")
        assert both.prefill.model.num_computed_tokens == len(PROMPT)
        assert both.decode.model.num_computed_tokens == 11
        await both.both_idle()
