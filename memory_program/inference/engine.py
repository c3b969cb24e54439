"""A language model inside this process: DSPy's engine contract over a network, a tokenizer and a batch."""

import copy
import threading
import weakref
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import cast

import torch
from dspy import lm15
from jinja2 import TemplateError
from pydantic import BaseModel, ConfigDict, Field
from transformers import PreTrainedModel

from memory_program.inference.batcher import Batcher, Continuation, GenerationRequest, NumericalTolerance
from memory_program.inference.decoder import Decoder
from memory_program.inference.loading import DeviceName, DtypeName, best_device, fastest_dtype, load_model
from memory_program.inference.prefix_cache import PrefixCache
from memory_program.inference.sampling import SamplingParams

__all__ = ["LocalEngine", "LocalSettings"]

_TOLERANCES: dict[DtypeName, NumericalTolerance] = {
    # some 15 times, and half, the largest difference that benchmarks/local_engine.py measures
    "float32": NumericalTolerance(greedy=2**-13, sampled=2**-13),
    # as strict for samples, a third of their tokens would be computed twice
    "bfloat16": NumericalTolerance(greedy=2**-5, sampled=0.0),
}
_SINGLE_THREAD_PARAMETERS = 20_000_000
"""Parameters below which one thread computes: two that meet after every small product wait more than they
gain, and on two cores that others use too, they take 4 to 10 times the processor time of one. One writes all
texts instead, and one reads prompts."""
_NOT_SUPPORTED = (
    "stop",
    "response_format",
    "reasoning",
    "frequency_penalty",
    "presence_penalty",
    "probabilities",
    "extensions",
)


class LocalSettings(BaseModel):
    """Which model runs in this process, and how."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str
    """A folder in the format of transformers, or the id of a model on the Hugging Face hub."""

    device: DeviceName | None = None
    """Where it runs; None takes CUDA where there is a device."""

    dtype: DtypeName | None = None
    """What it computes with; None takes bfloat16 on a GPU that multiplies it natively, else float32."""

    slots: int = Field(default=32, ge=1)
    """How many calls run at once; others wait. 32 uses most of a small model's gain from batching."""

    prefix_tokens: int = Field(default=16_384, ge=0)
    """How many tokens of earlier prompts are kept, so that a common beginning is computed once."""

    seed: int = 0
    """Of the sampling of requests that have no seed of their own."""


