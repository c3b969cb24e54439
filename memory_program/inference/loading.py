"""Loads a causal language model that this process can run, or says why it cannot."""

import json
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.cache_utils import DynamicCache, DynamicLayer
from transformers.utils import logging as transformers_logging

from memory_program.core.errors import ModelError
from memory_program.inference.attention import ATTENTION_NAME
from memory_program.inference.linear import onednn_is_faster, use_onednn

DeviceName = Literal["cpu", "cuda"]
DtypeName = Literal["float32", "bfloat16"]

_FILES = ["*.json", "*.jinja", "*.safetensors", "*.model", "*.txt"]
_NOT_FILES = ["*/*", "consolidated*"]  # the same weights in other formats
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
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
    """Choose bfloat16 on GPUs that multiply it natively, and float32 elsewhere.

    A processor that multiplies bfloat16 twice as fast loses more than that: a token in twenty is so
    uncertain that its whole text has to be read again.
    """
    has_bf16 = device == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return "bfloat16" if has_bf16 else "float32"


def load_model(source: str, device: DeviceName, dtype: torch.dtype) -> LoadedModel:
    """Load a model with its tokenizer. The network is used for what of a hub id is not on this disk yet.

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
    if not folder.is_dir():
        folder = _resolve_hub_model(source)
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):  # transformers would make one up
        raise ModelError(f"{source!r} has no tokenizer: one of {', '.join(_TOKENIZER_FILES)} belongs in it")
    network = _load_network(source, folder, dtype).eval()
    network.to(device)  # pyright: ignore[reportArgumentType]  # a decorator hides its signature
    if device == "cpu" and onednn_is_faster():
        use_onednn(network)
    tokenizer = _load_tokenizer(source, folder)
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


def _resolve_hub_model(source: str) -> Path:
    """Find a model of the hub on this disk, or fetch it.

    Raises:
        ModelError: neither is possible.
    """
    if source.startswith((".", "/", "~")) or source.count("/") != 1:
        raise ModelError(
            f"{source!r} is not a folder, and not the id of a model on the hub, as 'owner/name' is"
        )
    find = partial(snapshot_download, source, allow_patterns=_FILES, ignore_patterns=_NOT_FILES)
    try:
        folder = Path(find(local_files_only=True))
        if _is_complete(folder):
            return folder
    except LocalEntryNotFoundError:
        pass
    with _silence_transformers():
        try:
            return Path(find())
        except (OSError, ValueError, HfHubHTTPError) as error:
            raise ModelError(
                f"{source!r} is not a folder here, and cannot be fetched from the Hugging Face hub: "
                f"{_head(error)}; either let this machine reach the hub once (what it "
                "fetches stays on the disk), or fetch the model elsewhere and give its folder, 'local:PATH'"
            ) from error


def _is_complete(folder: Path) -> bool:
    index = folder / "model.safetensors.index.json"
    weights = ["model.safetensors"]
    if index.is_file():
        weights = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    has_tokenizer = any((folder / name).is_file() for name in _TOKENIZER_FILES)
    return has_tokenizer and all((folder / name).is_file() for name in ("config.json", *weights))


def _load_network(source: str, folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    with _wrap_load_errors(source, "the weights"), _silence_transformers():
        loaded = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            attn_implementation=ATTENTION_NAME,
            use_safetensors=True,
            local_files_only=True,
            ignore_mismatched_sizes=True,  # they are refused below, by name
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
            f"{source!r}: the weights are not those that config.json describes ({told}): "
            "take both from one model"
        )
    if not all(bool(weight.isfinite().all()) for weight in network.parameters()):
        raise ModelError(
            f"{source!r}: some weights are not finite numbers: the training that wrote them diverged"
        )
    return network


def _load_tokenizer(source: str, folder: Path) -> PreTrainedTokenizerBase:
    with _wrap_load_errors(source, "the tokenizer"), _silence_transformers():
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    if tokenizer.chat_template is None:
        raise ModelError(
            f"{source!r} has no chat template, so that its prompts cannot be written: take a model made "
            "for chat, or put its chat_template.jinja beside the tokenizer"
        )
    return tokenizer


@contextmanager
def _wrap_load_errors(source: str, what: str) -> Generator[None]:
    """Say what of which model could not be read.

    Raises:
        ModelError: something inside the block failed.
    """
    try:
        yield
    except Exception as error:  # the readers below transformers raise anything, down to a bare Exception
        raise ModelError(
            f"{what} of {source!r} cannot be read: {_head(error)}; is everything there, as save_pretrained() "
            "of transformers writes it?"
        ) from error


def _head(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


@contextmanager
def _silence_transformers() -> Generator[None]:
    """Keep progress bars and reports off the terminal; what they report is raised instead."""
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
    cache = getattr(network(input_ids=token, use_cache=True), "past_key_values", None)
    layers: Sequence[object] = cache.layers if isinstance(cache, DynamicCache) else []
    plain = [layer for layer in layers if type(layer) is DynamicLayer]
    shapes = {kept.shape for layer in plain for kept in (layer.keys, layer.values) if kept is not None}
    if len(shapes) != 1 or len(plain) < len(layers):
        kinds = sorted({type(layer).__name__ for layer in layers}) or [type(cache).__name__]
        raise ModelError(
            f"{source!r} ({type(network).__name__}) keeps more than keys and values of one shape for the "
            f"whole context ({', '.join(kinds)}), and cannot be batched here: {_SERVE_IT}"
        )
    probe = _Probe()
    network(input_ids=token, use_cache=False, attention_pass=probe)
    if probe.layers != list(range(len(layers))):
        raise ModelError(
            f"{source!r} ({type(network).__name__}) attends in a way of its own, and cannot be batched here: "
            f"{_SERVE_IT}"
        )
    _, heads, _, width = shapes.pop()
    return len(layers), heads, width


class _Probe:
    """A pass that sees which layers call it."""

    def __init__(self) -> None:
        self.layers: list[int] = []

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        self.layers.append(layer)
        return query.transpose(1, 2)
