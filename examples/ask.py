"""Two questions about one long text: the second finds the text cached.

Start a fleet first (`make up`), then: python examples/ask.py [http://127.0.0.1:8000/v1]
"""

import sys
import time

from openai import OpenAI

TEXT = "The lighthouse keeper wrote down the wind, the ships and the weather. " * 80
QUESTIONS = ("What did the keeper write down?", "Who wrote it down?")


def main() -> None:
    base_url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000/v1"
    client = OpenAI(base_url=base_url, api_key="none")
    model = client.models.list().data[0].id
    for question in QUESTIONS:
        ask(client, model, question)


def ask(client: OpenAI, model: str, question: str) -> None:
    """Stream one answer, then say what it cost and who gave it."""
    started, first = time.perf_counter(), 0.0
    raw = client.chat.completions.with_raw_response.create(
        model=model,
        messages=[{"role": "user", "content": f"{TEXT}\n\n{question}"}],
        max_tokens=60,
        stream=True,
        stream_options={"include_usage": True},
    )
    print(f"\n> {question}\n")
    for chunk in raw.parse():
        if chunk.choices and chunk.choices[0].delta.content:
            first = first or time.perf_counter() - started
            print(chunk.choices[0].delta.content, end="", flush=True)
        if chunk.usage is not None and chunk.usage.prompt_tokens_details is not None:
            cached = chunk.usage.prompt_tokens_details.cached_tokens
            print(f"\n\nprompt {chunk.usage.prompt_tokens} tokens, {cached} of them cached")
    worker, why = raw.headers["x-expediter-worker"], raw.headers["x-expediter-reason"]
    print(f"first token after {first * 1000:.0f} ms, from {worker} ({why})")


if __name__ == "__main__":
    main()
