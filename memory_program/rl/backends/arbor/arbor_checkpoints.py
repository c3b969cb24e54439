"""Export of an Arbor checkpoint to a run's folder in the transformers format."""

import shutil
from pathlib import Path
from typing import cast

import torch
from peft import PeftModel
from transformers import PreTrainedModel

from memory_program.core.errors import ModelError
from memory_program.inference.loading import load_model

_ADAPTER = ("adapter_config.json", "adapter_model.safetensors")


def export_checkpoint(checkpoint: Path, base: str, folder: Path, dtype: torch.dtype) -> None:
    """Export a checkpoint in the transformers format; merge LoRA adapters, and copy them to ``adapter``.

    In bfloat16 the merged weights are those that sampled: Arbor's vLLM gets them merged and rounded, too.

    Args:
        checkpoint: the folder that the server wrote.
        base: the model under the adapters, a folder or a hub id.
        folder: the output folder.
        dtype: the output dtype; adapters are merged in float32.

    Raises:
        ModelError: the checkpoint is on another machine, or cannot be read.
    """
    if not checkpoint.is_dir():
        raise ModelError(
            f"the trained weights are in {str(checkpoint)!r} on the server's machine, which is not this one: "
            "run train.py there, or copy the folder to the same path here and give the command again"
        )
    if not (checkpoint / _ADAPTER[0]).is_file():
        model = load_model(str(checkpoint), "cpu", dtype)
        network, tokenizer = model.network, model.tokenizer
    else:
        model = load_model(base, "cpu", torch.float32, exact=False)  # as the server loads it
        adapted = PeftModel.from_pretrained(model.network, str(checkpoint))
        network = cast(PreTrainedModel, adapted.merge_and_unload()).to(dtype)  # pyright: ignore[reportArgumentType]
        tokenizer = model.tokenizer
        (folder / "adapter").mkdir(parents=True)
        for name in _ADAPTER:
            shutil.copy(checkpoint / name, folder / "adapter" / name)
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
