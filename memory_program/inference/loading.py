"""Load a causal language model that this process can run; errors say why it cannot."""

import json
import logging
import os
import warnings
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, cast

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.cache_utils import DynamicCache
from transformers.utils import logging as transformers_logging

from memory_program.core.adapter_config import ROUNDED, adapter_base, rounded_adapter
from memory_program.core.errors import ModelError, one_line
from memory_program.inference.attention import ATTENTION_NAME

_logger = logging.getLogger(__name__)

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
    """A network with its tokenizer and its limits.

    ``stop_ids`` are the tokens that end a reply, ``reply_end`` is the one to write after it,
    ``context_tokens`` is the most tokens of prompt and reply together, ``kv_shape`` is the number of layers,
    of heads, and the width of a token's keys and values.
    """

    network: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    stop_ids: frozenset[int]
    reply_end: int
    context_tokens: int
    kv_shape: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class NetworkShape:
    """The sizes of a model, as its configuration has them.

    ``parameters`` counts shared weights once. ``linear_layers`` holds the width in and out of each linear
    layer but the output layer.
    """

    parameters: int
    layers: int
    hidden: int
    vocabulary: int
    heads: int
    kv_heads: int
    head_width: int
    linear_layers: tuple[tuple[int, int], ...]


def load_model(source: str, device: DeviceName, dtype: torch.dtype, *, exact: bool = True) -> LoadedModel:
    """Load a model with its tokenizer. A hub id uses the internet only for files not on this disk yet.

    Args:
        source: a folder in the format of transformers (config, safetensors, tokenizer, chat template), a GGUF
            file, whose weights are dequantised, or the id of a model on the Hugging Face hub. A folder or id
            may also be that of an adapter of PEFT over the base that its configuration has. It is merged into
            float32 weights, and stays apart from bfloat16 ones (see ``AdaptedLinear``).
        device: the device of the model.
        dtype: the number format of the computation.
        exact: of weights that a training has merged and rounded, load the adapter, if it is still there.

    Raises:
        ModelError: the model cannot be found or read, the weights do not fit the configuration, this
            architecture cannot be batched here, or a GGUF file needs a package that is missing.
    """
    # oneDNN keeps 1,024 compiled kernels, and on a CPU each new length of a text adds some: a training in
    # bfloat16 grows by gigabytes. It reads this variable before its first kernel.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")
    return _load_named(_find_exact_source(source) if exact else source, device, dtype)


def _load_named(source: str, device: DeviceName, dtype: torch.dtype) -> LoadedModel:
    folder, gguf = _find_model_files(source)
    if (base := adapter_base(str(folder))) is not None:
        with _name_adapter(source):
            model = _load_named(base, device, dtype)
        from peft import PeftModel  # slow, and needed by adapters only

        from memory_program.inference.frozen_adapters import freeze_adapter

        with _wrap_load_errors(str(folder), "the adapter"), silence_transformers(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=FutureWarning)  # PEFT uses old names of transformers
            warnings.filterwarnings("error", message="Found missing adapter keys")  # of another base
            adapted = PeftModel.from_pretrained(model.network, folder)
            is_exact = model.network.dtype.itemsize >= torch.float32.itemsize
            merged = adapted.merge_and_unload() if is_exact else freeze_adapter(adapted)
            network = cast(PreTrainedModel, merged)
        network.requires_grad_(True)  # PEFT froze the weights of the base, which may be trained now
        return replace(model, network=network.eval())
    has_tokenizer = gguf or any((folder / name).is_file() for name in _TOKENIZER_FILES)
    if not has_tokenizer:  # transformers would invent one
        raise ModelError(f"{source!r} has no tokenizer: one of {', '.join(_TOKENIZER_FILES)} belongs in it")
    network, kv_shape = _load_network(source, folder, gguf, device, dtype)
    with _wrap_load_errors(source, "the tokenizer"), silence_transformers():
        tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=gguf, local_files_only=True)
    if tokenizer.chat_template is None:
        raise ModelError(
            f"{source!r} has no chat template, so that its prompts cannot be written: take a model made "
            "for chat, or put its chat_template.jinja beside the tokenizer"
        )
    vocabulary = len(cast(torch.nn.Embedding, network.get_input_embeddings()).weight)
    if len(tokenizer) > vocabulary:
        raise ModelError(
            f"{source!r}: the tokenizer has {len(tokenizer)} tokens and the weights {vocabulary}: "
            "they belong to two models; save them together"
        )
    with _wrap_load_errors(source, "the chat template"):
        chat = [{"role": "user", "content": "a question"}, {"role": "assistant", "content": "the reply"}]
        written = cast(str, tokenizer.apply_chat_template(chat, tokenize=False))
        after = tokenizer(written.rpartition("the reply")[2], add_special_tokens=False)["input_ids"]
    configured = network.generation_config.eos_token_id
    others = configured if isinstance(configured, list) else [configured]
    # The tokenizer's end of a text differs from what the template writes after a reply in base models, and
    # where a reader of GGUF files guessed it.
    special = {token for token, added in tokenizer.added_tokens_decoder.items() if added.special}
    candidates = [*(token for token in after[:1] if token in special), tokenizer.eos_token_id, *others]
    stops = [token for token in candidates if isinstance(token, int)]
    if not stops:
        raise ModelError(
            f"{source!r} names no token that ends a reply: set eos_token_id in its generation_config.json"
        )
    config = network.config.get_text_config()
    context = getattr(config, "max_position_embeddings", None)
    if not isinstance(context, int):
        raise ModelError(
            f"{source!r} does not say how long a text may be (max_position_embeddings); {_SERVE_IT}"
        )
    rope: Any = getattr(config, "rope_parameters", None) or {}  # Any: of transformers
    if rope.get("rope_type") == "longrope":
        # a longer text has other frequencies from its first token on, and those of a batch are one set
        context = min(context, rope["original_max_position_embeddings"])
    return LoadedModel(network, tokenizer, frozenset(stops), stops[0], context, kv_shape)


