"""Answers and rankings of systems from elsewhere, scored as those of a run: ``memory-program score``."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from locomo.types import Conversation, Question, evidence_group
from memory_program.bank.budget import count_tokens
from memory_program.bank.outcomes import Answer, Outcome, RankedItem
from memory_program.configs.evaluate_config import EvaluateConfig, Mode
from memory_program.configs.score_config import ScoreConfig
from memory_program.core.errors import RecordError
from memory_program.core.json_files import Json, write_json
from memory_program.evaluation.console import make_console, print_plain
from memory_program.evaluation.item_records import AnswerRecord
from memory_program.evaluation.question_selection import Selection, load_selection
from memory_program.evaluation.report.report_page import REPORT_FILE, ReportedRun, write_html_report
from memory_program.evaluation.report.results_json import (
    EVALUATION_RESULTS_FILE,
    build_evaluation_results,
    write_question_results,
)
from memory_program.evaluation.report.score_tables import print_results
from memory_program.evaluation.report.write_reports import report_runs
from memory_program.evaluation.scoring.bank_growth import system_retained_turns
from memory_program.evaluation.scoring.error_types import diagnose
from memory_program.evaluation.scoring.question_scores import score_question
from memory_program.evaluation.scoring.score_signature import SystemIdentity, SystemRun
from memory_program.evaluation.scoring.system_records import ScoredSystem
from memory_program.models.usage import Usage

_EXAMPLE = '{"question_id": "conv-26:q0", "answer": "...", "ranking": ["D1:3"]}'

_Count = Annotated[int, Field(ge=0)]
_Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _RankedLine(BaseModel):
    """A ranked memory: the turns that it comes from, and its size."""

    model_config = ConfigDict(extra="forbid", strict=True)

    sources: list[str]
    tokens: _Count | None = None


class _Line(BaseModel):
    """One line of a file."""

    model_config = ConfigDict(extra="forbid", strict=True)

    question_id: str
    answer: str | None = None
    ranking: list[str | list[str] | _RankedLine] | None = None
    error: str | None = None
    seconds: _Amount | None = None
    calls: _Count = 1
    input_tokens: _Count = 0
    output_tokens: _Count = 0
    cost_usd: _Amount | None = None

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
    scored = [_score_file(path, selection) for path in config.files]
    others = []
    if config.beside:
        others = report_runs(EvaluateConfig(mode=Mode.REPORT, runs=config.beside, mlflow=False), console)
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


def _score_file(path: Path, selection: Selection) -> ScoredSystem:
    """Read the lines of a system and score them."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise RecordError(f"cannot read {str(path)!r} ({error.strerror}): name a JSONL file") from error
    conversations = {c.conversation_id: c for c in selection.conversations}
    records, unscored = _read_lines(path, content, selection.questions, conversations)
    scored = []
    for question in selection.questions:
        item = score_question(question, records.get(question.question_id), {})
        if question.question_id in unscored:  # a ranking alone is no wrong answer
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
    return ScoredSystem(SystemRun(identity), tuple(scored), (), {}, diagnoses, ())


def _read_lines(
    path: Path, content: bytes, questions: Sequence[Question], conversations: Mapping[str, Conversation]
) -> tuple[dict[str, AnswerRecord], set[str]]:
    """Read the records of a file by question, and the questions that have a ranking and no answer."""
    known = {question.question_id: question for question in questions}
    for question in questions:  # LongMemEval has one question a history, known by the name of that
        if len(conversations[question.conversation_id].questions) == 1:
            known.setdefault(question.conversation_id, question)
    records: dict[str, AnswerRecord] = {}
    unscored = set[str]()
    for number, text in enumerate(content.decode("utf-8-sig", errors="replace").splitlines(), start=1):
        if not text.strip():
            continue
        place = f"{path.name}: line {number}"
        try:
            line = _Line.model_validate(json.loads(text))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the line"
            raise RecordError(f"{place}: {where}: {first['msg']}; expected {_EXAMPLE}") from error
        except (ValueError, RecursionError) as error:
            raise RecordError(f"{place}: is not JSON ({error}); expected {_EXAMPLE}") from error
        question = known.get(line.question_id)
        if question is None:
            raise RecordError(
                f"{place}: question_id={line.question_id!r} is none of the {len(questions)} questions "
                f"selected; expected ids like {questions[0].question_id!r}, or choose another --split"
            )
        if question.question_id in records:
            raise RecordError(
                f"{place}: question {question.question_id!r} has a line before; keep one of them"
            )
        ranked, talk = None, conversations[question.conversation_id]
        shown = tuple(talk.turns)  # without a ranking nobody knows what was left out
        if line.ranking is not None:
            ranked = tuple(_ranked_item(entry, talk, place) for entry in line.ranking)
            shown = tuple(item.item_id for item in ranked)
        outcome = Outcome.OK if line.error is None else Outcome.ERROR
        answer = Answer(line.answer or "", outcome, line.error or "", ranked, shown)
        if line.answer is None:
            unscored.add(question.question_id)
        usage = Usage(
            calls=line.calls,
            input_tokens=line.input_tokens,
            output_tokens=line.output_tokens,
            cost_usd=0.0 if line.cost_usd is None and line.error is not None else line.cost_usd,
            seconds=line.seconds or 0.0,
        )
        key = f"{path.name}:{number}"
        elapsed_s = math.nan if line.seconds is None else line.seconds  # unknown, and no latency of 0 s
        records[question.question_id] = AnswerRecord(key, question.question_id, answer, usage, elapsed_s)
    return records, unscored


def _ranked_item(entry: str | list[str] | _RankedLine, talk: Conversation, place: str) -> RankedItem:
    """Read an entry of a ranking; a turn without a size has that of its line."""
    sources = (
        entry.sources if isinstance(entry, _RankedLine) else [entry] if isinstance(entry, str) else entry
    )
    sessions = {evidence_group(turn_id) for turn_id in talk.turns}
    for source in sources:
        if source not in talk.turns and source not in sessions:
            raise RecordError(
                f"{place}: {source!r} is no turn and no session of {talk.conversation_id!r}; expected ids "
                f"like {next(iter(talk.turns))!r}"
            )
    tokens = entry.tokens if isinstance(entry, _RankedLine) else None
    if tokens is None:
        tokens = sum(count_tokens(talk.turns[turn].line + "\n") for turn in sources if turn in talk.turns)
    return RankedItem("+".join(sources), tuple(sources), tokens)
