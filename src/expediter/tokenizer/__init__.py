"""Text to tokens and back, without torch: what the workers and the gateway must agree on."""

from expediter.tokenizer.detokenizer import IncrementalDetokenizer
from expediter.tokenizer.loading import load_tokenizer, save_tokenizer
from expediter.tokenizer.tokenizer import Tokenizer

__all__ = ["IncrementalDetokenizer", "Tokenizer", "load_tokenizer", "save_tokenizer"]
