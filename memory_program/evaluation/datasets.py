"""The datasets by name: where their conversations come from, and of which ones the truth is known."""

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
    """Read, download or make up the dataset of a config; a name that is not in ``DATASET_LOADERS`` is a path.

    Raises:
        DatasetError: the file is missing, modified or not in the schema.
    """
    load = DATASET_LOADERS.get(config.dataset)
    return load(config) if load is not None else read_dataset(Path(config.dataset))


def benchmark_for_config(config: EvaluateConfig) -> Benchmark:
    """Say how the questions of a config's dataset are scored; what is no benchmark is in LoCoMo's schema."""
    known = [benchmark.value for benchmark in Benchmark]
    return Benchmark(config.dataset) if config.dataset in known else Benchmark.LOCOMO


def load_worlds(config: EvaluateConfig) -> list[World]:
    """Give the worlds that the conversations of a dataset were made from; none if nobody knows the truth."""
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
"""Every dataset that is known by name. To add one: a reader into locomo.types's types, a name in the
config, and a line here; what a signature shows of it is its ``Dataset.version``."""

_WORLD_LOADERS: Mapping[str, Callable[[EvaluateConfig], list[World]]] = {
    DatasetName.SAMPLE: lambda _: sample_worlds(),
    DatasetName.WORLD: lambda config: generate_worlds(config.seed, config.worlds, held_out=True),
}
