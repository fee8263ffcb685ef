"""What a worker can never run."""

from expediter.errors import PromptTooLong, RequestError
from expediter.kvcache.manager import KVCacheManager
from expediter.request import Request


def check_fits(request: Request, *, max_model_len: int, kv_cache: KVCacheManager) -> None:
    """Raise `PromptTooLong` unless the request could run to its end with the worker to itself."""
    num_prompt, max_tokens = request.num_prompt_tokens, request.sampling.max_tokens
    if num_prompt < 1 or max_tokens < 1:
        raise RequestError("a request needs at least one prompt token and max_tokens of 1")
    asked = f"the prompt has {num_prompt} tokens and max_tokens is {max_tokens}"
    if num_prompt + max_tokens > max_model_len:
        raise PromptTooLong(
            f"{asked}; together they may not exceed the context length of {max_model_len}"
        )
    # The last token is returned, never computed.
    num_blocks = kv_cache.num_blocks_for(num_prompt + max_tokens - 1)
    if num_blocks > kv_cache.num_total_blocks:
        raise PromptTooLong(
            f"{asked}; that takes {num_blocks} blocks of KV cache and there are "
            f"{kv_cache.num_total_blocks}"
        )
