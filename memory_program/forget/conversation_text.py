"""What was told in a conversation, where no bank keeps it: by the data of a run, or by lines of sessions."""

import json
import re
from pathlib import Path

from memory_program.bank.forgetting import ConversationText
from memory_program.bank.record_json import session_to_json
from memory_program.core.errors import ConfigError
from memory_program.forget.run_places import has_session_files
from memory_program.sft.session_lines import read_lines, session_file


def text_from_dataset(folder: Path, conversation: str) -> ConversationText:
    """Collect what was said in the data of a run that writes no memories; its settings name them.

    A folder without settings may be one of trajectories, or of synthesized questions.

    Raises:
        ConfigError: it writes memories, to a database elsewhere, or its data have no such conversation.
        DatasetError: the data cannot be read.
        RecordError: the folder is not that of a run.
    """
    if has_session_files(folder):
        return _text_from_session_files(folder, conversation)
    # DSPy and the rest: what banks tell is read without them
    from memory_program.configs.evaluate_config import EvaluateConfig
    from memory_program.evaluation.datasets import load_dataset
    from memory_program.evaluation.report.write_reports import load_run_config

    settings = load_run_config(folder, EvaluateConfig())
    if any(system.has_model_writer for system in settings.system_names):
        raise ConfigError(f"the banks of {str(folder)!r} are not in it: name their database with --db")
    told = ConversationText()
    known = load_dataset(settings.source, settings.seed).conversations
    for one in known:
        for session in one.sessions:
            told.add(
                json.loads(session_to_json(session)), is_same_conversation=one.conversation_id == conversation
            )
    is_known = any(one.conversation_id == conversation for one in known)
    # a run of before, on other data, may have left some of it
    if not is_known and not any(
        _mentions_conversation(path, conversation) for path in folder.rglob("*.jsonl")
    ):
        raise ConfigError(
            f"conversation {conversation!r} is neither in banks nor in the data of {str(folder)!r}"
        )
    return told


def _text_from_session_files(folder: Path, conversation: str) -> ConversationText:
    """Collect what stands in files with a line for each session: trajectories, synthesized questions.

    Raises:
        ConfigError: the conversation has none.
        RecordError: one cannot be read.
    """
    own, told = session_file(folder, conversation), ConversationText()
    if not own.is_file():
        names = ", ".join(sorted(path.stem for path in folder.glob("*.jsonl")))
        raise ConfigError(f"{str(folder)!r} has no file of conversation {conversation!r}: it has {names}")
    for path in folder.glob("*.jsonl"):
        for line in read_lines(path):
            told.add(line, is_same_conversation=path == own)
    return told


def _mentions_conversation(journal: Path, conversation: str) -> bool:
    """Whether a record of a journal is of a conversation, or of a question of it."""
    own = re.compile(rf'"conversation_id": ?{re.escape(json.dumps(conversation))}')
    part = re.compile(rf'"question_id": ?"{re.escape(json.dumps(conversation)[1:-1])}:')
    with journal.open(encoding="utf-8", errors="replace") as lines:
        return any(own.search(line) or part.search(line) for line in lines)
