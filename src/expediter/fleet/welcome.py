"""What a person sees once the fleet is ready: an address and two things to try."""

from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """Addresses of the API and of the page, if there is one; one `curl` line, one snippet."""

    api: str
    page: str | None
    model: str
    logs: Path

    def show(self, console: Console) -> None:
        """Whole lines, so that they can be copied."""
        where = (
            f"{escape(self.api)}   (model {escape(self.model)}, logs in {escape(str(self.logs))})"
        )
        console.print(f"\n[bold]Ready:[/bold] {where}", highlight=False, soft_wrap=True)
        if self.page is not None:
            line = f"[bold]Watch it, talk to it:[/bold] {escape(self.page)}"
            console.print(line, highlight=False, soft_wrap=True)
        for title, text in (("Try it", CURL), ("Or from Python (pip install openai)", PYTHON)):
            console.print(f"\n[bold]{title}[/bold]\n")
            console.print(
                text.format(api=self.api, model=self.model),
                markup=False,
                highlight=False,
                soft_wrap=True,
            )
        console.print("\nCtrl-C stops it.")
