"""Grammars: a reply is held to a JSON schema by leaving out every token that would break it.

The tokens that may come next are computed by llguidance (https://github.com/guidance-ai/llguidance), from the
schema and the tokenizer. The JSON is compact: no whitespace is allowed outside of strings, since a weak model
fills its reply with it.
"""

import json
import threading
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
from dspy import lm15
from llguidance import LLMatcher, LLTokenizer
from llguidance.hf import from_tokenizer
from torch import Tensor
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from memory_program.core.errors import ModelError

_MAX_TOKEN_CHARACTERS = 1000  # llguidance panics at tokens longer than 1,024 bytes
_CACHED_SCHEMAS = 64


class ReplyGrammar:
    """The state of one reply in its grammar."""

    def __init__(self, matcher: LLMatcher) -> None:
        """Begin a reply; the matcher is used by nobody else."""
        self._matcher = matcher

    def forbidden_tokens(self) -> Tensor:
        """Return a boolean for each token of the vocabulary: True if it may not come next."""
        return torch.frombuffer(bytearray(self._matcher.compute_logit_bias()), dtype=torch.uint8) == 0

    def append(self, token: int) -> bool:
        """Go on by a token; return True if the JSON is complete.

        Raises:
            ModelError: the grammar became too complex, or the token is not allowed.
        """
        self._matcher.consume_token(token)
        if problem := self._matcher.get_error():
            raise ModelError(f"the grammar of the reply failed: {problem}")
        return self._matcher.is_stopped()


class GrammarCompiler:
    """Compiles the response formats of requests, each once; many threads may use it at once."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, vocabulary: int, stop_id: int) -> None:
        """Compile nothing yet: the first grammar of a large vocabulary takes seconds.

        Args:
            tokenizer: of the model.
            vocabulary: the number of logits, which may exceed that of the tokens.
            stop_id: a token that ends a reply.
        """
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._stop_id = stop_id
        self._compiled_tokenizer: LLTokenizer | None = None
        self._compile = lru_cache(_CACHED_SCHEMAS)(self._compile_schema)
        self._lock = threading.Lock()

    def begin_reply(self, response_format: Mapping[str, Any]) -> ReplyGrammar:
        """Return the grammar of a new reply in a response format of lm15: a JSON schema, or any JSON object.

        Raises:
            lm15.UnsupportedFeatureError: the schema, or the tokenizer, cannot be used with a grammar.
        """
        schema = response_format.get("schema", {"type": "object"})
        with self._lock:
            return ReplyGrammar(self._compile(json.dumps(schema)).deep_copy())

    def _compile_schema(self, schema: str) -> LLMatcher:
        """Compile a JSON schema, and before the first one the tokenizer."""
        compact: Any = {"whitespace_flexible": False}  # Any: the type of this argument is not exported
        grammar = LLMatcher.grammar_from_json_schema(schema, overrides=compact)
        if self._compiled_tokenizer is None:
            tokenizer = self._tokenizer
            longest = max(map(len, tokenizer.get_vocab()))
            if not isinstance(tokenizer, PreTrainedTokenizerFast) or longest > _MAX_TOKEN_CHARACTERS:
                raise _unsupported(
                    f"the tokenizer of this model ({type(tokenizer).__name__}, longest token {longest} "
                    "characters) cannot be used with a grammar: leave response_format out, or take another "
                    "model"
                )
            self._compiled_tokenizer = from_tokenizer(
                tokenizer, n_vocab=self._vocabulary, eos_token=self._stop_id
            )
        matcher = LLMatcher(self._compiled_tokenizer, grammar, log_level=0)
        if problem := matcher.get_error():
            raise _unsupported(f"this JSON schema cannot be a grammar ({problem}): {schema[:200]}")
        return matcher


def _unsupported(problem: str) -> lm15.UnsupportedFeatureError:
    feature = "config.response_format"
    return lm15.UnsupportedFeatureError(f"{feature}: {problem}", feature=feature, provider="local")
