"""Run folders: their databases and MLflow locations, and the text of a conversation in them."""

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from memory_program.bank.forgetting import ConversationText
from memory_program.bank.record_json import session_to_json
from memory_program.core.errors import ConfigError, RecordError
from memory_program.core.mlflow_address import absolute_address, tracking_location
from memory_program.core.run_folder import CONFIG_FILE, SFT_CONVERSATIONS_FILE
from memory_program.core.sqlite_address import sqlite_path, sqlite_url
from memory_program.sft.session_lines import read_lines, session_file
from memory_program.tracking import RECEIPT_FILE


def run_database_urls(folder: Path, db: str | None) -> list[str]:
    """List the bank databases of a run: those in its folder, and the named one or that of its settings.

    The folder may hold databases of other runs: of the oracle, or of models that a training compares. A run
    that has written memories to no known database is a ConfigError.
    """
    named = db if db is not None else read_json_object(folder / CONFIG_FILE).get("db_url")
    known = [named] if isinstance(named, str) else []
    files = {path.resolve() for path in map(sqlite_path, known) if path is not None}
    inside = [path for path in sorted(folder.rglob("banks.sqlite")) if path.resolve() not in files]
    known = [*(sqlite_url(path) for path in inside), *known]
    systems = [read_json_object(run).get("system") for run in folder.glob("*/run.json")]
    if not known and any(isinstance(system, dict) and system.get("writer") for system in systems):
        raise ConfigError(f"the banks of {str(folder)!r} are not in it: name their database with --db")
    return known


def text_from_dataset(folder: Path, conversation: str) -> ConversationText | None:
    """Collect the text of a conversation from the dataset of a run without memories, named in its settings.

    A folder without settings may hold trajectories or synthesized questions: a file for each conversation.
    Or it holds a fine-tuning, which keeps ids and no text. Its text is empty, and None if the conversation
    has not taught its model.

    Raises:
        ConfigError: the run writes memories, to an unknown database, or its dataset or its files do not have
            the conversation.
        DatasetError: the dataset cannot be read.
        RecordError: this is not the folder of a run, or a file in it cannot be read.
    """
    text = ConversationText()
    if _is_fine_tuning(folder):
        lists = map(read_json_object, folder.rglob(SFT_CONVERSATIONS_FILE))
        ids = {key.rpartition("@")[0] for taught in lists for key in taught.get("conversations", [])}
        return text if conversation in ids else None
    if has_session_files(folder):
        own = session_file(folder, conversation)
        if not own.is_file():
            names = ", ".join(sorted(path.stem for path in folder.glob("*.jsonl")))
            raise ConfigError(f"{str(folder)!r} has no file of conversation {conversation!r}: it has {names}")
        for path in folder.glob("*.jsonl"):
            for line in read_lines(path):
                text.add(line, is_same_conversation=path == own)
        return text
    # These load DSPy, which the text of banks does not need.
    from memory_program.configs.evaluate_config import EvaluateConfig
    from memory_program.evaluation.datasets import load_dataset
    from memory_program.evaluation.report.write_reports import load_run_config

    settings = load_run_config(folder, EvaluateConfig())
    if any(system.has_model_writer for system in settings.system_names):
        raise ConfigError(f"the banks of {str(folder)!r} are not in it: name their database with --db")
    conversations = load_dataset(settings.source, settings.seed).conversations
    for known in conversations:
        is_same = known.conversation_id == conversation
        for session in known.sessions:
            text.add(json.loads(session_to_json(session)), is_same_conversation=is_same)
    if conversation in {known.conversation_id for known in conversations}:
        return text
    # An earlier run, on another dataset, may have left journals in this folder.
    name = json.dumps(conversation)
    record = re.compile(rf'"conversation_id": ?{re.escape(name)}|"question_id": ?"{re.escape(name[1:-1])}:')
    for path in folder.rglob("*.jsonl"):
        with path.open(encoding="utf-8", errors="replace") as lines:
            if any(record.search(line) for line in lines):
                return text
    raise ConfigError(
        f"conversation {conversation!r} is neither in banks nor in the dataset of {str(folder)!r}"
    )


def text_from_questions(folder: Path, conversation: str) -> ConversationText:
    """Collect the questions that a run has scored: the trace of a call may hold nothing else."""
    text = ConversationText()
    for path in folder.rglob("questions.jsonl"):
        for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
            with suppress(ValueError, TypeError, KeyError):  # a line that is cut, or of another kind
                record = json.loads(line)
                is_same = record["question_id"].rpartition(":")[0] == conversation
                text.add({"text": record["question"]}, is_same_conversation=is_same)
    return text


def tracking_locations(folders: Sequence[Path], named: str | None) -> list[tuple[str, Path | None]]:
    """List the MLflow addresses and artifact folders: the named one, or all those of the run folders.

    Raises:
        ConfigError: a run recorded a relative path, and it is not clear from which folder.
    """
    places = [tracking_location(folder, named) for folder in folders]
    if named is None:
        settings = [read_json_object(folder / CONFIG_FILE) for folder in folders]
        receipts = [path for folder in folders for path in sorted(folder.rglob(RECEIPT_FILE))]
        noted = [config.get("tracking_uri") for config in settings if config.get("mlflow", True)]
        noted += [read_json_object(path).get("uri") for path in receipts]
        recorded = [uri for uri in noted if isinstance(uri, str)]
        known = [*places, *(tracking_location(path.parent, None) for path in receipts)]
        known += [(uri, None) for uri in recorded if uri == absolute_address(uri)]
        for uri in recorded:
            file = sqlite_path(uri)
            if file is None or file.is_absolute() or file.exists():
                places.append((uri, None))
                continue
            # a relative path is from the folder in which the run was started
            end = tuple(part for part in file.parts if part != "..")
            files = [(place, sqlite_path(place[0])) for place in known]
            same = [place for place, path in files if path is not None and path.parts[-len(end) :] == end]
            if not same:
                raise ConfigError(
                    f"a run recorded MLflow at {uri!r}, from the folder in which it was started: run this "
                    "command in that folder, or give the full path with --tracking-uri"
                )
            places += same
    distinct: dict[str, tuple[str, Path | None]] = {}  # one file may have several addresses
    for uri, artifacts in places:
        file = sqlite_path(uri)
        distinct.setdefault(str(file.resolve()) if file is not None else uri, (uri, artifacts))
    return list(distinct.values())


def has_session_files(folder: Path) -> bool:
    """Say whether a folder holds trajectories or synthesized questions instead of a run."""
    is_run = (folder / CONFIG_FILE).exists() or _is_fine_tuning(folder)
    return not is_run and any(folder.glob("*.jsonl"))


def _is_fine_tuning(folder: Path) -> bool:
    is_run = (folder / CONFIG_FILE).exists()
    return not is_run and (folder / "settings.json").exists() and (folder / "log.jsonl").exists()


def read_json_object(path: Path) -> dict[str, Any]:  # Any: a JSON object
    """Read a JSON object; an empty one if there is no such file."""
    try:
        return dict(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError) as error:
        raise RecordError(
            f"{str(path)!r} cannot be read ({error}): delete it, or name another folder"
        ) from error
