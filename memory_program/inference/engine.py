"""DSPy's engine contract for a language model in this process: a network, a tokenizer and a batcher."""

import copy
import logging
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import date
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from dspy import lm15
from jinja2 import TemplateError
from pydantic import BaseModel, ConfigDict, Field
from transformers import PreTrainedModel

from locomo.json_at import INVALID_CHARACTERS
from memory_program.inference.batcher import (
    Batcher,
    Continuation,
    Ending,
    GenerationRequest,
    NumericalTolerance,
)
from memory_program.inference.decoder import Decoder
from memory_program.inference.loading import DeviceName, DtypeName, load_model
from memory_program.inference.prefix_cache import PrefixCache
from memory_program.inference.reply_grammar import GrammarCompiler
from memory_program.inference.sampling import SamplingParams
from memory_program.inference.stop_strings import StopStrings

__all__ = ["AdapterSampler", "LocalEngine", "LocalSettings", "default_device", "fast_dtype", "loaded_dtype"]

_logger = logging.getLogger(__name__)

_TOLERANCES: dict[DtypeName, NumericalTolerance] = {
    # 15 times the largest difference in benchmarks/sampling.py
    "float32": NumericalTolerance(greedy=2**-13, sampled=2**-13),
    # half of the largest difference is 2**-5: one greedy token in twenty and one sampled token in three would
    # be computed again, each with its whole prompt
    "bfloat16": NumericalTolerance(greedy=0.0, sampled=0.0),
}
_MIN_BFLOAT16_PARAMETERS = 100_000_000
"""Smaller models compute in float32 on every processor: they gain little in bfloat16."""
_SINGLE_THREAD_PARAMETERS = 20_000_000
"""Smaller models compute on one thread: two that meet after every small product wait more than they gain,
and take 4 to 10 times the processor time of one on two shared cores. One thread decodes, another prefills."""
_NOT_SUPPORTED = ("reasoning", "frequency_penalty", "presence_penalty", "probabilities")
_BFLOAT16_NOTICE = (
    "%r computes in bfloat16, which this processor multiplies several times faster; a greedy reply may "
    "depend on its batch"
)
_TEMPLATE_DATE = date(2024, 7, 26)
"""Today for chat templates that write it into each prompt. It is the default of Llama 3.2's template.

With the clock, a training that is resumed on another day would go on with other prompts.
"""
_TEMPLATE_KWARGS = "chat_template_kwargs"


def _with_fixed_date(template: str) -> str:
    """Make a chat template write always the same date; transformers passes it no function of ours."""
    if "strftime_now" not in template:
        return template
    written = {code: _TEMPLATE_DATE.strftime(f"%{code}") for code in "aAbBdHIjmMpSyY"}
    written |= {f"-{code}": text.lstrip("0") or "0" for code, text in written.items()}  # not padded
    fixed = "".join(f"|replace('%{code}', '{text}')" for code, text in written.items())
    return f"{{%- macro strftime_now(format) -%}}{{{{ format{fixed} }}}}{{%- endmacro -%}}{template}"


class LocalSettings(BaseModel):
    """Settings of a model that runs in this process."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str
    """A folder in the format of transformers, a GGUF file, or the id of a model on the Hugging Face hub."""

    device: DeviceName | None = None
    """The device of the model; None takes CUDA if there is a GPU."""

    dtype: DtypeName | None = None
    """The number format of the model; None takes bfloat16 on a GPU with native support, and for a model of at
    least 100 million parameters on a processor with bfloat16 tiles (AMX), else float32."""

    slots: int = Field(default_factory=lambda: default_slots(default_device()), ge=1)
    """The most calls that run at once; others wait. On a processor 32 uses most of a small model's gain from
    batching."""

    prefix_tokens: int = Field(default=16_384, ge=0)
    """The most tokens of earlier prompts in the prefix cache, so that a shared prefix is computed once."""

    seed: int = 0
    """The seed of sampled requests that have none of their own."""


class AdapterSampler(Protocol):
    """Generates on a server with the adapter that was published last, over the engine's own base model."""

    @property
    def context_tokens(self) -> int:
        """The most tokens of prompt and reply together on the server."""
        ...

    def generate(self, request: GenerationRequest, config: lm15.Config) -> Continuation:
        """Continue a prompt.

        Args:
            request: without a grammar.
            config: its stop strings and its response format are the server's part.

        Raises:
            lm15.LM15Error: the call failed.
        """
        ...

    def publish(self, name: str, save: Callable[[Path], None]) -> None:
        """Sample from another adapter from now on.

        Args:
            name: of the adapter; it need not be unique.
            save: writes it into a folder in PEFT's format.

        Raises:
            ModelError: the server does not take it.
        """
        ...

    def close(self) -> None:
        """Withdraw the adapter."""
        ...


