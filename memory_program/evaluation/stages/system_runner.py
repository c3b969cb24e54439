"""A system of a run: made from the config, with the stages that build its memories and ask it questions."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from memory_program.agents.baselines.reader_only import ReaderOnly
from memory_program.agents.model_prompts import load_model_prompts
from memory_program.agents.program import MemoryProgram, MemorySystem, saved_reply_format
from memory_program.agents.systems import load_program, set_models
from memory_program.bank.dense import DenseIndex
from memory_program.bank.store import BankStore
from memory_program.configs.endpoints import Role
from memory_program.configs.evaluate_config import EvaluateConfig, Mode, SystemName
from memory_program.configs.groups import SystemSettings
from memory_program.core.errors import ConfigError, RecordError
from memory_program.core.json_files import read_run_file
from memory_program.evaluation.item_records import Journals
from memory_program.evaluation.question_selection import Selection
from memory_program.evaluation.role_models import RoleModels
from memory_program.evaluation.scoring.score_signature import (
    SystemRun,
    identify_judge,
    identify_system,
    read_run,
    write_run,
)
from memory_program.evaluation.scoring.system_records import SystemRecords
from memory_program.evaluation.seen_data import read_seen_data
from memory_program.evaluation.stages.answer_stage import Answerer
from memory_program.evaluation.stages.build_stage import Builder
from memory_program.evaluation.stages.cost_estimate import (
    StageEstimate,
    estimate_answers,
    estimate_build,
    estimate_judgements,
)
from memory_program.evaluation.stages.judge_stage import unjudged_answers
from memory_program.evaluation.stages.ray_executor import RayExecutor
from memory_program.evaluation.stages.ray_system import RemoteSystem
from memory_program.models.reply_settings import ReplyFormat

SystemFactory = Callable[[str, SystemSettings], MemorySystem]
"""Makes the system of a name and settings, without its models."""

FormatChoice = Callable[[str, str], ReplyFormat]
"""Returns the reply format of a part (``writer``) and its model, which has no saved program."""

_WRITER_NOTE = "writer:"
"""Keys of the notes in a database that name the model of its banks begin with this."""


class SystemRunner:
    """A system with its records, its ``builder`` and its ``answerer``, which do what the records lack."""

    def __init__(
        self,
        name: SystemName,
        config: EvaluateConfig,
        selection: Selection,
        make_system: SystemFactory,
        store: BankStore | None,
        others: Sequence[SystemRecords] = (),
        executor: RayExecutor | None = None,
        default_format: FormatChoice | None = None,
        dense: DenseIndex | None = None,
    ) -> None:
        """Make the system, without models, and read its records.

        Args:
            name: the system.
            config: the settings of the run.
            selection: the conversations and questions.
            make_system: makes the system.
            store: the database of the banks; None if no system of the run has any.
            others: systems of the run that may share its banks.
            executor: runs sessions and questions on a cluster; None runs them in this process.
            default_format: returns the reply format of a part (``writer``) whose model has no saved program;
                None is chat.
            dense: the dense index of spaces that are not in the store.

        Raises:
            ConfigError: the saved program does not fit this system.
            RecordError: a file of records is damaged.
            StoreError: the database cannot be read.
        """
        folder = config.output_dir / name.value
        writers: list[str] = []
        if config.mode is Mode.ANSWER and store is not None and name.has_model_writer:
            writers = list_bank_writers(store, folder)
            config = _with_bank_writer(name, config, selection, make_system, store, writers)
        self._name, self._config, self._store = name, config, store
        self._system = _make_system(name, config, make_system)
        journals = Journals.read(folder)
        models = self._choose_formats(selection, journals, default_format)
        if config.mode is Mode.FULL:
            judge = identify_judge(config)
        else:  # a run of one stage keeps the judge that it had
            try:
                judge = read_run(folder).judge
            except RecordError:
                judge = None
        seen = read_seen_data(
            selection.dataset.sha256,
            selection.conversations,
            programs=[config.program] if config.program and name is SystemName.OPTIMIZED else [],
            models=[model for model in models.values() if model is not None],
        )
        run = SystemRun(identify_system(self._system, name, config), judge, seen)
        self.recorded = SystemRecords(folder, run, journals, selection)
        runs = self._system
        if executor is not None:  # the tasks of a cluster together keep to the limit of calls in flight
            builds_at_once = min(config.concurrency, len(selection.conversations))
            runs = RemoteSystem(self._system, executor, config.concurrency // builds_at_once)
        banks, retry_errors = (store if self._system.writes_memories else None), config.retry_errors
        self.builder = Builder(
            runs, self.recorded, banks, others, order=config.build, retry_errors=retry_errors, dense=dense
        )
        self.answerer = Answerer(
            runs, self.recorded, self.builder, retry_errors=retry_errors, writers=writers
        )

    def _choose_formats(
        self, selection: Selection, journals: Journals, default_format: FormatChoice | None
    ) -> dict[str, str | None]:
        """Choose the reply format of each part, and return the models of the parts."""
        name, config, store = self._name, self._config, self._store
        folder = config.output_dir / name.value
        models = {"writer": config.writer_model_for(name), "reader": config.reader_model_for(name)}
        recorded = _recorded_formats(folder, models)
        if not journals.answers.records:
            recorded.pop("reader", None)
        # a build asks no reader, so its run says nothing of one, unless there are answers to be kept
        if config.mode is Mode.BUILD and "reader" not in recorded:
            models["reader"] = None
        if config.mode is Mode.ANSWER and store is not None and name.has_model_writer:
            of_banks = _find_bank_format(self._system, name, config, selection, store)
            recorded["writer"] = of_banks or recorded.get("writer", ReplyFormat.CHAT)
        self.format_lines = self._system.choose_reply_formats(
            config.system.replies.reply_format,
            models,
            lambda part, model: (
                recorded.get(part) or (default_format(part, model) if default_format else ReplyFormat.CHAT)
            ),
        )
        return models

    def write_run_files(self) -> None:
        """Write the identity of the run and the program into the folder of the records.

        The database is told which model writes, so that another run can answer from the banks.
        """
        write_run(self.recorded.folder, self.recorded.run)
        identity = self.recorded.run.system
        if self._store is not None and self._config.mode is not Mode.ANSWER and identity.writer is not None:
            self._store.add_note(f"{_WRITER_NOTE}{identity.build[:40]}", identity.writer)
        self._system.save(str(self.recorded.folder / "program.json"))

    def estimate_calls(self) -> list[StageEstimate]:
        """Estimate the calls that are still to be made.

        A bank that changes has all its questions asked and judged again.
        """
        config, conversations = self._config, self.recorded.selection.conversations
        questions, judge = self.answerer.missing(), self.recorded.run.judge
        rebuilt = self.builder.conversations_to_build()
        known = {question.question_id for question in questions}
        questions += [
            question
            for question in self.recorded.selection.questions
            if question.conversation_id in rebuilt and question.question_id not in known
        ]
        estimates: list[StageEstimate | None] = []
        if config.mode is not Mode.ANSWER:
            sessions = 0 if self.builder.shares_banks else self.builder.count_missing()
            estimates.append(estimate_build(config, self._name, conversations, sessions))
        if config.mode is not Mode.BUILD:
            estimates.append(estimate_answers(config, self._name, conversations, len(questions)))
        if config.mode is Mode.FULL and judge is not None:
            cases = unjudged_answers(self.recorded, retry_errors=config.retry_errors)
            count = len(cases) + sum(len(judge.calls(q)) for q in questions if q.is_headline)
            estimates.append(estimate_judgements(config, self._name, count))
        return [estimate for estimate in estimates if estimate is not None]

    @property
    def is_finished(self) -> bool:
        """True if every session is built, every question answered, and every answer judged."""
        unjudged = unjudged_answers(self.recorded, retry_errors=self._config.retry_errors)
        return not (self.builder.count_missing() or self.answerer.missing() or unjudged)

    def attach_models(self, models: RoleModels, to_call: Sequence[StageEstimate]) -> None:
        """Give the system the models that it calls in this run, so that an unusable one ends the run now.

        Raises:
            ModelError: a model cannot be used as named, or does not answer.
        """
        system, temperature = self.recorded.run.system, self._config.temperature
        writer_temperature = system.settings.get("writer_temperature", temperature)
        stages = {estimate.stage for estimate in to_call}
        writer = system.writer if "build" in stages else None
        reader = system.reader if "answer" in stages else None
        set_models(
            self._system,
            writer_lm=models(Role.WRITER, writer, writer_temperature) if writer is not None else None,
            reader_lm=models(Role.READER, reader, temperature) if reader is not None else None,
        )


def list_bank_writers(store: BankStore, folder: Path) -> list[str]:
    """List the models that wrote banks of a database, as its notes or the folder of a system say."""
    writers = set(store.notes(_WRITER_NOTE).values())
    with suppress(RecordError):  # an older database has no notes
        writers.add(read_run(folder).system.writer or "")
    return sorted(writers - {""})


def _make_system(name: SystemName, config: EvaluateConfig, make_system: SystemFactory) -> MemorySystem:
    """Make a system with the prompts of its models and of its program, without the models."""
    system = make_system(name.value, config.system)
    load_model_prompts(system, writer=config.writer_model_for(name), reader=config.reader_model_for(name))
    if config.program is not None and name is SystemName.OPTIMIZED:
        load_program(system, config.program)
    if config.checks_answerability(name):
        assert isinstance(system, MemoryProgram | ReaderOnly), "every system with a reader is one of the two"
        system.reader.checks_answerability = True
    return system


def _with_bank_writer(
    name: SystemName,
    config: EvaluateConfig,
    selection: Selection,
    make_system: SystemFactory,
    store: BankStore,
    writers: Sequence[str],
) -> EvaluateConfig:
    """Name the writer of the banks that fit a config which names none.

    Raises:
        ConfigError: banks of several writers fit.
        RecordError: no bank fits.
    """
    is_named = config.writer_model is not None or config.model is not None
    if is_named or config.writer_model_for(name) != config.writer:  # weights beside a program write for it
        return config
    fitting = list[str]()
    for writer in writers:
        candidate = config.replace(writer_model=writer)
        system = _make_system(name, candidate, make_system)
        if _find_bank_format(system, name, candidate, selection, store) is not None:
            fitting.append(writer)
    if len(fitting) == 1:
        return config.replace(writer_model=fitting[0])
    if fitting:
        raise ConfigError(
            f"the banks of these conversations were written by {' and by '.join(map(repr, fitting))}: name "
            "one with --writer-model"
        )
    if config.writer is not None:
        return config
    there = f", though there are banks of {' and '.join(map(repr, writers))}" if writers else ""
    raise RecordError(
        f"no bank fits these conversations and settings of system {name.value!r}{there}: run --mode build "
        "first, or repeat the flags of the build (--db-url, --temperature, --writer-temperature, "
        "--memory-budget, ...)"
    )


def _find_bank_format(
    system: MemorySystem, name: SystemName, config: EvaluateConfig, selection: Selection, store: BankStore
) -> ReplyFormat | None:
    """Find the format in which the banks of a database were written, without a call; None if none fits."""
    if not isinstance(system, MemoryProgram):  # a writer of another kind has no format
        return None
    saved, before = set(store.namespaces()), system.writer.replies
    try:
        for reply_format in ReplyFormat:
            system.writer.replies = replace(before, format=reply_format)
            identity = identify_system(system, name, config)
            if any(identity.namespace(conversation) in saved for conversation in selection.conversations):
                return reply_format
    finally:
        system.writer.replies = before
    return None


def _recorded_formats(folder: Path, models: Mapping[str, str | None]) -> dict[str, ReplyFormat]:
    """Read the formats of a run that is continued: its endpoints need not be asked again."""
    try:
        run = read_run(folder).system
        state = read_run_file(folder / "program.json", "the run writes it again")
    except (RecordError, OSError):
        return {}
    made_with = {"writer": run.writer, "reader": run.reader}
    return {
        part: saved_reply_format(state, part)
        for part, model in models.items()
        if model is not None and model == made_with[part]
    }
