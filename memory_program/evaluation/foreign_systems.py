"""Answers and rankings of systems from elsewhere, scored as those of a run: ``memory-program score``."""

import hashlib
import json
import math
from codecs import BOM_UTF8
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from locomo.types import Conversation
from memory_program.bank.budget import count_tokens
from memory_program.bank.outcomes import Answer, CallFailure, Outcome, RankedItem, SessionRecord
from memory_program.configs.evaluate_config import EvaluateConfig, Mode
from memory_program.configs.score_config import ScoreConfig
from memory_program.core.errors import RecordError
from memory_program.core.json_files import Json, write_json
from memory_program.evaluation.console import make_console, print_plain
from memory_program.evaluation.item_records import AnswerRecord, BuildRecord
from memory_program.evaluation.question_selection import Selection, load_selection
from memory_program.evaluation.report.report_page import REPORT_FILE, ReportedRun, write_html_report
from memory_program.evaluation.report.results_json import (
    EVALUATION_RESULTS_FILE,
    build_evaluation_results,
    write_question_results,
)
from memory_program.evaluation.report.score_tables import print_results
from memory_program.evaluation.report.write_reports import score_runs
from memory_program.evaluation.scoring.bank_growth import system_retained_turns
from memory_program.evaluation.scoring.error_types import diagnose
from memory_program.evaluation.scoring.question_scores import score_question
from memory_program.evaluation.scoring.score_signature import SystemIdentity, SystemRun
from memory_program.evaluation.scoring.system_records import ScoredSystem
from memory_program.models.usage import Usage

_EXAMPLE = '{"question_id": "conv-26:q0", "answer": "...", "ranking": ["D1:3"]}'

_LARGEST = 10**12  # so that sums are finite
_Count = Annotated[int, Field(ge=0, le=_LARGEST)]
_Amount = Annotated[float, Field(ge=0, le=_LARGEST, allow_inf_nan=False)]


class _RankedLine(BaseModel):
    """A ranked memory: the turns that it comes from, and its size."""

    model_config = ConfigDict(extra="forbid", strict=True)

    sources: list[str]
    tokens: _Count | None = None


class _SpentLine(BaseModel):
    """The usage of a session or a question, and why it failed."""

    model_config = ConfigDict(extra="forbid", strict=True)

    error: str | None = None
    seconds: _Amount | None = None
    calls: _Count = 1
    failed_calls: _Count = 0
    input_tokens: _Count = 0
    output_tokens: _Count = 0
    cost_usd: _Amount | None = None

    @property
    def usage(self) -> Usage:
        """The usage; a failed item without a price costs nothing."""
        return Usage(
            calls=self.calls,
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            cost_usd=0.0 if self.cost_usd is None and self.error is not None else self.cost_usd,
            seconds=self.seconds or 0.0,
            failed_calls=self.failed_calls,
        )

    @property
    def elapsed_s(self) -> float:
        """The seconds; unknown is no latency of 0 s."""
        return math.nan if self.seconds is None else self.seconds


class _SessionLine(_SpentLine):
    """The line of a session that the system remembered."""

    conversation_id: str
    session_id: str
    operations: _Count


class _Line(_SpentLine):
    """The line of a question."""

    question_id: str
    answer: str | None = None
    ranking: list[str | list[str] | _RankedLine] | None = None
    memories: list[str] = []

    @model_validator(mode="after")
    def _check_content(self) -> Self:
        if self.error is None and self.answer is None and self.ranking is None:
            raise ValueError("has neither answer nor ranking nor error")
        if self.error is not None and self.answer is not None:
            raise ValueError("has an answer and an error")
        return self


