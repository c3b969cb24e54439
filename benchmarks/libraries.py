"""mem0 and LangMem beside systems of this project: the same model, conversations, questions and reader.

Every call goes through a proxy that counts it, so that calls, failures and tokens of all systems are counted
in the same way. mem0 and LangMem write a session in one step and search by the embedding model. What they
find is read by this project's reader, under its limits of memories and tokens. Their answers, and the usage
of each session and question, are lines of a file that ``memory-program score`` reads; it makes the report.

Run it with ``python benchmarks/libraries.py --help``. For example, with a server of your own::

    python benchmarks/libraries.py --model openai/qwen --api-base http://127.0.0.1:8000/v1 --embedder local:E5
"""

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import dspy
from counting_proxy import CountingProxy, Traffic
from library_adapters import LIBRARIES, Endpoint, FoundMemory, Library
from pydantic import field_validator
from rich import box
from rich.console import Console
from rich.table import Table

from locomo.atomic_files import atomic_write_text
from locomo.types import Conversation, Question, Session
from memory_program.agents.baselines.reader_only import ReaderOnly
from memory_program.agents.context import RANKING_DEPTH, ReaderContext
from memory_program.agents.signatures import EMPTY_PLACEHOLDER
from memory_program.bank.budget import pack_to_budget
from memory_program.bank.dates.date_span import format_day
from memory_program.bank.outcomes import Outcome
from memory_program.bank.space import MemorySpace
from memory_program.configs.evaluate_config import NO_JUDGE, EvaluateConfig, SystemName
from memory_program.configs.groups import (
    Concurrency,
    Conversations,
    DataSettings,
    NumTest,
    ReplyOptions,
    RetrievalSettings,
)
from memory_program.configs.score_config import ScoreConfig
from memory_program.core.command_line import parse_flags, run_script
from memory_program.core.errors import ConfigError
from memory_program.core.json_files import Json, read_json_file, write_json
from memory_program.core.parallel import run_parallel
from memory_program.core.run_folder import EMBEDDINGS_FILE
from memory_program.core.settings import ApiBase, Settings, check_choices, split_list
from memory_program.evaluation.console import make_console, print_plain, print_table
from memory_program.evaluation.evaluation_run import evaluate
from memory_program.evaluation.foreign_systems import score_foreign_systems
from memory_program.evaluation.question_selection import load_selection
from memory_program.evaluation.report.results_json import EVALUATION_RESULTS_FILE
from memory_program.models.embedders import load_embedder
from memory_program.models.factory import AdaptiveLimiter, check_model, language_model
from memory_program.models.reply_settings import most_reply_tokens
from memory_program.models.response_formats import RESPONSE_FORMATS

_TRAFFIC_FILE, _SETTINGS_FILE = "traffic.json", "benchmark.json"
_OPENAI = "openai/"
_OWN = [name.value for name in SystemName if name not in (SystemName.OPTIMIZED, SystemName.EXTRACTIVE)]


class Benchmark(Settings):
    """Compare mem0 and LangMem with systems of this project: scores, calls, tokens and seconds."""

    model: str
    """Model of all systems, writer and reader: "openai/" and its name on the server. LangMem needs a server
    that answers with tool calls."""

    api_base: ApiBase
    """Address of the model's OpenAI-compatible server."""

    embedder: str
    """Embedding model that mem0 and LangMem search by, by any name that evaluate.py takes."""

    embedder_api_base: ApiBase | None = None
    """Address of the server of the embedding model; its calls are not counted."""

    systems: str = "memory,mem0,langmem"
    """Comma-separated systems: mem0, langmem, and those of evaluate.py."""

    source: DataSettings = DataSettings()

    conversations: Conversations

    num_test: NumTest

    retrieval: Literal["bm25", "hybrid", "dense"] = "bm25"
    """Ranking of this project's own systems. bm25 does without the embedding model."""

    replies: ReplyOptions = ReplyOptions()

    concurrency: Concurrency

    output_dir: Path = Path("runs/libraries")
    """Folder of the runs and the report. A system that is finished there is not run again."""

    @field_validator("model")
    @classmethod
    def _check_model(cls, value: str) -> str:
        if not value.removeprefix(_OPENAI) or not value.startswith(_OPENAI):
            raise ConfigError(f'model={value!r} must be "openai/" and the name of a model on --api-base')
        return value

    @field_validator("systems")
    @classmethod
    def _check_systems(cls, value: str) -> str:
        names = split_list(check_choices(value, "system", [*LIBRARIES, *_OWN]))
        if not LIBRARIES.keys() & names:
            raise ConfigError(
                f"systems={value!r} names neither mem0 nor langmem: evaluate.py compares the others"
            )
        missing = [
            module for name in names if name in LIBRARIES for module in LIBRARIES[name].missing_packages()
        ]
        if missing:
            raise ConfigError(f"not installed: {', '.join(missing)}; pip install 'memory-program[bench]'")
        return value