class LocalEngine:
    """Answers requests with a model that it holds; calls from many threads are batched together.

    In float32 the same greedy request gives the same text alone and in any batch, on one machine with one
    number of threads, as long as rounding errors stay within the tolerance of ``sample_next`` (measured by
    ``benchmarks/sampling.py``). So does the same sampled request with the same seed. In bfloat16 this
    holds only beside the same other calls. Without a seed of its own, the k-th call of a sampled request
    gets the k-th of a fixed series of seeds, independent of other calls.

    A reply ends with a stop token, before a stop string, at its limit, or with the end of its JSON if
    ``response_format`` holds it to a schema. One that repeats itself is stopped as if it were at its limit,
    and its ``provider_data`` says ``{"is_repetitive": True}``; see ``find_repetition``. The extension
    ``chat_template_kwargs`` is passed to the model's chat template.

    ``logprobs`` of a response holds token ids and log-probabilities, with the stop token and the tokens of a
    stop string. They are the model's own, before the grammar. A copy is the same engine: optimisers deep-copy
    programs, and a second engine would be a second model.
    """

    supports_function_calling = supports_reasoning = False
    supports_response_schema = True
    supported_params = frozenset(
        {"temperature", "max_tokens", "top_p", "top_k", "seed", "logprobs", "stop", "response_format"}
    )
    sampler: AdapterSampler | None = None
    """Generates in place of this process, from the adapter of a training."""

    def __init__(self, settings: LocalSettings) -> None:
        """Load the model; nothing runs before the first call.

        Raises:
            ModelError: the model cannot be used; see ``load_model``.
        """
        device: DeviceName = settings.device or default_device()
        dtype = settings.dtype or fast_dtype(device)
        path = Path(settings.source).expanduser()
        if path.exists():  # so that it is found from another working directory
            settings = settings.model_copy(update={"source": str(path.resolve())})
        self.settings = settings
        self.model = load_model(settings.source, device, getattr(torch, dtype))
        if settings.dtype is None and device == "cpu" and dtype == "bfloat16":
            if self.model.network.num_parameters() >= _MIN_BFLOAT16_PARAMETERS:
                _logger.warning(_BFLOAT16_NOTICE, settings.source)
            else:
                dtype = "float32"
                self.model = load_model(settings.source, device, torch.float32)
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
        vocabulary = network.config.get_text_config().vocab_size
        self._grammars = GrammarCompiler(self.model.tokenizer, vocabulary, self.model.reply_end)
        self._seeds = _SeedSequence(settings.seed)
        self._reference: PreTrainedModel | None = None
        added = self.model.tokenizer.added_tokens_decoder.values()
        self._special_tokens = [str(token) for token in added if token.special and len(str(token)) > 1]
        self._closed = weakref.finalize(self, self._batcher.close)  # at exit at the latest

    @property
    def busy_s(self) -> float:
        """Seconds so far in which at least one call was open."""
        return self._batcher.busy_s

    def complete(self, request: lm15.Request) -> lm15.Response:
        """Answer a request; many threads may call this at once.

        Raises:
            lm15.UnsupportedFeatureError: the request needs a feature that this engine lacks, such as tools,
                or a JSON schema that cannot be a grammar.
            lm15.ContextLengthError: the prompt leaves no room for a reply.
            lm15.ProviderError: the model failed.
        """
        config, tokenizer = request.config, self.model.tokenizer
        # refused, rather than ignored silently
        unsupported = [f"config.{name}" for name in _NOT_SUPPORTED if getattr(config, name)]
        unsupported += [
            f"config.extensions[{name!r}]" for name in config.extensions or () if name != _TEMPLATE_KWARGS
        ]
        unsupported += ["config.logprobs"] if config.logprobs else []  # 0: of the chosen tokens only
        unsupported += ["tools"] if request.tools else []
        if unsupported:
            names = ", ".join(unsupported)
            message = f"{names}: an embedded model cannot do this; leave it out, or name another model"
            raise lm15.UnsupportedFeatureError(message, feature=unsupported[0], provider="local")
        prompt = tuple(self.prompt_tokens(request))
        context = self.model.context_tokens
        if self.sampler is not None:
            context = min(context, self.sampler.context_tokens)
        room = context - len(prompt)
        if room < 1:
            raise lm15.ContextLengthError(
                f"the prompt has {len(prompt)} tokens; {self.settings.source!r} reads and writes at most "
                f"{context} together",
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
        limit = min(config.max_tokens or room, room)
        stops = StopStrings(config.stop, tokenizer) if config.stop else None
        generation = GenerationRequest(prompt, limit, sampling, seed, stop_strings=stops)
        if self.sampler is not None:
            continuation = self.sampler.generate(generation, config)
        else:
            grammar = self._grammars.begin_reply(config.response_format) if config.response_format else None
            try:
                continuation = self._batcher.generate(replace(generation, grammar=grammar))
            except Exception as error:
                message = f"the embedded model failed: {type(error).__name__}: {error}"
                raise lm15.ProviderError(message, provider="local") from error
        tokens = continuation.tokens
        shown = tokens[:-1] if continuation.ending is Ending.STOP_TOKEN else tokens
        text = cast(str, tokenizer.decode(shown, clean_up_tokenization_spaces=False))
        if stops is not None and continuation.ending is Ending.STOP_STRING:
            text = stops.cut(text)
        logprobs = zip(tokenizer.convert_ids_to_tokens(tokens), continuation.logprobs, tokens, strict=True)
        return lm15.Response(
            id=None,
            model=request.model,
            message=lm15.Message.assistant(text),
            finish_reason="stop" if continuation.has_ended else "length",
            usage=lm15.Usage(
                input_tokens=len(prompt),
                output_tokens=len(tokens),
                cache_read_tokens=continuation.cached_tokens,
            ),
            logprobs=tuple(
                lm15.TokenLogprob(name or "", logprob, token_id=token) for name, logprob, token in logprobs
            ),
            provider_data={"is_repetitive": True} if continuation.ending is Ending.REPETITION else None,
        )

    def prompt_tokens(self, request: lm15.Request) -> list[int]:
        """Return the tokens of a request's prompt, as the model reads them.

        Raises:
            lm15.UnsupportedFeatureError: the request holds something other than text.
            lm15.InvalidRequestError: the model's chat template refuses the messages.
        """
        turns: list[tuple[str, str, str | None]] = []  # role, place in the request, text
        if request.system is not None:
            system = request.system
            text = system if isinstance(system, str) else lm15.Message.user(system).text
            turns.append(("system", "system", text))
        for index, message in enumerate(request.messages):
            text = message.text if message.role in ("user", "assistant") else None
            turns.append((message.role, f"messages[{index}]", text))
        chat: list[dict[str, str]] = []
        for role, place, text in turns:
            if text is None:
                raise lm15.UnsupportedFeatureError(
                    f"{place}: an embedded model reads text of users, assistants and the system, "
                    "and nothing else",
                    feature=place,
                    provider="local",
                )
            chat.append({"role": role, "content": _as_plain_text(text, self._special_tokens)})
        tokenizer = self.model.tokenizer
        options: object = (request.config.extensions or {}).get(_TEMPLATE_KWARGS) or {}
        # ours come last: neither of the two is the caller's to change. Any: the template's own arguments
        settings: Any = {
            "chat_template": _with_fixed_date(tokenizer.get_chat_template()),
            **cast(dict[str, Any], options),
            "add_generation_prompt": True,
            "tokenize": False,
        }
        try:
            rendered = tokenizer.apply_chat_template(chat, **settings)
        except (TemplateError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            given = f" with --chat-template-kwargs {options}" if options else ""
            raise lm15.InvalidRequestError(
                f"the chat template of the model refuses this{given}: {error}"
            ) from error
        return tokenizer(cast(str, rendered), add_special_tokens=False)["input_ids"]

    def reply_tokens(self, text: str) -> list[int]:
        """Return the tokens of a reply with the stop token, as training text has them."""
        decode = self.model.tokenizer.decode
        written = [cast(str, decode([token])) for token in self.model.stop_ids]
        stops = [text for text in written if len(text) > 1]
        tokens = self.model.tokenizer(_as_plain_text(text, stops), add_special_tokens=False)["input_ids"]
        return [*tokens, self.model.reply_end]

    @contextmanager
    def updating(self) -> Generator[PreTrainedModel]:
        """Change the weights in place: running calls end first, and new calls wait for the end of the block.

        Raises:
            ModelError: the engine is closed, or this thread is updating already.
        """
        with self._batcher.paused():
            self._decoder.clear()  # an update needs the memory, and makes the contents useless
            try:
                yield self.model.network
            finally:
                self.model.network.eval()
                self._decoder.clear()

    def reference_model(self) -> PreTrainedModel:
        """Return a frozen copy of the model as it was at the first call, for the KL term of a training.

        A training that resumes in this process finds changed weights, and needs those of its start.
        """
        if self._reference is None:
            self._reference = copy.deepcopy(self.model.network).requires_grad_(False)
        return self._reference

    def close(self) -> None:
        """Stop; running calls get an error. A closed engine stays closed."""
        self._closed()

    def __copy__(self) -> "LocalEngine":
        return self

    def __deepcopy__(self, memo: object) -> "LocalEngine":
        return self


def _as_plain_text(text: str, special_tokens: Sequence[str]) -> str:
    """Split special tokens: a tokenizer would take quoted text for the end of a turn."""
    text = INVALID_CHARACTERS.sub("\ufffd", text)  # tokenizers refuse half an emoji
    for token in special_tokens:
        text = text.replace(token, f"{token[0]} {token[1:]}")
    return text


def default_device() -> DeviceName:
    """Return the device of models that name none."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def default_slots(device: DeviceName) -> int:
    """Return the most calls that run at once on a device, unless the settings of a model say otherwise."""
    return 32 if device == "cpu" else 128


def fast_dtype(device: DeviceName) -> DtypeName:
    """Return the number format in which a device computes large models fastest."""
    if device == "cuda":
        has_bfloat16 = torch.cuda.is_bf16_supported(including_emulation=False)
    else:  # older versions of torch cannot say it
        can = getattr(torch.cpu, "get_capabilities", dict)()
        has_bfloat16 = bool(can.get("amx_bf16") or can.get("avx512_bf16"))
    return "bfloat16" if has_bfloat16 else "float32"


def loaded_dtype(device: DeviceName, parameters: int) -> DtypeName:
    """Return the number format in which an engine loads a model of this size, unless it is told another."""
    return "float32" if device == "cpu" and parameters < _MIN_BFLOAT16_PARAMETERS else fast_dtype(device)


class _SeedSequence:
    """Seeds by request: its k-th call gets the k-th seed of a series that depends on the request alone."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._calls: Counter[bytes] = Counter()
        self._lock = threading.Lock()

    def next(self, prompt: Sequence[int], sampling: SamplingParams) -> int:
        # the class's name as it was first: its text decides all seeds, and so the scores of sampled runs
        drawn = repr(sampling).replace(type(sampling).__name__, "Sampling", 1)
        request = f"({self._seed}, {tuple(prompt)}, {drawn})".encode()
        key = blake2b(request, digest_size=16).digest()
        with self._lock:
            self._calls[key] += 1
            call = self._calls[key]
        return int.from_bytes(blake2b(key + call.to_bytes(8), digest_size=7).digest())
