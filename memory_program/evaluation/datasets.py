"""The datasets by name: how each is loaded, and which ones have a known truth."""

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
    """Read, download or generate a dataset; a name without a loader is a path.

    Raises:
        DatasetError: the file is missing, modified or not in the schema.
    """
    load = DATASET_LOADERS.get(source.dataset)
    return load(source, seed) if load is not None else read_dataset(Path(source.dataset))


def benchmark_for_config(source: DataSettings) -> Benchmark:
    """Return the benchmark whose rules score a dataset; files and generated data follow LoCoMo's."""
    known = [benchmark.value for benchmark in Benchmark]
    return Benchmark(source.dataset) if source.dataset in known else Benchmark.LOCOMO


def load_worlds(source: DataSettings, seed: int) -> list[World]:
    """Return the worlds that generated the conversations of a dataset; none if the truth is unknown."""
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
"""Every dataset with a name. To add one: write a reader into the types of ``locomo.types``, add its name to
the config and a line here. Signatures show its ``Dataset.version``."""