def read_network_shape(source: str) -> NetworkShape:
    """Read the sizes of a model from its configuration, without its weights.

    Args:
        source: as in ``load_model``.

    Raises:
        ModelError: the model cannot be found, or its configuration cannot be read.
    """
    folder, gguf = _find_model_files(source)
    if (base := adapter_base(str(folder))) is not None:
        with _name_adapter(source):
            return read_network_shape(base)
    with _wrap_load_errors(source, "the configuration"), silence_transformers(), torch.device("meta"):
        options = {} if gguf is None else {"gguf_file": gguf}
        config = AutoConfig.from_pretrained(folder, local_files_only=True, **options)
        network = cast(PreTrainedModel, AutoModelForCausalLM.from_config(config))
        text, head = config.get_text_config(), network.get_output_embeddings()
        linear = [m for m in network.modules() if isinstance(m, torch.nn.Linear) and m is not head]
        heads: int = text.num_attention_heads
        return NetworkShape(
            parameters=network.num_parameters(),
            layers=text.num_hidden_layers,
            hidden=text.hidden_size,
            vocabulary=text.vocab_size,
            heads=heads,
            kv_heads=getattr(text, "num_key_value_heads", None) or heads,
            head_width=getattr(text, "head_dim", None) or text.hidden_size // heads,
            linear_layers=tuple((layer.in_features, layer.out_features) for layer in linear),
        )


def stacked_adapters(source: str) -> tuple[list[str], str]:
    """Return the folders of a source's adapters, the last trained first, and the model below them all.

    An adapter that was trained over another one names that as its base. A model without adapters is its own.

    Raises:
        ConfigError: a configuration cannot be read, or names no base.
        ModelError: a model cannot be found.
    """
    adapters: list[str] = []
    source = _find_exact_source(source)
    while (base := adapter_base(folder := str(_find_model_files(source)[0]))) is not None:
        adapters.append(folder)
        source = base
    return adapters, source


def _find_exact_source(source: str) -> str:
    """Return the adapter of weights that a training has merged and rounded, or the source itself.

    Raises:
        ModelError: the model cannot be found.
    """
    folder, gguf = _find_model_files(source)
    adapter = None if gguf else rounded_adapter(folder)
    if adapter is None:
        return source
    base = adapter_base(str(adapter))
    if base is None:
        problem = f"{str(adapter)!r} is not there"
    else:
        try:
            _find_model_files(base)
            return str(adapter)
        except ModelError as error:
            problem = str(error)
    _logger.warning(
        "%s holds trained weights rounded to bfloat16, which are used since their adapter cannot be: %s",
        source,
        problem,
    )
    return source


@contextmanager
def _name_adapter(source: str) -> Generator[None]:
    """Name the adapter in an error of its base, which nobody named on the command line.

    Raises:
        ModelError: the base cannot be used.
    """
    try:
        yield
    except ModelError as error:
        raise ModelError(
            f"the base of the adapter {source!r} (base_model_name_or_path in its adapter_config.json): "
            f"{error}"
        ) from error


