"""Check a data set and say what is in it: ``python -m locomo.check FILE``.

Any JSON file that one of the readers knows may be named: LoCoMo's schema (also your own conversations) or
LongMemEval's. The check reports a fault where the reader would stop, with the path inside the file and, for
JSON that cannot be decoded, the line; and things that can be read and are probably mistakes.
"""

import statistics
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from locomo.benchmark_errors import DatasetError
from locomo.exit_status import run_with_exit_status
from locomo.json_at import JsonAt
from locomo.locomo import Dataset, read_dataset, read_json
from locomo.longmemeval import load_longmemeval
from locomo.metrics import locomo_f1
from locomo.types import Benchmark, all_questions

_MAX_SHOWN = 10


@dataclass(frozen=True, slots=True)
class CheckConfig:
    """Validate a data set and explain it: counts, sessions, categories, and what looks wrong."""

    file: Annotated[Path, tyro.conf.Positional]
    """A JSON file in LoCoMo's schema or in LongMemEval's."""


def read_any(path: Path) -> Dataset:
    """Read a file by the reader of its schema.

    Raises:
        DatasetError: it is in no known schema, or has a fault; the message says where.
    """
    document, _ = read_json(path)
    samples = JsonAt(document, path.name).elements("sample")
    if samples and isinstance(samples[0].value, dict):
        keys = samples[0].members()
        if "haystack_sessions" in keys:
            return load_longmemeval(path)
        if "sample_id" not in keys and "conversation" not in keys:
            raise samples[0].error(
                "is in no known schema",
                "LoCoMo has sample_id and conversation, LongMemEval question_id and haystack_sessions",
            )
    return read_dataset(path)


def describe(dataset: Dataset) -> list[str]:
    """Say in lines what a data set holds."""
    talks, questions = dataset.conversations, all_questions(dataset.conversations)
    sessions = [session for talk in talks for session in talk.sessions]
    turns = [turn for session in sessions for turn in session.turns]
    words = [len(turn.line.split()) for turn in turns]
    days = sorted(session.date_time for session in sessions)
    lines = [
        f"schema: {dataset.benchmark.value}, sha256 {dataset.sha256}",
        f"{len(talks)} conversations, {len(sessions)} sessions, {len(turns)} turns, "
        f"{len(questions)} questions",
        f"sessions per conversation: {_spread([len(talk.sessions) for talk in talks])}",
        f"turns per session: {_spread([len(session.turns) for session in sessions])}",
        f"words per turn: {_spread(words)}; images: {sum(turn.caption is not None for turn in turns)}",
        f"dates: {days[0]:%Y-%m-%d} to {days[-1]:%Y-%m-%d}",
        "questions by category:",
    ]
    by_category = Counter(question.category.label for question in questions)
    for label, count in sorted(by_category.items()):
        of_label = [q for q in questions if q.category.label == label]
        with_evidence = sum(bool(q.evidence or q.labelled_groups) for q in of_label)
        lines.append(f"  {label}: {count}, {with_evidence} with evidence")
    return lines if by_category else [*lines, "  none: memories can be built, nothing can be scored"]


def find_oddities(dataset: Dataset) -> list[str]:
    """List what can be read and is probably a mistake, each with its place."""
    found = [f"evidence {turn_id!r} names no turn and is left out" for turn_id in dataset.dangling_evidence]
    for talk in dataset.conversations:
        name, before = talk.conversation_id, None
        for session in talk.sessions:
            if before is not None and session.date_time < before.date_time:
                found.append(f"{name}: {session.session_id} is dated before {before.session_id}")
            before = session
            empty = [turn.turn_id for turn in session.turns if not turn.utterance]
            found += [f"{name}: turn {turn_id} says nothing" for turn_id in empty]
        silent = set(talk.speakers) - {turn.speaker for turn in talk.turns.values()}
        found += [f"{name}: {speaker} never speaks" for speaker in sorted(silent)]
        texts = Counter(question.text for question in talk.questions)
        for question in talk.questions:
            asked = f"{name}: question {question.index} has"
            if question.is_answerable and not question.evidence and not question.labelled_groups:
                found.append(f"{asked} an answer and no evidence: recall leaves it out")
            gold = question.answer
            if question.benchmark is Benchmark.LOCOMO and question.is_answerable and gold is not None:
                right = (str(gold), str(gold).partition(";")[0])  # open-domain: the part before a semicolon
                if max(locomo_f1(text, gold, question.f1_category) for text in right) < 1:
                    found.append(
                        f"{asked} the answer {str(gold)!r:.60}, which official F1 never takes as right"
                    )
            if texts[question.text] > 1:
                found.append(f"{asked} the text of another one")
    return found


def _spread(counts: Sequence[int]) -> str:
    return f"{min(counts)} to {max(counts)}, median {statistics.median(counts):g}"


def main(arguments: Sequence[str] | None = None, prog: str = "python -m locomo.check") -> int:
    """Check the file that the command line names, and return the exit status: 1 for a fault."""

    def check() -> None:
        file = tyro.cli(CheckConfig, args=arguments, prog=prog).file
        try:
            dataset = read_any(file)
        except DatasetError as error:
            raise DatasetError(f"{file} is not valid: {error}") from error
        print(*describe(dataset), sep="\n")
        oddities = find_oddities(dataset)
        for oddity in oddities[:_MAX_SHOWN]:
            print(f"note: {oddity}")
        if len(oddities) > _MAX_SHOWN:
            print(f"note: and {len(oddities) - _MAX_SHOWN} more")
        print(f"valid: {file}")

    return run_with_exit_status(check)


if __name__ == "__main__":
    sys.exit(main())