class LocalEngine:
    """Answers requests with a model that it holds; calls from many threads are batched together.

    The same greedy request gives the same text alone and in any batch, on one machine with one number of
    threads, as long as rounding stays within what ``sampling.choose`` is told (measured by
    ``benchmarks/local_engine.py``). So does the same sampled request with the same seed, in float32; in
    bfloat16 only beside the same other calls. Without a seed of its own, the k-th call of a sampled request
    gets the k-th of a fixed series of seeds, whatever else was called.

    Each response has the tokens with their ids and log-probabilities in ``logprobs``, the token that ended
    the reply included.

    Optimisers deep-copy programs: a copy shares this engine, since a second one would be a second model.
    """

    supports_function_calling = supports_reasoning = supports_response_schema = False
    supported_params = frozenset({"temperature", "max_tokens", "top_p", "top_k", "seed", "logprobs"})

    def __init__(self, settings: LocalSettings) -> None:
        """Load the model; nothing runs before the first call.

        Raises:
            ModelError: the model cannot be used; see ``weights.load_model``.
        """
        device = settings.device or best_device()
        dtype = settings.dtype or fastest_dtype(device)
        folder = Path(settings.source).expanduser()
        if folder.is_dir():  # to be found again from another working directory
            settings = settings.model_copy(update={"source": str(folder.resolve())})
        self.settings = settings
        self.model = load_model(settings.source, device, getattr(torch, dtype))
        network = self.model.network
        is_small = device == "cpu" and network.num_parameters() < _SINGLE_THREAD_PARAMETERS
        self._decoder = Decoder(network, self.model.kv_shape, PrefixCache(settings.prefix_tokens))
        self._batcher = Batcher(
            self._decoder,
            self.model.stop_ids,
            slots=settings.slots,
            tolerance=_TOLERANCES[dtype],
            threads=1 if is_small else None,
            prefill_threads=int(is_small and min(torch.get_num_threads(), settings.slots) > 1),
        )
        self._seeds = _SeedSequence(settings.seed)
        self._reference: PreTrainedModel | None = None
        added = self.model.tokenizer.added_tokens_decoder.values()
        self._special_tokens = [str(token) for token in added if token.special and len(str(token)) > 1]
        self._closed = weakref.finalize(self, self._batcher.close)  # at the latest when the interpreter ends

    @property
    def busy_s(self) -> float:
        """Seconds in which it had something to read or to write, so far."""
        return self._batcher.busy_s

    def complete(self, request: lm15.Request) -> lm15.Response:
        """Answer a request; many threads may ask at once.

        Raises:
            lm15.UnsupportedFeatureError: the request wants what this engine cannot do, tools for example.
            lm15.ContextLengthError: the prompt leaves no room for a reply.
            lm15.ProviderError: the model failed.
        """
        job = self._to_generation_request(request)
        try:
            continuation = self._batcher.generate(job)
        except Exception as error:
            told = f"the embedded model failed: {type(error).__name__}: {error}"
            raise lm15.ProviderError(told, provider="local") from error
        return self._response(request, job, continuation)

    def prompt_tokens(self, request: lm15.Request) -> list[int]:
        """Give the tokens of a request's prompt, as the model reads them.

        Raises:
            lm15.UnsupportedFeatureError: the request holds something else than text.
            lm15.InvalidRequestError: the model's chat template refuses the messages.
        """
        tokenizer = self.model.tokenizer
        try:
            chat = [
                {**turn, "content": self._escape_special_tokens(turn["content"])} for turn in _chat(request)
            ]
            text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        except TemplateError as error:
            raise lm15.InvalidRequestError(f"the chat template of the model refuses this: {error}") from error
        return tokenizer(cast(str, text), add_special_tokens=False)["input_ids"]

    def _escape_special_tokens(self, text: str) -> str:
        """Break up special tokens: the tokenizer would take what somebody said for the end of a turn."""
        for token in self._special_tokens:
            text = text.replace(token, f"{token[0]} {token[1:]}")
        return text

    def reply_tokens(self, text: str) -> list[int]:
        """Give the tokens of a reply, the one that ends it included, as training text has them."""
        tokenizer = self.model.tokenizer
        assert isinstance(tokenizer.eos_token_id, int), "a model made for chat ends its replies"
        return [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]

    @contextmanager
    def updating(self) -> Generator[PreTrainedModel]:
        """Change the weights in place: calls that run are ended first, others wait until the block is left.

        Raises:
            ModelError: the engine is closed, or this thread is updating already.
        """
        with self._batcher.paused():
            try:
                yield self.model.network
            finally:
                self.model.network.eval()
                self._decoder.clear()

    def reference_model(self) -> PreTrainedModel:
        """Give a frozen copy of the model as it was at the first call, to hold a training near to it.

        A training that goes on in this process finds the weights changed, and needs those of its beginning.
        """
        if self._reference is None:
            self._reference = copy.deepcopy(self.model.network).requires_grad_(False)
        return self._reference

    def close(self) -> None:
        """Stop; calls that run get an error. A closed engine stays closed."""
        self._closed()

    def _to_generation_request(self, request: lm15.Request) -> GenerationRequest:
        config = request.config
        _check_supported_features(request)
        prompt = tuple(self.prompt_tokens(request))
        room = self.model.context_tokens - len(prompt)
        if room < 1:
            raise lm15.ContextLengthError(
                f"the prompt has {len(prompt)} tokens; {self.settings.source!r} reads and writes at most "
                f"{self.model.context_tokens} together",
                provider="local",
            )
        sampling = SamplingParams(
            1.0 if config.temperature is None else config.temperature,
            1.0 if config.top_p is None else config.top_p,
            config.top_k,
        )
        seed = 0
        if not sampling.is_greedy:
            seed = self._seeds.next(prompt, sampling) if config.seed is None else config.seed
        return GenerationRequest(prompt, min(config.max_tokens or room, room), sampling, seed)

    def _response(
        self, request: lm15.Request, job: GenerationRequest, continuation: Continuation
    ) -> lm15.Response:
        tokens = continuation.tokens
        said = tokens[:-1] if continuation.has_ended else tokens
        text = self.model.tokenizer.decode(said, clean_up_tokenization_spaces=False)
        names = self.model.tokenizer.convert_ids_to_tokens(tokens)
        return lm15.Response(
            id=None,
            model=request.model,
            message=lm15.Message.assistant(text),
            finish_reason="stop" if continuation.has_ended else "length",
            usage=lm15.Usage(
                input_tokens=len(job.prompt),
                output_tokens=len(tokens),
                cache_read_tokens=continuation.cached_tokens,
            ),
            logprobs=tuple(
                lm15.TokenLogprob(name or "", logprob, token_id=token)
                for name, logprob, token in zip(names, continuation.logprobs, tokens, strict=True)
            ),
        )

    def __copy__(self) -> "LocalEngine":
        return self

    def __deepcopy__(self, memo: object) -> "LocalEngine":
        return self


class _SeedSequence:
    """The k-th call of one request gets the k-th seed of a series that only the request decides."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._calls: Counter[bytes] = Counter()
        self._lock = threading.Lock()

    def next(self, prompt: Sequence[int], sampling: SamplingParams) -> int:
        asked = blake2b(repr((self._seed, tuple(prompt), sampling)).encode(), digest_size=16).digest()
        with self._lock:
            self._calls[asked] += 1
            call = self._calls[asked]
        return int.from_bytes(blake2b(asked + call.to_bytes(8), digest_size=7).digest())


def _check_supported_features(request: lm15.Request) -> None:
    """Refuse what would have to be left out silently.

    Raises:
        lm15.UnsupportedFeatureError: names it.
    """
    wanted = [f"config.{name}" for name in _NOT_SUPPORTED if getattr(request.config, name)]
    wanted += ["config.logprobs"] if request.config.logprobs else []  # 0: the chosen tokens only
    wanted += ["tools"] if request.tools else []
    if wanted:
        told = f"{', '.join(wanted)}: an embedded model cannot do this; leave it out, or name another model"
        raise lm15.UnsupportedFeatureError(told, feature=wanted[0], provider="local")


def _chat(request: lm15.Request) -> list[dict[str, str]]:
    chat: list[dict[str, str]] = []
    if request.system is not None:
        system = request.system if isinstance(request.system, str) else lm15.Message.user(request.system).text
        chat.append({"role": "system", "content": _require_text(system, "system")})
    for index, message in enumerate(request.messages):
        text = message.text if message.role in ("user", "assistant") else None
        chat.append({"role": message.role, "content": _require_text(text, f"messages[{index}]")})
    return chat


def _require_text(text: str | None, where: str) -> str:
    if text is None:
        told = f"{where}: an embedded model reads text of users, assistants and the system, and nothing else"
        raise lm15.UnsupportedFeatureError(told, feature=where, provider="local")
    return text