def _find_model_files(source: str) -> tuple[Path, str | None]:
    """Return the folder of a model, and the name of its GGUF file; download what is missing.

    Raises:
        ModelError: the model can be neither found nor downloaded, the package that reads a GGUF file is
            missing, or an adapter lies beside it.
    """
    path = Path(source).expanduser()
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ModelError(f"{source!r} is not a file on this disk: give the path of a GGUF file")
        if find_spec("gguf") is None:
            raise ModelError(f"{source!r}: a GGUF file is read with the package gguf: pip install gguf")
        if adapter_base(str(path.parent)) is not None:
            raise ModelError(
                f"{source!r} lies beside an adapter_config.json, whose adapter transformers would load in "
                "its place: move the file to a folder of its own"
            )
        return path.parent, path.name
    if path.is_dir():
        return path, None
    if source.startswith((".", "/", "~")) or source.count("/") != 1:
        raise ModelError(
            f"{source!r} is not a folder, not a GGUF file, and not the id of a model on the hub, as "
            "'owner/name' is"
        )
    find = partial(snapshot_download, source, allow_patterns=_FILES, ignore_patterns=_NOT_FILES)
    try:
        folder = Path(find(local_files_only=True))
        index, files = folder / "model.safetensors.index.json", {"config.json", "model.safetensors"}
        is_adapter = (folder / "adapter_config.json").is_file()
        if is_adapter:
            files = {"adapter_model.safetensors"}
        elif index.is_file():
            shards = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
            files = {"config.json", *shards}
        has_tokenizer = is_adapter or any((folder / name).is_file() for name in _TOKENIZER_FILES)
        if has_tokenizer and all((folder / name).is_file() for name in files):
            return folder, None  # else the download was interrupted
    except LocalEntryNotFoundError:
        pass
    with silence_transformers():
        try:
            return Path(find()), None
        except (OSError, ValueError, HfHubHTTPError) as error:
            raise ModelError(
                f"{source!r} is not a folder here, and cannot be fetched from the Hugging Face hub: "
                f"{type(error).__name__}: {one_line(error)}; either let this machine reach the hub once "
                "(what it fetches stays on the disk), or fetch the model elsewhere and give its folder, "
                "'local:PATH'"
            ) from error


def _load_network(
    source: str, folder: Path, gguf: str | None, device: DeviceName, dtype: torch.dtype
) -> tuple[PreTrainedModel, tuple[int, int, int]]:
    """Load a network, and run one token through it for the layers, heads and width of its keys and values.

    Raises:
        ModelError: it cannot be read, keeps something else, or does not use the attention registered here.
    """
    with _wrap_load_errors(source, "the weights"), silence_transformers():
        loaded = AutoModelForCausalLM.from_pretrained(
            folder,
            gguf_file=gguf,
            dtype=dtype,
            attn_implementation=ATTENTION_NAME,
            use_safetensors=True,
            local_files_only=True,
            ignore_mismatched_sizes=True,  # refused by name below
            output_loading_info=True,
        )
    network, report = cast(tuple[PreTrainedModel, dict[str, Any]], loaded)  # Any: sets and lists of names
    problems = [
        f"{len(report[key])} {problem}, as {min(map(str, report[key]))}"
        for key, problem in (
            ("missing_keys", "not in the file"),
            ("unexpected_keys", "not in the network"),
            ("mismatched_keys", "of another size"),
        )
        if report[key]
    ]
    if problems:
        raise ModelError(
            f"{source!r}: the weights are not those that config.json describes ({'; '.join(problems)}): "
            "take both from one model"
        )
    if not all(bool(weight.isfinite().all()) for weight in network.parameters()):
        raise ModelError(
            f"{source!r}: some weights are not finite numbers: the training that wrote them diverged"
        )
    if hasattr(network.config, ROUNDED):  # of these files only, and not of weights that are saved from it
        delattr(network.config, ROUNDED)
    # adapters name it as their base; transformers names the folder, which may be one of this machine's cache
    network.name_or_path = network.config.name_or_path = source
    network.eval()
    network.to(device)  # pyright: ignore[reportArgumentType]  # a decorator hides its signature
    layers: list[int] = []
    shapes: set[torch.Size] = set()

    def probe(layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        layers.append(layer)
        shapes.update((key.shape, value.shape))
        return query.new_zeros(query.shape[0], query.shape[2], query.shape[1], value.shape[-1])

    kinds = [type(layer).__name__ for layer in DynamicCache(config=network.config).layers]
    problem = f"keeps more than keys and values for the whole context ({', '.join(sorted(set(kinds)))})"
    if set(kinds) == {"DynamicLayer"}:
        token = torch.zeros(1, 1, dtype=torch.long, device=network.device)
        # an attention of another form
        with torch.no_grad(), suppress(AttributeError, RuntimeError, TypeError, ValueError):
            network(input_ids=token, use_cache=False, attention_pass=probe)
        if layers == list(range(len(kinds))) and len(shapes) == 1:
            _, heads, _, width = shapes.pop()
            return network, (len(layers), heads, width)
        problem = "attends in a way of its own"
    raise ModelError(
        f"{source!r} ({type(network).__name__}) {problem}, and cannot be batched here: {_SERVE_IT}"
    )


@contextmanager
def _wrap_load_errors(source: str, what: str) -> Generator[None]:
    """Name the file and the model in errors of the block.

    Raises:
        ModelError: something inside the block failed.
    """
    try:
        yield
    except Exception as error:  # the libraries below transformers raise anything, even a bare Exception
        raise ModelError(
            f"{what} of {source!r} cannot be read: {type(error).__name__}: {one_line(error)}; is everything "
            "there, as save_pretrained() of transformers writes it?"
        ) from error


@contextmanager
def silence_transformers() -> Generator[None]:
    """Keep transformers' progress bars and reports off the terminal; problems are raised instead."""
    had_bars, level = transformers_logging.is_progress_bar_enabled(), transformers_logging.get_verbosity()
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
        if had_bars:
            transformers_logging.enable_progress_bar()
