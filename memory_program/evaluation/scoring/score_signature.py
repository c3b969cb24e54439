"""The identity of systems and judges: whatever their records depend on."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from locomo.atomic_files import atomic_write_text
from locomo.judge.rubrics import NUGGETS, Rubric, RubricName, is_graded, select_grading
from locomo.nugget_scores import list_nugget_gradings
from locomo.types import Conversation, Question
from memory_program.agents.program import MemorySystem, writer_state
from memory_program.configs.endpoints import Role, server_address
from memory_program.configs.evaluate_config import EvaluateConfig, SystemName
from memory_program.configs.groups import ReplyOptions
from memory_program.core.errors import RecordError
from memory_program.core.hashing import RECORD_VERSION, content_hash
from memory_program.core.json_files import Json
from memory_program.evaluation.judge_program import load_judge_program, make_judges
from memory_program.evaluation.seen_data import OptimizationData
from memory_program.models.factory import takes_chat_template
from memory_program.models.model_names import model_fingerprint
from memory_program.models.reply_settings import ReplyFormat

BUILD_SETTINGS = ("build", "memory_budget", "max_turns", "writer_mode")
"""The settings that change the banks; the others only change the answers."""

REPLY_SETTINGS = ("reply_format", "max_reply_tokens", "chat_template_kwargs", "grounding_check")
"""Settings of replies, which change banks and answers; only those that are not the default are recorded."""


@dataclass(frozen=True, slots=True)
class SystemIdentity:
    """A system with its settings and models.

    ``build`` is a hash of everything that its banks depend on, ``answer`` of everything that its answers
    depend on besides the bank and the question. The address of a server is part of neither: a model is known
    by its name, and by its weights if they are on this disk. ``written_by`` and ``read_by`` are the
    fingerprints of ``writer`` and ``reader`` at the time (see ``model_fingerprint``), since weights change
    under a name. Older runs have None.
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
        """Hash everything that the bank of a conversation depends on."""
        return content_hash("build", self.build, conversation.fingerprint)

    def namespace(self, conversation: Conversation) -> str:
        """Return the namespace of a bank; another run shares it only if its bank would be the same."""
        return f"{self.build_key(conversation)[:12]}/{conversation.conversation_id}"

    def session_key(self, conversation: Conversation, session_id: str) -> str:
        """Return the key of the record of a session."""
        return content_hash(self.build_key(conversation), session_id)

    def answer_key(self, question: Question, bank: str) -> str:
        """Return the key of the record of an answer, given the hash of its bank."""
        return content_hash("answer", self.answer, bank, question.question_id, question.dated_text)


