"""LoRA adapters of a training: their configuration, and the files of a trained model."""

import copy
import shutil
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import cast

from peft import LoraConfig, PeftConfig, PeftModel
from safetensors import SafetensorError
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from memory_program.configs.trainer_groups import OptimizerSettings
from memory_program.core.adapter_config import ADAPTER_FOLDER, ROUNDED
from memory_program.core.errors import ModelError
from memory_program.inference.frozen_adapters import merge_frozen_adapters
from memory_program.inference.loading import silence_transformers, stacked_adapters

_TRAINED = "default"  # PEFT's name of the adapter that is trained
_JOINED = "joined"
_MERGE = "merge it into its base, and start from that"
_NOT_JOINED = (
    "use_dora", "modules_to_save", "bias", "lora_bias", "trainable_token_indices", "target_parameters"
)  # fmt: skip
"""Settings of PEFT that train more than LoRA's matrices, which is all that can be joined."""
_UNUSED = (None, False, "none", [], {})


def lora_config(settings: OptimizerSettings, source: str) -> LoraConfig:
    """Return the configuration of adapters of all linear layers but the output layer.

    Args:
        settings: of the training.
        source: the model that the training starts from; see ``load_model``.

    Raises:
        ModelError: it is an adapter that ``save_adapter`` cannot join with another one.
    """
    for adapter in stacked_adapters(source)[0]:
        config = PeftConfig.from_pretrained(adapter)
        if not isinstance(config, LoraConfig):
            raise ModelError(f"{adapter!r} is of type {config.peft_type}, and not LoRA: {_MERGE}")
        more = {name: value for name in _NOT_JOINED if (value := getattr(config, name)) not in _UNUSED}
        if more:
            listed = ", ".join(f"{name} {value!r}" for name, value in more.items())
            raise ModelError(f"{adapter!r} trained more than LoRA's matrices ({listed}): {_MERGE}")
        if isinstance(config.target_modules, str):
            raise ModelError(
                f"{adapter!r} names its layers by the pattern {config.target_modules!r}, and PEFT joins only "
                f"lists of names: {_MERGE}"
            )
    return LoraConfig(
        r=settings.lora_r,
        lora_alpha=settings.lora_alpha,
        lora_dropout=settings.lora_dropout,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )


def save_adapter(adapted: PeftModel, source: str, folder: Path) -> None:
    """Write the adapter of a training, over the model that has no adapter.

    A training that starts from an adapter has it merged into its network, and trains a second one. The two
    are written as one, whose rank is the sum of theirs, so that any server of the base can load it.

    Args:
        adapted: the network with the adapter that is trained.
        source: the model that the training started from; see ``load_model``.
        folder: for the files; made if missing.
    """
    started_from, base = stacked_adapters(source)
    # no embeddings are trained; to find that out, PEFT would ask the hub
    save = partial(adapted.save_pretrained, str(folder), save_embedding_layers=False)
    if not started_from:
        save()
        return
    was_training = adapted.training
    try:
        with warnings.catch_warnings(action="ignore", category=FutureWarning):  # PEFT uses old names
            for number, adapter in enumerate(started_from):
                adapted.load_adapter(adapter, f"start-{number}")
        names = list(adapted.peft_config)
        adapted.add_weighted_adapter(names, [1.0] * len(names), _JOINED, combination_type="cat")
        adapted.peft_config[_JOINED].base_model_name_or_path = base
        save(selected_adapters=[_JOINED])
    finally:
        adapted.set_adapter(_TRAINED)
        for name in set(adapted.peft_config) - {_TRAINED}:
            adapted.delete_adapter(name)
        adapted.train(was_training)
    for file in (folder / _JOINED).iterdir():  # PEFT writes only "default" into the folder itself
        shutil.move(file, folder / file.name)
    (folder / _JOINED).rmdir()


@contextmanager
def disk_errors(folder: Path, kinds: type[Exception] | tuple[type[Exception], ...]) -> Generator[None]:
    """Raise an ``OSError``, as other writers do, for the error of a library that cannot write its file."""
    try:
        yield
    except kinds as error:
        raise OSError(
            f"{str(folder)!r} cannot be written ({error}): make room, and give the same command again"
        ) from error


def write_model(
    folder: Path,
    network: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    source: str,
    adapted: PeftModel | None = None,
) -> None:
    """Write a model in the format of transformers, adapters merged; ``adapter/`` has them apart.

    Merging into bfloat16 weights loses small changes. So ``load_model`` takes the adapter in their place.

    Raises:
        OSError: the files cannot be written.
    """
    with silence_transformers(), disk_errors(folder, SafetensorError):
        if adapted is not None:
            save_adapter(adapted, source, folder / ADAPTER_FOLDER)
            device = network.device
            try:
                adapted.to("cpu")  # a second model may not fit on a GPU beside the first one
                network = cast(PreTrainedModel, copy.deepcopy(adapted).merge_and_unload())
            finally:
                adapted.to(device)
            if network.dtype.itemsize < 4:
                setattr(network.config, ROUNDED, ADAPTER_FOLDER)
        merge_frozen_adapters(network)
        network.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
