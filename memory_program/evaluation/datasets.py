"""The datasets by name: where their conversations come from, and of which ones the truth is known."""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path

from locomo.locomo import Dataset, load_locomo, read_dataset
from locomo.longmemeval import load_longmemeval
from locomo.perltqa import load_perltqa
from locomo.types import Benchmark
from memory_program.configs.groups import DatasetName, DataSettings
from memory_program.worlds import SAMPLE_FILE, World, as_locomo_json, generate_worlds, sample_worlds


def load_dataset(source: DataSettings, seed: int) -> Dataset:
    """Read, download or generate a dataset; a name that is not in ``DATASET_LOADERS`` is a path.

    Raises:
        DatasetError: the file is missing, modified or not in the schema.
    """
    load = DATASET_LOADERS.get(source.dataset)
    return load(source, seed) if load is not None else read_dataset(Path(source.dataset))


def benchmark_for_config(source: DataSettings) -> Benchmark:
    """Name the benchmark whose rules score the questions; other datasets are in LoCoMo's schema."""
    known = [benchmark.value for benchmark in Benchmark]
    return Benchmark(source.dataset) if source.dataset in known else Benchmark.LOCOMO


def load_worlds(source: DataSettings, seed: int) -> list[World]:
    """Give the worlds behind the conversations of a dataset; none if their truth is not known."""
    if source.dataset == DatasetName.SAMPLE:
        return sample_worlds()
    if source.dataset == DatasetName.WORLD:
        return generate_worlds(seed, source.num_worlds, held_out=True)
    return []


def _make_world_dataset(source: DataSettings, seed: int) -> Dataset:
    conversations = tuple(world.conversation for world in load_worlds(source, seed))
    content = json.dumps(as_locomo_json(conversations)).encode()
    variant = f"{seed}x{source.num_worlds}"
    return Dataset(conversations, hashlib.sha256(content).hexdigest(), False, DatasetName.WORLD, variant)


DATASET_LOADERS: Mapping[str, Callable[[DataSettings, int], Dataset]] = {
    DatasetName.LOCOMO: lambda source, _: load_locomo(source.data, allow_modified=source.allow_modified),
    DatasetName.LONGMEMEVAL: lambda source, _: load_longmemeval(source.data),
    DatasetName.PERLTQA: lambda source, _: load_perltqa(source.data),
    DatasetName.SAMPLE: lambda _source, _seed: read_dataset(SAMPLE_FILE),
    DatasetName.WORLD: _make_world_dataset,
}
"""Every dataset that is known by name. To add one: a reader into locomo.types's types, a name in the
config, and a line here; what a signature shows of it is its ``Dataset.version``."""
