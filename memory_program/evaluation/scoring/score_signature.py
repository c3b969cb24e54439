"""What a system is, as far as its records depend on it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from locomo.atomic_files import atomic_write_text
from locomo.judge.judge import Judges
from locomo.judge.rubrics import Rubric, select_grading
from locomo.types import Conversation, Question
from memory_program.agents.program import MemorySystem, writer_state
from memory_program.configs.evaluate_config import EvaluateConfig, SystemName
from memory_program.core.errors import RecordError
from memory_program.core.hashing import RECORD_VERSION, content_hash
from memory_program.evaluation.judge_program import load_judge_program, make_judges
from memory_program.models.model_names import model_fingerprint

BUILD_SETTINGS = ("build", "memory_budget", "max_turns", "writer_mode")
"""The settings that change what is written; the others only change how it is read."""


@dataclass(frozen=True, slots=True)
class SystemIdentity:
    """A system under its settings and models.

    ``build`` is a hash of what its banks depend on, ``answer`` of what its answers depend on besides the
    bank and the question. The address of a server is part of neither: a model is known by its name, and one
    whose weights are on this disk by those too. ``written_by`` and ``read_by`` are ``writer`` and ``reader``
    as they were known then (see ``model_fingerprint``): other weights may be under that name by now. Runs of before
    they were noted have None.
    """

    name: str
    writer: str | None
    reader: str | None
    temperature: float
    settings: dict[str, Any]  # Any: the JSON of SystemSettings
    program: str
    build: str
    answer: str
    written_by: str | None = None
    read_by: str | None = None

    def build_key(self, conversation: Conversation) -> str:
        """Hash what the bank of a conversation depends on."""
        return content_hash("build", self.build, conversation.fingerprint)

    def namespace(self, conversation: Conversation) -> str:
        """Name the bank of a conversation, such that no other run shares it unless it would be the same."""
        return f"{self.build_key(conversation)[:12]}/{conversation.conversation_id}"

    def session_key(self, conversation: Conversation, session_id: str) -> str:
        """Name the record of a session."""
        return content_hash(self.build_key(conversation), session_id)

    def answer_key(self, question: Question, bank: str) -> str:
        """Name the record of an answer, given the hash of the bank that it comes from."""
        return content_hash("answer", self.answer, bank, question.question_id, question.dated_text)


def identify_system(system: MemorySystem, name: SystemName, config: EvaluateConfig) -> SystemIdentity:
    """Describe a system that was made from a config."""
    state = system.dump_state()
    settings = {**config.system.for_records(), "build": config.build}
    writer = config.writer_model_for(name)
    reader = config.reader if name.has_model_reader else None
    known_writer, known_reader = (
        None if model is None else model_fingerprint(model) for model in (writer, reader)
    )
    written_with = (
        known_writer,
        config.temperature,
        [settings[key] for key in BUILD_SETTINGS],
        writer_state(state),
    )
    # a program in which only the reader was optimised shares the banks of the memory system
    written_as = SystemName.MEMORY if name.has_model_writer else name
    build = content_hash(RECORD_VERSION, written_as.value, written_with if system.writes_memories else None)
    return SystemIdentity(
        name=name.value,
        writer=writer,
        reader=reader,
        temperature=config.temperature,
        settings=settings,
        program=content_hash(state),
        build=build,
        answer=content_hash(build, known_reader, config.temperature, settings, state),
        written_by=known_writer,
        read_by=known_reader,
    )


@dataclass(frozen=True, slots=True)
class OptimizedRubric:
    """The rubric whose prompts were optimised, their hash, and the questions that they were made on."""

    rubric: str
    prompts: str
    made_on: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JudgeIdentity:
    """The judge of a run: its model, and for each rubric hashes of its prompts, by ``Grading``.

    ``judged_by`` is the model as it was known then (see ``model_fingerprint``); None in runs of before it was noted.
    """

    model: str
    rubrics: dict[str, dict[str, str]]
    optimized: OptimizedRubric | None = None
    judged_by: str | None = None

    @property
    def judge_model_id(self) -> str:
        """The model, with a hash of its weights if they are on this disk."""
        return self.judged_by or model_fingerprint(self.model)

    @property
    def name(self) -> str:
        """What it is known by, and which optimised prompts it has."""
        program = self.optimized
        return (
            self.judge_model_id
            if program is None
            else f"{self.judge_model_id}+{program.rubric}@{program.prompts[:8]}"
        )

    def questions_seen(self, rubric: str) -> tuple[str, ...]:
        """List the built-in questions that the prompts of a rubric were optimised on."""
        program = self.optimized
        return program.made_on if program is not None and program.rubric == rubric else ()

    def is_same_judge(self, other: "JudgeIdentity", rubric: str) -> bool:
        """Whether both judge a rubric by the same model and the same prompts."""
        return self.judge_model_id == other.judge_model_id and self.rubrics[rubric] == other.rubrics[rubric]

    def key(self, rubric: str, question: Question, prediction: str) -> str:
        """Name the record of a verdict."""
        prompt = (self.judge_model_id, rubric, self.rubrics[rubric][select_grading(question).value])
        return content_hash("judge", prompt, question.question_id, question.text, question.answer, prediction)


def identify_judge(config: EvaluateConfig) -> JudgeIdentity | None:
    """Describe the judge of a config; None if it names no model for one.

    Raises:
        ConfigError: the file of its optimised prompts cannot be used.
    """
    if config.judge is None:
        return None
    prompts = {rubric: _prompts(judges) for rubric, judges in make_judges(config).items()}
    return JudgeIdentity(
        config.judge,
        {rubric.value: hashes for rubric, hashes in prompts.items()},
        _find_optimized_rubric(config, prompts),
        model_fingerprint(config.judge),
    )


def _prompts(judges: Judges) -> dict[str, str]:
    return {grading.value: content_hash(judge.dump_state()) for grading, judge in judges.by_grading.items()}


def _find_optimized_rubric(
    config: EvaluateConfig, prompts: Mapping[Rubric, Mapping[str, str]]
) -> OptimizedRubric | None:
    program = load_judge_program(config)
    if program is None:
        return None
    return OptimizedRubric(program.rubric.value, content_hash(prompts[program.rubric]), program.optimized_on)


@dataclass(frozen=True, slots=True)
class OptimizationData:
    """What the prompts of a saved program were made and chosen on: conversations of a file with this hash."""

    sha256: str
    conversations: tuple[str, ...]


def read_optimization_data(program: Path) -> OptimizationData | None:
    """Read what the prompts of a saved program were made and chosen on; None if it does not say."""
    try:
        told = json.loads(program.read_text(encoding="utf-8"))["metadata"]["optimization"]["dataset"]
        return OptimizationData(str(told["sha256"]), (*map(str, told["train"]), *map(str, told["val"])))
    except (ValueError, KeyError, TypeError):  # saved by hand
        return None


@dataclass(frozen=True, slots=True)
class SystemRun:
    """What the folder of a system belongs to: enough to find its records again without a model."""

    system: SystemIdentity
    judge: JudgeIdentity | None = None
    chosen_on: OptimizationData | None = None


_RUN = TypeAdapter(SystemRun)
_FILE = "run.json"


def write_run(folder: Path, run: SystemRun) -> None:
    """Write down what the records in a folder belong to."""
    folder.mkdir(parents=True, exist_ok=True)
    atomic_write_text(folder / _FILE, f"{_RUN.dump_json(run, indent=1).decode()}\n")


def read_run(folder: Path) -> SystemRun:
    """Read what the records in a folder belong to.

    Raises:
        RecordError: nothing was recorded there, or the file is not one that ``write_run`` wrote.
    """
    path = folder / _FILE
    try:
        return _RUN.validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise RecordError(
            f"no run is recorded in {str(folder)!r}: run --mode full (or build and answer) there first, or "
            "name the folder of another run with --output-dir"
        ) from error
    except ValueError as error:
        raise RecordError(
            f"{str(path)!r} does not describe a run ({error}): run --mode full again; records are kept"
        ) from error
