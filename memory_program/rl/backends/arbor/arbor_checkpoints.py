"""Checkpoints of an Arbor server, brought into the folder of a run as a model that loads anywhere."""

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
    """Write a checkpoint in the format of transformers, adapters merged; ``adapter`` holds those apart.

    Args:
        checkpoint: the folder that the server wrote.
        base: what the adapters were trained on, a folder or a hub id.
        folder: where to.
        dtype: of what is written; adapters are merged in float32.

    Raises:
        ModelError: the folder is on another machine, or cannot be read.
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
        model = load_model(base, "cpu", torch.float32)
        adapted = PeftModel.from_pretrained(model.network, str(checkpoint))
        network = cast(PreTrainedModel, adapted.merge_and_unload()).to(dtype)  # pyright: ignore[reportArgumentType]
        tokenizer = model.tokenizer
        (folder / "adapter").mkdir(parents=True)
        for name in _ADAPTER:
            shutil.copy(checkpoint / name, folder / "adapter" / name)
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