def main() -> None:
    """Read the flags, run each system, write the report, and print the table of their calls."""
    benchmark, console = parse_flags(Benchmark), make_console()
    out, names = benchmark.output_dir, split_list(benchmark.systems)
    for folder in (out / name for name in names):
        if folder.exists() and not (folder / _TRAFFIC_FILE).exists():
            raise ConfigError(
                f"{str(folder)!r} holds an unfinished run, whose calls cannot be counted any more: delete "
                "it, or choose another --output-dir"
            )
    out.mkdir(parents=True, exist_ok=True)
    check_settings(benchmark)
    with CountingProxy(benchmark.api_base) as proxy:
        for name in names:
            if (out / name / _TRAFFIC_FILE).exists():
                print_plain(console, f"{name}: finished before")
                continue
            if name in LIBRARIES:
                (out / name).mkdir()
                run_library(benchmark, name, proxy, console)
            else:
                evaluate(own_config(benchmark, name, proxy), console=console)
            stages = {stage: asdict(proxy.traffic(name, stage)) for stage in ("write", "answer")}
            write_json(out / name / _TRAFFIC_FILE, stages)
    shared = {"conversations": benchmark.conversations, "num_test": benchmark.num_test}
    libraries = [name for name in names if name in LIBRARIES]
    own = [name for name in names if name not in LIBRARIES]
    score_foreign_systems(
        ScoreConfig(
            **dict(benchmark.source),
            **shared,
            files=tuple(out / name / f"{name}.jsonl" for name in libraries),
            beside=tuple(out / name for name in own),
            output_dir=out,
        )
    )
    print_table(console, traffic_table(benchmark, names))


def check_settings(benchmark: Benchmark) -> None:
    """Record the settings that all systems share, or compare them with those of finished systems.

    Raises:
        ConfigError: they differ.
    """
    not_shared = {"systems", "output_dir", "concurrency", "api_base", "embedder_api_base"}
    settings = benchmark.model_dump(mode="json", exclude=not_shared)
    path = benchmark.output_dir / _SETTINGS_FILE
    has_finished = any(benchmark.output_dir.glob(f"*/{_TRAFFIC_FILE}"))
    recorded = read_json_file(path) if has_finished and path.exists() else settings
    differ = sorted(name for name in settings if settings[name] != recorded.get(name))
    if differ:
        raise ConfigError(
            f"{str(benchmark.output_dir)!r} was made with other settings ({', '.join(differ)}): choose "
            "another --output-dir"
        )
    write_json(path, settings)


def own_config(benchmark: Benchmark, name: str, proxy: CountingProxy) -> EvaluateConfig:
    """Return the settings of a run of one of this project's systems, through the proxy."""
    search: Json = {}
    if benchmark.retrieval != "bm25":
        search = {"embedder": benchmark.embedder, "embedder_api_base": benchmark.embedder_api_base}
    return EvaluateConfig(
        **dict(benchmark.source),
        **dict(benchmark.replies),
        **search,
        retrieval=benchmark.retrieval,
        conversations=benchmark.conversations,
        num_test=benchmark.num_test,
        systems=name,
        model=benchmark.model,
        judge_model=NO_JUDGE,
        writer_api_base=proxy.url(name, "write"),
        reader_api_base=proxy.url(name, "answer"),
        concurrency=benchmark.concurrency,
        output_dir=benchmark.output_dir / name,
        mlflow=False,
    )


# -- mem0 and LangMem ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LibraryContext:
    """The context of the reader: the memories that a library finds, the best last, each before its day."""

    library: Library
    limits: RetrievalSettings

    def build(self, space: MemorySpace, queries: Sequence[str]) -> ReaderContext:
        """Search the library, and pack; the space is empty. ``shown`` has the memories' lines."""

        def line(found: FoundMemory) -> str:
            return f"{' '.join(found.text.split())} [{format_day(found.day)}]"

        found = [line(one) for one in self.library.search(queries[0], RANKING_DEPTH)]
        packed = pack_to_budget(found[: self.limits.top_k], self.limits.reader_budget)
        memories = "\n".join(reversed(packed.kept)) or EMPTY_PLACEHOLDER
        return ReaderContext(memories=memories, shown=tuple(packed.kept), tokens=packed.tokens)


