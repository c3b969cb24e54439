"""Writes a model as a GGUF file, which llama.cpp and its relatives read.

The package ``gguf`` has the format and the names of tensors; the layout of the weights and of the vocabulary
is that of llama.cpp's ``convert_hf_to_gguf.py`` (commit a38b884, ``LlamaModel`` and ``Qwen2Model``).
"""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from memory_program.core.errors import ModelError
from memory_program.inference.loading import LoadedModel

_PERMUTED = "llama"  # llama.cpp rotates neighbouring columns, and transformers the two halves of a head
_ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
}
_END_OF_TEXT = "<|endoftext|>"
"""transformers adds it to a GGUF file's vocabulary that lacks it, and would have a token more than rows."""

_SPLITS = {  # a part of the tokenizer's pre-tokenizer, and llama.cpp's name for it
    r"\\p{N}{1,3}": "llama-bpe",
    r"\\p{N}|": "qwen2",
    '"individual_digits": true': "smollm",
    '"use_regex": true': "gpt-2",
    '"use_regex": false': "default",
}


def write_gguf(model: LoadedModel, name: str, path: Path) -> None:
    """Write a model with its tokenizer and its chat template, in the precision in which it is loaded.

    Args:
        model: of the Llama or Qwen2 architecture, with unscaled rotary positions and a byte-level BPE
            tokenizer.
        name: of the model, for the file's metadata.
        path: of the file; its folder is made.

    Raises:
        ModelError: the architecture, its positions or the tokenizer are others, or a Llama has biases.
    """
    config = model.network.config
    arch = _ARCHITECTURES.get(config.model_type)
    if arch is None:
        raise ModelError(
            f"a model of the architecture {config.model_type!r} cannot be written as GGUF here: choose from "
            f"{', '.join(_ARCHITECTURES)}, or give the folder of --format hf to llama.cpp's "
            "convert_hf_to_gguf.py"
        )
    rope_type: str = config.rope_parameters.get("rope_type", "default")
    lost = f"rope_type={rope_type!r}" if rope_type != "default" else ""
    if config.model_type == _PERMUTED and config.attention_bias:
        lost = lost or "attention_bias=True"
    if lost:
        raise ModelError(
            f"a {config.model_type} model with {lost} cannot be written as GGUF here: give the folder of "
            "--format hf to llama.cpp's convert_hf_to_gguf.py"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch])
    _, kv_heads, head_width = model.kv_shape
    writer.add_name(name)
    writer.add_context_length(model.context_tokens)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head_width)
    writer.add_value_length(head_width)
    writer.add_rope_dimension_count(head_width)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    _add_tokenizer(writer, model.tokenizer, config.vocab_size)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    is_tied = bool(config.tie_word_embeddings)
    for key, weight in model.network.state_dict().items():
        if is_tied and key == "lm_head.weight":
            continue
        if config.model_type == _PERMUTED and key.endswith(("q_proj.weight", "k_proj.weight")):
            heads = config.num_attention_heads if "q_proj" in key else kv_heads
            halves = weight.reshape(heads, 2, head_width // 2, *weight.shape[1:])
            weight = halves.swapaxes(1, 2).reshape(weight.shape)
        target = names.get_name(key, try_suffixes=(".weight", ".bias"))
        assert target is not None, f"a tensor of {config.model_type} has a name"
        kind = gguf.GGMLQuantizationType.F32  # vectors, as llama.cpp has them
        if weight.ndim > 1 and weight.dtype == torch.bfloat16:
            kind = gguf.GGMLQuantizationType.BF16
        written: Any = gguf.quants.quantize(np.ascontiguousarray(weight.float().numpy()), kind)
        writer.add_tensor(target, written, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokenizer(writer: gguf.GGUFWriter, tokenizer: PreTrainedTokenizerBase, rows: int) -> None:
    """Write vocabulary, merges and special tokens; rows without a token are named as llama.cpp does."""
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)  # Any: of the package tokenizers
    parts: dict[str, Any] = {} if backend is None else json.loads(backend.to_str())
    model, split = parts.get("model", {}), json.dumps(parts.get("pre_tokenizer"))
    kind = next((name for part, name in _SPLITS.items() if part in split), None)
    if model.get("type") != "BPE" or '"ByteLevel"' not in split or kind is None:
        raise ModelError(
            f"this tokenizer ({type(tokenizer).__name__}, {model.get('type')}) cannot be written as GGUF "
            "here: give the folder of --format hf to llama.cpp's convert_hf_to_gguf.py"
        )
    by_id = {index: token for token, index in tokenizer.get_vocab().items()}
    spare = next((row for row in range(rows) if row not in by_id), None)
    if spare is not None and _END_OF_TEXT not in tokenizer.get_vocab():
        by_id[spare] = _END_OF_TEXT
    types, tokens = gguf.TokenType, [by_id.get(row, f"[PAD{row}]") for row in range(rows)]
    kinds = [types.NORMAL if row in by_id else types.UNUSED for row in range(rows)]
    for row, token in tokenizer.added_tokens_decoder.items():
        kinds[row] = types.CONTROL if token.special else types.USER_DEFINED
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(kind)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_add_bos_token(False)
    for add, token in (
        (writer.add_bos_token_id, tokenizer.bos_token_id),
        (writer.add_eos_token_id, tokenizer.eos_token_id),
        (writer.add_unk_token_id, tokenizer.unk_token_id),
        (writer.add_pad_token_id, tokenizer.pad_token_id),
    ):
        if isinstance(token, int):
            add(token)
    templates: Any = tokenizer.chat_template  # Any: one, or several by name, as for tools
    if isinstance(templates, dict):
        templates = [{"name": name, "template": text} for name, text in templates.items()]
    writer.add_chat_template(templates)
