"""Chat templates of several kinds, tokenizers that have them, and how tests read with those."""

from datetime import datetime
from functools import cache

import msgspec
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from expediter.gateway.conversations import Conversations
from expediter.routing.prompt import packed_prompt
from expediter.tokenizer import Tokenizer
from expediter.tokenizer.chat_template import ChatTemplate

SPECIAL = [
    *("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>"),
    *("<|eot_id|>", "[INST]", "[/INST]"),
]
CHATML = (
    "{% for m in messages %}{% if loop.first and m.role != 'system' %}<|im_start|>system\n"
    "You help.<|im_end|>\n{% endif %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA3 = (
    "{% for m in messages %}{% set c %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{{ m.content | trim }}<|eot_id|>{% endset %}{% if loop.first %}<s>{% endif %}{{ c }}"
    "{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n"
    "{% endif %}"
)
LLAMA31 = (
    "{% if messages[0].role == 'system' %}{% set s = messages[0].content | trim %}"
    "{% set messages = messages[1:] %}{% else %}{% set s = '' %}{% endif %}"
    "<s><|start_header_id|>system<|end_header_id|>\n\nToday: {{ strftime_now('%d %b %Y') }}\n"
    "{{ s }}<|eot_id|>{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>"
    "\n\n{{ m.content | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
QWEN = (
    "{% for m in messages %}{% if m.role != 'tool' %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}\n<tool_call>{{ c.function | tojson }}</tool_call>"
    "{% endfor %}<|im_end|>\n{% else %}"
    "{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}"
    "\n<tool_response>\n{{ m.content }}\n</tool_response>"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>\n{% endif %}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SYSTEM_IN_FIRST_USER = (
    "{% if messages[0].role == 'system' %}{% set s = messages[0].content + '\n\n' %}"
    "{% set messages = messages[1:] %}{% else %}{% set s = '' %}{% endif %}<s>"
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{% if m.role == 'user' %}"
    "<|im_start|>{{ s if loop.first else '' }}{{ m.content }}<|im_end|>{% else %}"
    "<|im_start|>{{ m.content | trim }}<|im_end|>{% endif %}{% endfor %}"
)
MISTRAL = (  # the answer follows its question without a border before it
    "<s>{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }}[/INST]"
    "{% else %} {{ m.content }}</s>{% endif %}{% endfor %}"
)
LAST_KNOWS = (  # as newer Mistrals: the system's words go to the last question
    "{% for m in messages %}{% if m.role == 'user' %}<|im_start|>{% if loop.last and "
    "messages[0].role == 'system' %}{{ messages[0].content }}\n{% endif %}{{ m.content }}"
    "<|im_end|>{% elif m.role == 'assistant' %}<|im_start|>{{ m.content }}<|im_end|>{% endif %}"
    "{% endfor %}"
)
COUNTS = "{% for m in messages %}<|im_start|>{{ loop.index }} {{ m.content }}<|im_end|>{% endfor %}"
FORGETS_THOUGHTS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and not "
    "loop.last %}{{ m.content.split('</think>')[-1] }}{% else %}{{ m.content }}{% endif %}"
    "<|im_end|>\n{% endfor %}"
)
BY_TURNS = {
    "chatml": CHATML,
    "llama 3": LLAMA3,
    "llama 3.1": LLAMA31,
    "qwen": QWEN,
    "system in first user": SYSTEM_IN_FIRST_USER,
    "mistral": MISTRAL,
}
AS_A_WHOLE = {
    "last knows": LAST_KNOWS,
    "counts": COUNTS,
    "forgets thoughts": FORGETS_THOUGHTS,
    "length": "{{ messages | length }}{{ messages[-1].content }}",
    "refuses": "{{ raise_exception('no') }}",
}


def tokenizer_of(template: str, *, day: list[int] | None = None) -> Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=350,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(["the user asked and the assistant answered"] * 9, trainer)
    chat = ChatTemplate(template, now=lambda: datetime(2026, 1, (day or [1])[0]))
    return Tokenizer(backend, eos_token_ids=frozenset({3}), chat_template=chat)


@cache
def kept(name: str) -> Tokenizer:
    return tokenizer_of({**BY_TURNS, **AS_A_WHOLE}[name])


async def pack(conversations: Conversations, raw: bytes, *, opens: bool) -> bytes | None:
    """All tokens of what was read."""
    found = await conversations.read(msgspec.Raw(raw), opens=opens)
    if found is None:
        return None
    return packed_prompt(found.data, stem=found.stem, more=found.more).whole
