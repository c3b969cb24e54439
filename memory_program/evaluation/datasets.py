"""The datasets by name: how each is loaded, and which ones have a known truth."""

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from locomo.audit import apply_audit
from locomo.beam import load_beam
from locomo.locomo import Dataset, load_locomo, read_dataset
from locomo.locomo_plus import load_locomo_plus
from locomo.longmemeval import load_longmemeval
from locomo.memoryagentbench import load_memoryagentbench
from locomo.perltqa import load_perltqa
from locomo.personamem import load_personamem
from locomo.types import Benchmark
from memory_program.configs.groups import DatasetName, DataSettings
from memory_program.worlds import SAMPLE_FILE, World, as_locomo_json, generate_worlds, sample_worlds

_logger = logging.getLogger(__name__)


def load_dataset(source: DataSettings, seed: int) -> Dataset:
    """Read, download or generate a dataset; a name without a loader is a path.

    Raises:
        DatasetError: the file is missing, modified or not in the schema.
    """
    load = DATASET_LOADERS.get(source.dataset)
    if load is not None:
        dataset = load(source, seed)
        return dataset if source.audited is None else apply_audit(dataset, source.audited)
    dataset = read_dataset(Path(source.dataset))
    if dangling := dataset.dangling_evidence:
        _warn_of_dangling_evidence(
            Path(source.dataset).name, len(dangling), ", ".join(map(repr, dangling[:5]))
        )
    return dataset


@cache  # a run may read its file several times
def _warn_of_dangling_evidence(name: str, count: int, first: str) -> None:
    _logger.warning("%s: %d evidence ids name no turn and are left out, the first: %s", name, count, first)


def benchmark_for_config(source: DataSettings) -> Benchmark:
    """Return the benchmark whose rules score a dataset; files and generated data follow LoCoMo's."""
    known = [benchmark.value for benchmark in Benchmark]
    return Benchmark(source.dataset) if source.dataset in known else Benchmark.LOCOMO


def load_worlds(source: DataSettings, seed: int) -> list[World]:
    """Return the worlds that generated the conversations of a dataset; none if the truth is unknown."""
    if source.dataset == DatasetName.SAMPLE:
        return sample_worlds()
    if source.dataset == DatasetName.WORLD:
        return generate_worlds(seed, source.num_worlds, held_out=True, earlier_states=True)
    return []


def _make_world_dataset(source: DataSettings, seed: int) -> Dataset:
    conversations = tuple(world.conversation for world in load_worlds(source, seed))
    content = json.dumps(as_locomo_json(conversations)).encode()
    variant = f"{seed}x{source.num_worlds}"
    return Dataset(conversations, hashlib.sha256(content).hexdigest(), False, DatasetName.WORLD, variant)


DATASET_LOADERS: Mapping[str, Callable[[DataSettings, int], Dataset]] = {
    DatasetName.LOCOMO: lambda source, _: load_locomo(source.data, allow_modified=source.allow_modified),
    DatasetName.LOCOMO_PLUS: lambda source, _: load_locomo_plus(source.data),
    DatasetName.LONGMEMEVAL: lambda source, _: load_longmemeval(source.data),
    DatasetName.PERLTQA: lambda source, _: load_perltqa(source.data),
    DatasetName.PERSONAMEM: lambda source, _: load_personamem(source.data),
    DatasetName.BEAM: lambda source, _: load_beam(source.data),
    DatasetName.MEMORYAGENTBENCH: lambda source, _: load_memoryagentbench(source.data),
    DatasetName.SAMPLE: lambda _source, _seed: read_dataset(SAMPLE_FILE),
    DatasetName.WORLD: _make_world_dataset,
}
"""Every dataset with a name. To add one: write a reader into the types of ``locomo.types``, add its name to
the config and a line here. Signatures show its ``Dataset.version``."""
