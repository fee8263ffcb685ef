"""What a person sees once the fleet is ready: an address and two things to try."""

from pathlib import Path

from rich.console import Console
from rich.markup import escape

CURL = (
    "curl -N {api}/chat/completions -H 'content-type: application/json' -d "
    """'{{"model": "{model}", "stream": true, """
    """"messages": [{{"role": "user", "content": "Hello!"}}]}}'"""
)

PYTHON = """\
from openai import OpenAI

client = OpenAI(base_url="{api}", api_key="none")
stream = client.chat.completions.create(
    model="{model}",
    messages=[{{"role": "user", "content": "Why is the sky blue?"}}],
    stream=True,
)
for chunk in stream:
    print(chunk.choices[0].delta.content or "", end="", flush=True)"""


def show_welcome(console: Console, *, api: str, model: str, logs: Path) -> None:
    """The address of the API, one `curl` line and one Python snippet."""
    where = f"{escape(api)}   (model {escape(model)}, logs in {escape(str(logs))})"
    console.print(f"\n[bold]Ready:[/bold] {where}", highlight=False, soft_wrap=True)
    for title, text in (("Try it", CURL), ("Or from Python (pip install openai)", PYTHON)):
        console.print(f"\n[bold]{title}[/bold]\n")
        # Whole lines, so that they can be copied.
        console.print(
            text.format(api=api, model=model), markup=False, highlight=False, soft_wrap=True
        )
    console.print("\nCtrl-C stops it.")