def score_foreign_systems(config: ScoreConfig) -> Json:
    """Score the files of a config; write results.json, questions.jsonl and the report, and print the tables.

    Raises:
        RecordError: a line of a file cannot be used.
        ConfigError: the split or a named conversation does not exist.
        DatasetError: the data cannot be read.
    """
    console = make_console()
    shared = ("split", "conversations", "subset_file", "num_test", "seed", "output_dir")
    data = dict(config.source)
    evaluated = EvaluateConfig(
        **{name: getattr(config, name) for name in shared},
        **data,
        mode=Mode.REPORT,
        systems="extractive",
        mlflow=False,
    )
    selection = load_selection(evaluated)
    print_plain(console, selection.summary)
    if not selection.questions:
        raise RecordError("the data selected has no questions, so nothing can be scored: name another file")
    scored = [_score_file(path, selection) for path in config.files]
    others = []
    if config.beside:
        others = score_runs(EvaluateConfig(mode=Mode.REPORT, runs=config.beside, mlflow=False), console)
    results = build_evaluation_results(evaluated, selection, scored)
    folder = config.output_dir
    folder.mkdir(parents=True, exist_ok=True)
    path, page = folder / EVALUATION_RESULTS_FILE, config.report_file or folder / REPORT_FILE
    write_json(path, results)
    for system in scored:
        own = folder / system.run.system.name
        own.mkdir(exist_ok=True)
        write_question_results(own / "questions.jsonl", system)
    write_html_report(page, [ReportedRun(folder, selection, results, tuple(scored)), *others])
    print_results(console, results)
    print_plain(console, f"results: {path}")
    print_plain(console, f"report: {page}")
    return results


@dataclass(frozen=True, slots=True)
class _ForeignRecords:
    """The records of a file: answers by question, sessions by conversation and id.

    ``unscored`` are the questions that have a ranking and no answer.
    """

    answers: dict[str, AnswerRecord]
    unscored: set[str]
    builds: dict[tuple[str, str], BuildRecord]


