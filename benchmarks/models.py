"""Compare language models and reply formats on a few fixed sessions: run it to choose a model.

Each model writes the memories of the first sessions of a conversation in each format, as specialists or as a
generalist, and then answers questions about the conversation from retrieved turns. A table counts the calls
whose replies could be read, the tool calls that were refused, repaired or repeated, and the memories that
were invented. Nothing is recorded.

Run it with ``python benchmarks/models.py --help``. For example, for a model behind a server of your own::

    python benchmarks/models.py --models openai/qwen --api-base http://127.0.0.1:8000/v1 --data locomo10.json
"""

import sys
import time
from dataclasses import dataclass
from functools import partial
from typing import get_args

import dspy
from pydantic import Field
from rich import box
from rich.console import Console
from rich.table import Table

from locomo.metrics import locomo_f1
from locomo.types import Conversation
from memory_program.agents.systems import make_system
from memory_program.bank.outcomes import Outcome, SessionRecord
from memory_program.bank.space import MemorySpace
from memory_program.configs.groups import DataSettings, SystemSettings, WriterMode
from memory_program.core.command_line import parse_flags, run_script
from memory_program.core.errors import ConfigError
from memory_program.core.parallel import run_parallel
from memory_program.core.settings import Settings, check_choices, split_list
from memory_program.evaluation.datasets import load_dataset
from memory_program.inference.vllm_server import stop_servers
from memory_program.models.factory import AdaptiveLimiter, check_model, language_model
from memory_program.models.local_model import LocalModel
from memory_program.models.reply_settings import ReplyFormat, ReplySettings, most_reply_tokens
from memory_program.models.usage import UsageMeter, track_usage


class Benchmark(Settings):
    """Compare language models and reply formats on a few sessions and questions of one conversation."""

    models: str
    """Models to compare, separated by commas, by any names that evaluate.py takes."""

    formats: str = "chat,json,tools"
    """Reply formats to compare, separated by commas."""

    api_base: str | None = None
    """Address of the models' server, if they have one of their own."""

    source: DataSettings = DataSettings(dataset="locomo")

    conversation: str | None = None
    """Id of the conversation; the first one if not given."""

    writer_modes: str = "specialists"
    """Writers to compare, separated by commas: specialists, generalist."""

    sessions: int = Field(default=3, ge=0)
    """Number of sessions to write the memories of."""

    questions: int = Field(default=20, ge=0)
    """Number of questions to answer from retrieved turns."""

    concurrency: int = Field(default=8, ge=1)
    """The most model calls in flight at once."""

    max_reply_tokens: int | None = Field(default=None, ge=1)
    """Most tokens of a reply, as in evaluate.py."""


@dataclass(frozen=True, slots=True)
class Written:
    """The sessions that a model wrote: their records, the calls, the seconds, and the memories."""

    records: list[SessionRecord]
    meter: UsageMeter
    seconds: float
    memories: list[str]

    def row(self) -> list[str]:
        """Write the counts as cells of the table."""
        usage, count = self.meter.usage, len(self.records)
        failed = [failure.outcome for record in self.records for failure in record.failures]
        calls = sum(record.tool_calls for record in self.records)
        refused = sum(len(record.tool_errors) for record in self.records)
        counts = [record.counts for record in self.records]
        return [
            str(usage.calls),
            f"{1 - len(failed) / max(1, usage.calls):.1%}",
            str(failed.count(Outcome.TRUNCATED)),
            str(calls),
            f"{refused / max(1, calls):.1%}",
            *(
                str(sum(getattr(one, name) for one in counts))
                for name in ("repaired", "duplicates", "invented", "copied")
            ),
            f"{len(self.memories) / count:.1f}",
            f"{usage.output_tokens / count:,.0f}",
            f"{self.seconds / count:.0f}",
        ]


