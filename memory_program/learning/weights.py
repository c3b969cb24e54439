"""Loads a causal language model that this process can run, or says why it cannot."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.cache_utils import DynamicCache, DynamicLayer
from transformers.utils import logging as transformers_logging

from memory_program.errors import ModelError

DeviceName = Literal["cpu", "cuda"]
DtypeName = Literal["float32", "bfloat16"]

_OFFLINE = (
    "either let this machine reach the hub once (what it fetches stays in the cache), or fetch the model "
    "elsewhere and give its folder, 'local:PATH'"
)
_SERVE_IT = (
    "serve it with another program, for example vLLM, and give 'openai/NAME' and its address, api_base"
)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model with what is needed to talk to it.

    ``stop_ids`` are the tokens that end a reply, ``context_tokens`` how many tokens prompt and reply may
    have together, ``kv_shape`` the layers, heads and width of the keys and values of a token.
    """

    network: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    stop_ids: frozenset[int]
    context_tokens: int
    kv_shape: tuple[int, int, int]


def best_device() -> DeviceName:
    """Name the CUDA device if there is one, else the processor."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def fastest_dtype(device: DeviceName) -> DtypeName:
    """Choose bfloat16 where the hardware multiplies it natively, and float32 elsewhere."""
    if device == "cuda":
        has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        abilities = torch.cpu.get_capabilities()
        has_bf16 = any(abilities.get(name, False) for name in ("amx_bf16", "avx512_bf16", "bf16"))
    return "bfloat16" if has_bf16 else "float32"


def load_model(source: str, device: DeviceName, dtype: torch.dtype) -> LoadedModel:
    """Load a model with its tokenizer; a folder is read without any network.

    Args:
        source: a folder in the format of transformers (config, safetensors, tokenizer, chat template), or
            the id of a model on the Hugging Face hub.
        device: where it runs.
        dtype: what it computes with.

    Raises:
        ModelError: it cannot be found or read, the weights are not those of the configuration, or it is of a
            kind that cannot be batched here.
    """
    folder = Path(source).expanduser()
    is_folder = folder.is_dir()
    if not is_folder and (source.startswith((".", "/", "~")) or source.count("/") != 1):
        raise ModelError(
            f"{source!r} is not a folder, and not the id of a model on the hub, as 'owner/name' is"
        )
    place = str(folder) if is_folder else source
    network = _load_network(place, dtype, is_folder=is_folder).eval()
    network.to(device)  # pyright: ignore[reportArgumentType]  # a decorator hides its signature
    tokenizer = _load_tokenizer(place, is_folder=is_folder)
    vocabulary = len(cast(torch.nn.Embedding, network.get_input_embeddings()).weight)
    if len(tokenizer) > vocabulary:
        raise ModelError(
            f"{source!r}: the tokenizer has {len(tokenizer)} tokens and the weights {vocabulary}: "
            "they belong to two models; save them together"
        )
    return LoadedModel(
        network,
        tokenizer,
        _stop_ids(source, network, tokenizer),
        _context_tokens(source, network),
        _kv_shape(source, network),
    )


def _load_network(place: str, dtype: torch.dtype, *, is_folder: bool) -> PreTrainedModel:
    with _explained(place, "the weights", is_folder=is_folder), _quiet():
        loaded = AutoModelForCausalLM.from_pretrained(
            place,
            dtype=dtype,
            attn_implementation="sdpa",
            use_safetensors=True,
            local_files_only=is_folder,
            output_loading_info=True,
        )
    network, report = cast(tuple[PreTrainedModel, dict[str, Any]], loaded)  # Any: sets and lists of names
    wrong = {
        reason: sorted(map(str, report[key]))
        for key, reason in (
            ("missing_keys", "not in the file"),
            ("unexpected_keys", "not in the network"),
            ("mismatched_keys", "of another size"),
        )
        if report[key]
    }
    if wrong:
        told = "; ".join(f"{len(names)} {reason}, as {names[0]}" for reason, names in wrong.items())
        raise ModelError(
            f"{place!r}: the weights are not those that config.json describes ({told}): "
            "take both from one model"
        )
    if not all(bool(weight.isfinite().all()) for weight in network.parameters()):
        raise ModelError(
            f"{place!r}: some weights are not finite numbers: the training that wrote them diverged"
        )
    return network


def _load_tokenizer(place: str, *, is_folder: bool) -> PreTrainedTokenizerBase:
    with _explained(place, "the tokenizer", is_folder=is_folder), _quiet():
        tokenizer = AutoTokenizer.from_pretrained(place, local_files_only=is_folder)
    if tokenizer.chat_template is None:
        raise ModelError(
            f"{place!r} has no chat template, so that its prompts cannot be written: take a model made "
            "for chat, or put its chat_template.jinja beside the tokenizer"
        )
    return tokenizer


@contextmanager
def _explained(place: str, what: str, *, is_folder: bool) -> Generator[None]:
    """Say which part of which model could not be read, and what to do.

    Raises:
        ModelError: something inside the block failed.
    """
    try:
        yield
    except Exception as error:  # the readers below transformers raise anything, down to a bare Exception
        reason = " ".join(str(error).split())[:300]
        way_out = "is the folder complete, and saved with save_pretrained()?"
        if not is_folder:
            place, way_out = f"{place} (no folder here, so an id on the Hugging Face hub)", _OFFLINE
        raise ModelError(
            f"{what} of {place!r} cannot be read: {type(error).__name__}: {reason}; {way_out}"
        ) from error


@contextmanager
def _quiet() -> Generator[None]:
    """Keep transformers' progress bars and reports off the terminal; what they report is raised instead."""
    had_bars, level = transformers_logging.is_progress_bar_enabled(), transformers_logging.get_verbosity()
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
        if had_bars:
            transformers_logging.enable_progress_bar()


def _stop_ids(source: str, network: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    settings = network.generation_config
    named = settings.eos_token_id
    candidates = [*(named if isinstance(named, list) else [named]), tokenizer.eos_token_id]
    ids = {token for token in candidates if isinstance(token, int)}
    if not ids:
        raise ModelError(
            f"{source!r} names no token that ends a reply: set eos_token_id in its generation_config.json"
        )
    return frozenset(ids)


def _context_tokens(source: str, network: PreTrainedModel) -> int:
    context = getattr(network.config.get_text_config(), "max_position_embeddings", None)
    if not isinstance(context, int):
        raise ModelError(
            f"{source!r} does not say how long a text may be (max_position_embeddings); {_SERVE_IT}"
        )
    return context


@torch.no_grad()
def _kv_shape(source: str, network: PreTrainedModel) -> tuple[int, int, int]:
    """Run one token, and see what the layers keep of it."""
    token = torch.zeros(1, 1, dtype=torch.long, device=network.device)
    cache = network(input_ids=token, use_cache=True).past_key_values
    layers: Sequence[object] = cache.layers if isinstance(cache, DynamicCache) else []
    plain = [layer for layer in layers if type(layer) is DynamicLayer]
    shapes = {kept.shape for layer in plain for kept in (layer.keys, layer.values) if kept is not None}
    if len(shapes) != 1 or len(plain) < len(layers):
        kinds = sorted({type(layer).__name__ for layer in layers}) or [type(cache).__name__]
        raise ModelError(
            f"{source!r} ({type(network).__name__}) keeps more than keys and values of one shape for the "
            f"whole context ({', '.join(kinds)}), and cannot be batched here: {_SERVE_IT}"
        )
    _, heads, _, width = shapes.pop()
    return len(layers), heads, width