def _score_file(path: Path, selection: Selection) -> ScoredSystem:
    """Read the lines of a system and score them."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise RecordError(f"cannot read {str(path)!r} ({error.strerror}): name a JSONL file") from error
    conversations = {c.conversation_id: c for c in selection.conversations}
    records = _read_lines(path, content, selection)
    scored = []
    for question in selection.questions:
        turn_group = conversations[question.conversation_id].turn_group
        item = score_question(question, records.answers.get(question.question_id), {}, turn_group=turn_group)
        if question.question_id in records.unscored:  # a ranking alone is no wrong answer
            item = replace(item, locomo_f1=None, set_f1=None, bleu1=None)
        scored.append(item)
    digest = hashlib.sha256(content).hexdigest()
    identity = SystemIdentity(
        name=path.stem,
        writer=None,
        reader=None,
        temperature=0.0,
        settings={"answers_file": digest[:8]},
        program=digest,
        build=digest,
        answer=digest,
    )
    retained = {name: system_retained_turns(identity, c, {}) for name, c in conversations.items()}
    places = [(item, item.question.conversation_id) for item in scored]
    diagnoses = tuple(diagnose(item, conversations[name], retained[name]) for item, name in places)
    builds: tuple[BuildRecord | None, ...] = ()
    if records.builds:  # a file need not tell of sessions; one that tells of some lacks the others
        named = [
            (c.conversation_id, session.session_id) for c in conversations.values() for session in c.sessions
        ]
        builds = tuple(records.builds.get(name) for name in named)
    return ScoredSystem(SystemRun(identity), tuple(scored), builds, {}, diagnoses, ())


def _read_lines(path: Path, content: bytes, selection: Selection) -> _ForeignRecords:
    """Read the records of a file."""
    conversations = {c.conversation_id: c for c in selection.conversations}
    known = {question.question_id: question for question in selection.questions}
    for question in selection.questions:  # LongMemEval has one question a history, known by the name of that
        if len(conversations[question.conversation_id].questions) == 1:
            known.setdefault(question.conversation_id, question)
    read = _ForeignRecords({}, set(), {})
    # not splitlines: JSON may hold other ends of lines, such as U+2028
    for number, text in enumerate(content.removeprefix(BOM_UTF8).split(b"\n"), start=1):
        if not text.strip():
            continue
        place = f"{path.name}: line {number}"
        line = _parse_line(text, place)
        if isinstance(line, _SessionLine):
            of_talk, session_id = line.conversation_id, line.session_id
            talk = conversations.get(of_talk)
            sessions = [session.session_id for session in talk.sessions] if talk is not None else []
            if session_id not in sessions:
                raise RecordError(
                    f"{place}: session_id={session_id!r} of {of_talk!r} is not among the sessions selected; "
                    f"expected names like {(sessions or list(conversations))[0]!r}, or choose another --split"
                )
            if (of_talk, session_id) in read.builds:
                raise RecordError(
                    f"{place}: session {session_id!r} of {of_talk!r} has a line before; keep one of them"
                )
            failures = () if line.error is None else (CallFailure("writer", Outcome.ERROR, line.error),)
            record = SessionRecord(session_id, operations=line.operations, failures=failures)
            read.builds[of_talk, session_id] = BuildRecord(
                place, of_talk, session_id, "", record, line.usage, line.elapsed_s
            )
            continue
        question = known.get(line.question_id)
        if question is None:
            first = selection.questions[0].question_id
            raise RecordError(
                f"{place}: question_id={line.question_id!r} is none of the {len(selection.questions)} "
                f"questions selected; expected ids like {first!r}, or choose another --split"
            )
        if question.question_id in read.answers:
            raise RecordError(
                f"{place}: question {question.question_id!r} has a line before; keep one of them"
            )
        ranked, talk = None, conversations[question.conversation_id]
        shown: tuple[str, ...] = ()
        if line.ranking is not None:
            ranked = tuple(_ranked_item(entry, talk, place) for entry in line.ranking)
            if any(source in talk.turns for item in ranked for source in item.sources):
                # beside turns, a session stands for its turns; a ranking of sessions alone has no turn recall
                ranked = tuple(replace(item, sources=tuple(_turns_of(item.sources, talk))) for item in ranked)
            shown = tuple(dict.fromkeys(turn for item in ranked for turn in _turns_of(item.sources, talk)))
        outcome = Outcome.OK if line.error is None else Outcome.ERROR
        tokens = sum(count_tokens(memory + "\n") for memory in line.memories)
        answer = Answer(line.answer or "", outcome, line.error or "", ranked, shown, tokens)
        if line.answer is None:
            read.unscored.add(question.question_id)
        read.answers[question.question_id] = AnswerRecord(
            f"{path.name}:{number}", question.question_id, answer, line.usage, line.elapsed_s
        )
    return read


def _parse_line(text: bytes, place: str) -> _Line | _SessionLine:
    try:
        value = json.loads(text)
        is_session = isinstance(value, dict) and "session_id" in value
        return (_SessionLine if is_session else _Line).model_validate(value)
    except ValidationError as error:
        # of a value that may have several types, the deepest error is about the one that was meant
        first = max(error.errors(), key=lambda one: len(one["loc"]))
        where = ".".join(map(str, first["loc"])) or "the line"
        raise RecordError(f"{place}: {where}: {first['msg']}; expected {_EXAMPLE}") from error
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{place}: is not JSON ({error}); expected {_EXAMPLE}") from error


def _ranked_item(entry: str | list[str] | _RankedLine, talk: Conversation, place: str) -> RankedItem:
    """Read an entry of a ranking; a turn without a size has that of its line."""
    sources = (
        entry.sources if isinstance(entry, _RankedLine) else [entry] if isinstance(entry, str) else entry
    )
    sessions = {talk.turn_group(turn_id) for turn_id in talk.turns}
    for source in sources:
        if source not in talk.turns and source not in sessions:
            raise RecordError(
                f"{place}: {source!r} is no turn and no session of {talk.conversation_id!r}; expected ids "
                f"like {next(iter(talk.turns))!r}"
            )
    tokens = entry.tokens if isinstance(entry, _RankedLine) else None
    if tokens is None:
        tokens = sum(count_tokens(talk.turns[turn].line + "\n") for turn in _turns_of(sources, talk))
    return RankedItem("+".join(sources), tuple(sources), tokens)


def _turns_of(sources: Sequence[str], talk: Conversation) -> list[str]:
    """List turns, and all turns of the sessions that are named."""
    return [
        turn_id
        for source in sources
        for turn_id in ([source] if source in talk.turns else talk.turns)
        if source in (turn_id, talk.turn_group(turn_id))
    ]
