"""The conversations that prompts and weights were made from, as the files of a program and a model tell.

A score on these conversations is no measure of what was learned.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import dspy

from locomo.types import Conversation
from memory_program.bank.record_json import session_to_json
from memory_program.core.adapter_config import ADAPTER_FOLDER
from memory_program.core.errors import RecordError
from memory_program.core.hashing import content_hash
from memory_program.core.json_files import Json, read_json_file, write_json
from memory_program.core.run_folder import SFT_CONVERSATIONS_FILE
from memory_program.models.model_names import model_program, model_source, runs_here


@dataclass(frozen=True, slots=True)
class OptimizationData:
    """The data that prompts or weights were made from: conversations of a file with this hash."""

    sha256: str
    conversations: tuple[str, ...]


def read_seen_data(
    sha256: str,
    conversations: Sequence[Conversation] = (),
    *,
    programs: Sequence[Path] = (),
    models: Sequence[str] = (),
) -> OptimizationData | None:
    """Read on which conversations of a dataset a system was optimised or trained; None if nothing says so.

    Args:
        sha256: hash of the dataset.
        conversations: those of the dataset to look for among the ones that ``--mode sft`` taught the models.
        programs: the saved programs of the system.
        models: its models, with the programs beside their weights.

    Raises:
        RecordError: a list beside the weights of a model is damaged.
    """
    beside = [path for path in map(model_program, models) if path is not None]
    read = [read_optimization_data(path, sha256) for path in (*programs, *beside)]
    found = [data for data in read if data is not None]
    seen = [name for data in found for name in data.conversations]
    taught = [name for model in models for name in taught_conversations(model, conversations)]
    has_record = found or any(map(read_sft_conversations, models))
    return OptimizationData(sha256, tuple(dict.fromkeys([*seen, *taught]))) if has_record else None


def read_optimization_data(program: Path, sha256: str) -> OptimizationData | None:
    """Read the conversations of a dataset that a saved program was optimised on; None if it names no dataset.

    Args:
        program: the file.
        sha256: hash of the dataset.
    """
    datasets = _read_optimization_datasets(program)
    seen = [id for one in datasets if one["sha256"] == sha256 for id in (*one["train"], *one["val"])]
    return OptimizationData(sha256, tuple(dict.fromkeys(seen))) if datasets else None


def optimization_datasets(own: Json | None, programs: Sequence[Path | None]) -> Json:
    """Describe the data of a program for its file: ``dataset``, and ``earlier_datasets`` if there are any.

    Args:
        own: the dataset that the program is optimised on, with the ids of its conversations by split.
        programs: the saved programs that it is made from, with their own earlier datasets.

    Returns:
        JSON, empty without any dataset. Each dataset is there once.
    """
    earlier = [one for path in programs if path is not None for one in _read_optimization_datasets(path)]
    merged: dict[str, Json] = {}
    for one in (*([own] if own is not None else []), *earlier):
        known = merged.setdefault(one["sha256"], one)
        splits = {name: list(dict.fromkeys([*known[name], *one[name]])) for name in ("train", "val")}
        merged[one["sha256"]] = {**known, **splits}
    datasets = list(merged.values())
    # versions without ``earlier_datasets`` read the one dataset
    return {
        **({"dataset": datasets[0]} if datasets else {}),
        **({"earlier_datasets": datasets[1:]} if datasets[1:] else {}),
    }


def save_with_data(
    program: dspy.Module,
    path: Path,
    earlier: Sequence[Path | None],
    *,
    own: Json | None = None,
    optimization: Json | None = None,
) -> None:
    """Save a program with the data that it was made from, so that an evaluation on these data says so.

    Args:
        program: the program.
        path: its file.
        earlier: the saved programs that it is made from.
        own: as of ``optimization_datasets``.
        optimization: what else its file tells of its optimisation.

    Raises:
        OSError: the file cannot be written.
    """
    told = {**(optimization or {}), **optimization_datasets(own, earlier)}  # before ``path``, if it is one
    program.save(str(path))
    if told:
        state = read_json_file(path)
        state["metadata"]["optimization"] = told
        write_json(path, state)


def _read_optimization_datasets(program: Path) -> list[Json]:
    """List the datasets that a saved program was optimised on, the last first; none if it does not say."""
    found: list[Json] = []
    try:
        saved = read_json_file(program)["metadata"]["optimization"]
        for one in (saved["dataset"], *saved.get("earlier_datasets", [])):
            ids = {name: [*map(str, one[name])] for name in ("train", "val")}
            found.append({**one, **ids, "sha256": str(one["sha256"])})
    except (FileNotFoundError, ValueError, KeyError, TypeError):  # saved by hand, or older trajectories
        return []
    return found


def sft_conversation_key(conversation_id: str, first_session: Json) -> str:
    """Identify a conversation that taught a model: by its id and the content of its first session (JSON)."""
    return f"{conversation_id}@{content_hash(first_session)[:16]}"


def read_sft_conversations(model: str) -> list[str]:
    """List the keys of the conversations that taught a model by ``--mode sft``; none of a model of the hub.

    Raises:
        RecordError: the list beside the model's weights is damaged.
    """
    if not runs_here(model):
        return []
    source = Path(model_source(model)).expanduser()
    folder = source.parent if source.suffix == ".gguf" else source
    # a training saves the list with the merged weights, and their adapter in a folder below
    path = (folder.parent if folder.name == ADAPTER_FOLDER else folder) / SFT_CONVERSATIONS_FILE
    if not path.is_file():
        return []
    try:
        return [str(key) for key in read_json_file(path)["conversations"]]
    except (ValueError, KeyError, TypeError) as error:
        raise RecordError(
            f"{str(path)!r} does not list conversations ({error}): run --mode sft again"
        ) from error


def taught_conversations(model: str, conversations: Sequence[Conversation]) -> list[str]:
    """List the ids of those conversations that taught a model by ``--mode sft``.

    Raises:
        RecordError: the list beside the model's weights is damaged.
    """
    taught = set(read_sft_conversations(model))
    return [
        conversation.conversation_id
        for conversation in (conversations if taught else ())
        if sft_conversation_key(
            conversation.conversation_id, json.loads(session_to_json(conversation.sessions[0]))
        )
        in taught
    ]