def run_library(benchmark: Benchmark, name: str, proxy: CountingProxy, console: Console) -> None:
    """Let a library remember and answer, several conversations at once; write the lines of its file."""
    dense = load_embedder(
        benchmark.embedder,
        api_base=benchmark.embedder_api_base,
        cache_file=benchmark.output_dir / EMBEDDINGS_FILE,
    )
    replies = benchmark.replies.settings()

    def make_reader(*conversation: str) -> dspy.LM:
        return language_model(
            benchmark.model,
            api_base=proxy.url(name, "answer", *conversation),
            max_tokens=most_reply_tokens(benchmark.model, replies),
            limiter=AdaptiveLimiter(benchmark.concurrency),
            chat_template_kwargs=replies.chat_template_kwargs,
        )

    check_model(make_reader())
    reply_format = benchmark.replies.reply_format or RESPONSE_FORMATS.default_format(
        benchmark.model, make_reader, replies
    )
    selection = load_selection(own_config(benchmark, SystemName.MEMORY.value, proxy))

    def run(talk: Conversation) -> list[Json]:
        talk_id, lines = talk.conversation_id, list[Json]()
        endpoint = Endpoint(benchmark.model.removeprefix(_OPENAI), proxy.url(name, "write", talk_id))
        with TemporaryDirectory(prefix=f"{name}-") as folder:
            library = LIBRARIES[name](talk, endpoint, dense, Path(folder))
            reader = ReaderOnly(LibraryContext(library, RetrievalSettings()), replies=replies)
            reader.choose_reply_formats(reply_format, {"reader": benchmark.model})
            reader.set_lm(make_reader(talk_id))
            for session in talk.sessions:
                known = {"conversation_id": talk_id, "session_id": session.session_id, "operations": 0}
                done = known | _measure(proxy, (name, "write", talk_id), partial(_write, library, session))
                if done["failed_calls"] and not done["operations"]:  # LangMem goes on without the reply
                    nothing = (
                        f"{done['failed_calls']} of {done['calls']} calls failed, and nothing was written"
                    )
                    done = {"error": nothing, **done}
                lines.append(done)
            for question in selection.questions:
                if question.conversation_id == talk_id:
                    done = _measure(proxy, (name, "answer", talk_id), partial(_ask, reader, question))
                    lines.append({"question_id": question.question_id, **done})
            library.close()
        failed = sum("error" in line for line in lines)
        print_plain(
            console, f"{name}: {talk_id} is done, {failed} of {len(lines)} sessions and questions failed"
        )
        return lines

    lines = run_parallel([partial(run, talk) for talk in selection.conversations], benchmark.concurrency)
    text = "".join(json.dumps(line) + "\n" for of_talk in lines for line in of_talk)
    atomic_write_text(benchmark.output_dir / name / f"{name}.jsonl", text)


def _write(library: Library, session: Session) -> Json:
    return {"operations": library.remember(session)}


def _ask(reader: ReaderOnly, question: Question) -> Json:
    answer = reader.ask(MemorySpace(question.conversation_id), question.dated_text)
    said = {"answer": answer.text} if answer.outcome is Outcome.OK else {"error": answer.message}
    return {**said, "memories": list(answer.shown)}


def _measure(proxy: CountingProxy, label: Sequence[str], act: Callable[[], Json]) -> Json:
    """Call a function, and add the requests under a label and the seconds; an error becomes a line, too."""
    before, began = proxy.traffic(*label), time.perf_counter()
    try:
        line = act()
    except Exception as error:  # noqa: BLE001  # a library raises what it likes: one item fails, not the run
        line = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
    spent = proxy.traffic(*label) - before
    return {
        **line,
        "seconds": time.perf_counter() - began,
        "calls": spent.calls,
        "failed_calls": spent.failed,
        "input_tokens": spent.input_tokens,
        "output_tokens": spent.output_tokens,
    }


# -- all systems -----------------------------------------------------------------------------------


def traffic_table(benchmark: Benchmark, names: Sequence[str]) -> Table:
    """Lay out the scores of all systems beside what the proxy counted; seconds are summed over all items."""
    table = Table(
        title=f"{benchmark.model}: requests at the endpoint, retries and checks among them",
        title_justify="left",
        box=box.SIMPLE_HEAD,
    )
    table.add_column("system", no_wrap=True)
    stages = [f"{stage}\n{count}" for stage in ("write", "answer") for count in ("calls", "tokens in", "out")]
    for heading in ("F1", "abstention", "operations", *stages, "failed", "estimated", "seconds"):
        table.add_column(heading, justify="right")
    for name in names:
        folder = benchmark.output_dir / name
        results = read_json_file((folder.parent if name in LIBRARIES else folder) / EVALUATION_RESULTS_FILE)
        system, counted = results["systems"][name], read_json_file(folder / _TRAFFIC_FILE)
        write, answer = (Traffic(**counted[stage]) for stage in ("write", "answer"))
        scores = [system["locomo_f1"]["all"]["value"], system["abstention"]["value"]]
        table.add_row(
            name,
            *("-" if score is None else f"{score:.3f}" for score in scores),
            f"{system['memory']['operations']:,}",
            *(f"{n:,}" for one in (write, answer) for n in (one.calls, one.input_tokens, one.output_tokens)),
            f"{write.failed + answer.failed:,}",
            f"{write.estimated + answer.estimated:,}",
            f"{system['seconds']:,.0f}",
        )
    return table


if __name__ == "__main__":
    sys.exit(run_script(main))
