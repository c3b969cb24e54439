"""The datasets by name: how each is loaded, and which ones have a known truth."""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path

from locomo.locomo import Dataset, load_locomo, read_dataset
from locomo.longmemeval import load_longmemeval
from locomo.perltqa import load_perltqa
from locomo.types import Benchmark
from memory_program.configs.evaluate_config import DatasetName, EvaluateConfig
from memory_program.worlds import SAMPLE_FILE, World, as_locomo_json, generate_worlds, sample_worlds


def load_dataset(config: EvaluateConfig) -> Dataset:
    """Read, download or generate the dataset of a config; a name without a loader is a path.

    Raises:
        DatasetError: the file is missing, modified or not in the schema.
    """
    load = DATASET_LOADERS.get(config.dataset)
    return load(config) if load is not None else read_dataset(Path(config.dataset))


def benchmark_for_config(config: EvaluateConfig) -> Benchmark:
    """Return the benchmark whose rules score a dataset; files and generated data follow LoCoMo's."""
    known = [benchmark.value for benchmark in Benchmark]
    return Benchmark(config.dataset) if config.dataset in known else Benchmark.LOCOMO


def load_worlds(config: EvaluateConfig) -> list[World]:
    """Return the worlds that generated the conversations of a dataset; none if the truth is unknown."""
    make = _WORLD_LOADERS.get(config.dataset)
    return make(config) if make is not None else []


def _make_world_dataset(config: EvaluateConfig) -> Dataset:
    conversations = tuple(world.conversation for world in load_worlds(config))
    content = json.dumps(as_locomo_json(conversations)).encode()
    variant = f"{config.seed}x{config.worlds}"
    return Dataset(conversations, hashlib.sha256(content).hexdigest(), False, DatasetName.WORLD, variant)


DATASET_LOADERS: Mapping[str, Callable[[EvaluateConfig], Dataset]] = {
    DatasetName.LOCOMO: lambda config: load_locomo(config.data, allow_modified=config.allow_modified),
    DatasetName.LONGMEMEVAL: lambda config: load_longmemeval(config.data),
    DatasetName.PERLTQA: lambda config: load_perltqa(config.data),
    DatasetName.SAMPLE: lambda _: read_dataset(SAMPLE_FILE),
    DatasetName.WORLD: _make_world_dataset,
}
"""Every dataset with a name. To add one: write a reader into the types of ``locomo.types``, add its name to
the config and a line here. Signatures show its ``Dataset.version``."""

_WORLD_LOADERS: Mapping[str, Callable[[EvaluateConfig], list[World]]] = {
    DatasetName.SAMPLE: lambda _: sample_worlds(),
    DatasetName.WORLD: lambda config: generate_worlds(config.seed, config.worlds, held_out=True),
}