def main() -> None:
    """Read the flags, measure each model in each format, and print the tables."""
    benchmark = parse_flags(Benchmark)
    formats = split_list(check_choices(benchmark.formats, "format", [one.value for one in ReplyFormat]))
    modes = split_list(check_choices(benchmark.writer_modes, "writer mode", get_args(WriterMode)))
    conversations = load_dataset(benchmark.source, 0).conversations
    named = [c for c in conversations if benchmark.conversation in (None, c.conversation_id)]
    if not named:
        known = ", ".join(c.conversation_id for c in conversations)
        raise ConfigError(f"unknown conversation {benchmark.conversation!r}: choose from {known}")
    talk = named[0]
    if benchmark.questions and not any(question.is_headline for question in talk.questions):
        raise ConfigError(
            f"conversation {talk.conversation_id!r} has no question with an answer: choose another "
            "--conversation, or give --questions 0"
        )
    console = Console() if sys.stdout.isatty() else Console(width=170)
    writer = _table(
        f"Writer: {benchmark.sessions} sessions of {talk.conversation_id}",
        "writer calls parsed cut tools refused repaired repeated invented copied "
        "memories/s tokens/s seconds/s",
    )
    reader = _table(
        f"Reader: retrieved turns, {benchmark.questions} questions", "F1 failures repaired tokens seconds"
    )
    for name in split_list(benchmark.models):
        limiter = AdaptiveLimiter(benchmark.concurrency)
        limit = most_reply_tokens(name, ReplySettings(max_tokens=benchmark.max_reply_tokens))
        lm = language_model(name, api_base=benchmark.api_base, max_tokens=limit, limiter=limiter)
        check_model(lm)
        for reply_format in formats:
            options = {"reply_format": reply_format, "max_reply_tokens": benchmark.max_reply_tokens}
            settings = SystemSettings(**options)
            for mode in modes if benchmark.sessions else ():
                by_mode = SystemSettings(**options, writer_mode=mode)
                written = write_sessions(talk, by_mode, lm, benchmark.sessions)
                _add_row(writer, name, reply_format, mode, *written.row())
                told = f"\n{name}, {reply_format}, {mode}: memories"
                print(told, *written.memories, sep="\n  ", file=sys.stderr)
            if benchmark.questions:
                _add_row(reader, name, reply_format, *answer_questions(talk, settings, lm, benchmark))
        # The next model needs the memory.
        if isinstance(lm.engine, LocalModel):
            lm.engine.local.close()
        stop_servers()
    for table in (writer, reader):
        if table.rows:
            console.print(table)


def _add_row(table: Table, *cells: str) -> None:
    """Add a row, and show it at once: the tables come when all models are measured."""
    table.add_row(*cells)
    print(*cells, sep="  ", file=sys.stderr, flush=True)


def write_sessions(talk: Conversation, settings: SystemSettings, lm: dspy.LM, count: int) -> Written:
    """Let a model write the first sessions of a conversation into an empty bank."""
    program = make_system("memory", settings, writer_lm=lm, reader_lm=lm)
    space, began = MemorySpace(talk.conversation_id), time.perf_counter()
    records: list[SessionRecord] = []
    with track_usage() as meter:
        for session in talk.sessions[:count]:
            records.append(program.remember(space, session))
            print(f"{lm.model}: {session.session_id}: {records[-1]}", file=sys.stderr)
    core = [f"core: {line}" for line in space.bank.core.splitlines()]
    memories = [f"{memory.kind}: {memory.line}" for memory in space.bank.live()]
    return Written(records, meter, time.perf_counter() - began, core + memories)


def answer_questions(
    talk: Conversation, settings: SystemSettings, lm: dspy.LM, benchmark: Benchmark
) -> list[str]:
    """Let a model answer questions from the turns that retrieval finds; return the cells of the table."""
    system = make_system("rag", settings, reader_lm=lm)
    space = MemorySpace(talk.conversation_id)
    for session in talk.sessions:
        system.remember(space, session)
    asked = [question for question in talk.questions if question.is_headline]
    asked, began = asked[: benchmark.questions], time.perf_counter()
    with track_usage() as meter:
        answers = run_parallel(
            [partial(system.ask, space, q.dated_text) for q in asked], benchmark.concurrency
        )
    scores = [
        locomo_f1(answer.text, question.answer, question.f1_category)
        for question, answer in zip(asked, answers, strict=True)
        if answer.outcome is Outcome.OK
    ]
    return [
        f"{sum(scores) / max(1, len(scores)):.3f}",
        str(len(asked) - len(scores)),
        str(sum(answer.repaired for answer in answers)),
        f"{meter.usage.output_tokens / len(asked):.0f}",
        f"{(time.perf_counter() - began) / len(asked):.1f}",
    ]


def _table(title: str, columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("model")
    table.add_column("format")
    for name in columns.split():
        table.add_column(name.replace("/s", "/session"), justify="right")
    return table


if __name__ == "__main__":
    sys.exit(run_script(main))