def identify_system(system: MemorySystem, name: SystemName, config: EvaluateConfig) -> SystemIdentity:
    """Describe a system that was made from a config."""
    state = system.dump_state()
    search = config.search.for_records()
    settings = {**config.system.for_records(), **search, "build": config.build}
    if name is SystemName.FULL_CONTEXT and config.system.reader.full_context_tokens is not None:
        settings["full_context_tokens"] = config.system.reader.full_context_tokens
    if config.checks_answerability(name):
        settings["answerability_check"] = True
    if not config.shows_turns(name):
        settings.pop("add_dates", None)  # it changes nothing
    settings.pop("reply_format", None)  # what was chosen counts, whether by the flag or not
    if system.reply_formats not in ("", ReplyFormat.CHAT):  # no agent, or the format of version 0.1
        settings["reply_format"] = system.reply_formats
    writer = config.writer_model_for(name)
    if writer is not None and config.writer_temperature is not None:
        settings["writer_temperature"] = config.writer_temperature
    reader = config.reader_model_for(name)
    known_writer, known_reader = (
        None if model is None else model_fingerprint(model) for model in (writer, reader)
    )
    written_with = (
        known_writer,
        settings.get("writer_temperature", config.temperature),
        [settings[key] for key in BUILD_SETTINGS]
        + [{key: settings[key]} for key in REPLY_SETTINGS if key in settings and key != "reply_format"]
        + ([search] if search else []),  # writers are shown memories that a search found
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
    """The rubric whose prompts were optimised, their hash, and the questions that they were optimised on."""

    rubric: str
    prompts: str
    made_on: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JudgeIdentity:
    """The judge of a run: its model, and for each rubric the hashes of its prompts, by their grading.

    ``judged_by`` is the fingerprint of the model at the time (see ``model_fingerprint``); None in older runs.
    ``settings`` has the limit of its replies and the arguments of its chat template, where they are set.
    """

    model: str
    rubrics: dict[str, dict[str, str]]
    optimized: OptimizedRubric | None = None
    judged_by: str | None = None
    settings: dict[str, Any] = field(default_factory=dict[str, Any])  # Any: JSON

    @property
    def judge_model_id(self) -> str:
        """The model's name, with a hash of its weights if they are on this disk."""
        return self.judged_by or model_fingerprint(self.model)

    @property
    def name(self) -> str:
        """The name of the judge in tables and signatures: its model, and a hash of optimised prompts."""
        program = self.optimized
        prompts = "" if program is None else f"+{program.rubric}@{program.prompts[:8]}"
        return f"{self.judge_model_id}{prompts}"

    def questions_seen(self, rubric: str) -> tuple[str, ...]:
        """List the calibration questions that the prompts of a rubric were optimised on."""
        program = self.optimized
        return program.made_on if program is not None and program.rubric == rubric else ()

    def is_same_judge(self, other: "JudgeIdentity", rubric: str) -> bool:
        """Return True if both judge a rubric with the same model and the same prompts."""
        ours, theirs = ((one.judge_model_id, one.settings, one.rubrics[rubric]) for one in (self, other))
        return ours == theirs

    def calls(self, question: Question) -> list[tuple[RubricName, int | None]]:
        """List the calls that judge one answer: a rubric, and the nugget if the rubric has several."""
        gradings = list_nugget_gradings(question)
        if gradings:
            return [(NUGGETS, nugget) for nugget in range(len(gradings))] if NUGGETS in self.rubrics else []
        return [(Rubric(name), None) for name in self.rubrics if name != NUGGETS and is_graded(question)]

    def key(self, rubric: str, question: Question, prediction: str, nugget: int | None = None) -> str:
        """Return the key of the record of a verdict, or of what was found about a nugget."""
        settings = [self.settings] if self.settings else []  # older keys have none
        if nugget is not None:
            grading = list_nugget_gradings(question)[nugget].value
            prompt = (self.judge_model_id, rubric, self.rubrics[rubric][grading], *settings)
            asked = (question.question_id, question.text, question.answer, question.nuggets, nugget)
            return content_hash("judge", prompt, *asked, prediction)
        grading = select_grading(question).value
        prompt = (self.judge_model_id, rubric, self.rubrics[rubric][grading], *settings)
        return content_hash("judge", prompt, question.question_id, question.text, question.answer, prediction)


def identify_judge(config: EvaluateConfig) -> JudgeIdentity | None:
    """Describe the judge of a config; None if it has none.

    Raises:
        ConfigError: the file of its optimised prompts cannot be used.
    """
    if config.judge is None:
        return None
    prompts = {
        str(rubric): {
            grading.value: content_hash(judge.dump_state()) for grading, judge in judges.by_grading.items()
        }
        for rubric, judges in make_judges(config).items()
    }
    program = load_judge_program(config)
    optimized = None
    if program is not None:
        rubric = program.rubric.value
        optimized = OptimizedRubric(rubric, content_hash(prompts[rubric]), program.optimized_on)
    address = server_address(config, Role.JUDGE)
    settings = judge_reply_settings(config.system.replies, config.judge, address)
    return JudgeIdentity(config.judge, prompts, optimized, model_fingerprint(config.judge), settings)


def judge_reply_settings(replies: ReplyOptions, judge: str, address: str | None) -> Json:
    """Return the settings of replies that a judge's verdicts depend on, where they are set."""
    settings: Json = {}
    if replies.max_reply_tokens is not None:
        settings["max_reply_tokens"] = replies.max_reply_tokens
    if replies.chat_template_kwargs and takes_chat_template(judge, address):
        settings["chat_template_kwargs"] = replies.chat_template_kwargs
    return settings


@dataclass(frozen=True, slots=True)
class SystemRun:
    """The identity of a system's records in a folder: enough to find them again without a model."""

    system: SystemIdentity
    judge: JudgeIdentity | None = None
    chosen_on: OptimizationData | None = None


_RUN = TypeAdapter(SystemRun)
_FILE = "run.json"


def write_run(folder: Path, run: SystemRun) -> None:
    """Write the identity of the records in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    atomic_write_text(folder / _FILE, f"{_RUN.dump_json(run, indent=1).decode()}\n")


def has_run(folder: Path) -> bool:
    """Tell if ``write_run`` wrote a file there."""
    return (folder / _FILE).exists()


def read_run(folder: Path) -> SystemRun:
    """Read the identity of the records in a folder.

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
