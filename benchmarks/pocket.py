"""Measure a model in made-up worlds: as reader, as writer, and as the whole program.

No training saw the words of these worlds. The reader is measured on the banks that the oracle builds, the
writer on the banks that it builds itself (see ``oracle_agreement.py``), and the whole
program as ``evaluate.py`` does, next to the oracle in the same program: the upper bound. Intervals are at
95 %, by bootstrap over conversations. Two more tables list the wordings of questions and operations that are
wrong most often: they show first what a model never learned. Each table is printed as soon as it is measured;
progress goes to stderr.

Run it with ``python benchmarks/pocket.py --help``.
"""

import json
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import dspy
from oracle_agreement import OperationCounts, RecordingEngine, gold_operations, operation_agreement
from pydantic import Field, field_validator
from rich import box
from rich.console import Console
from rich.table import Table

from locomo.metrics import is_abstention
from locomo.statistics import clustered_interval
from locomo.types import WorldQuestionType
from memory_program.agents.signatures import SPECIALISTS
from memory_program.bank.outcomes import Outcome
from memory_program.configs.evaluate_config import EvaluateConfig
from memory_program.configs.groups import DatasetName
from memory_program.core.command_line import parse_flags, run_script
from memory_program.core.errors import ConfigError
from memory_program.core.json_files import Json
from memory_program.core.settings import Settings, split_list
from memory_program.evaluation.datasets import load_worlds
from memory_program.evaluation.evaluation_run import evaluate, evaluate_oracle
from memory_program.evaluation.oracle_eval import ORACLE
from memory_program.evaluation.report.score_tables import format_interval
from memory_program.evaluation.scoring.question_scores import BootstrapSampler
from memory_program.models.factory import AdaptiveLimiter, language_model
from memory_program.worlds import Kind
from memory_program.worlds.oracle import Exchange, Oracle, oracle_lm
from memory_program.worlds.rendered_prompts import find_signature

_COMMON_SHARE = 0.01  # a word in a smaller share of the texts names a thing, and is masked

RIGHT_FROM = 0.5
"""An answer with at least this official F1 counts as right."""


class Benchmark(Settings):
    """Measure a model in made-up worlds: as reader, as writer and as the whole program."""

    model: str = "pocket"
    """Model to measure, by any name that evaluate.py takes."""

    seed: int = Field(default=1, ge=0)
    """Seed of the worlds."""

    conversations: int = Field(default=20, ge=1)
    """Number of worlds."""

    systems: str = "memory"
    """Systems to evaluate as whole programs, separated by commas; memory must be one of them."""

    concurrency: int = Field(default=16, ge=1)
    """The most model calls in flight at once."""

    wordings: int = Field(default=12, ge=0)
    """Number of wordings to list of the questions, and of the operations, that are wrong most often."""

    @field_validator("systems")
    @classmethod
    def _check_systems(cls, value: str) -> str:
        if "memory" not in split_list(value):
            raise ConfigError(f"systems={value!r} must name memory, whose writer is measured")
        return value


def main() -> None:
    """Read the flags, measure, and print the tables."""
    benchmark = parse_flags(Benchmark)
    console = Console() if sys.stdout.isatty() else Console(width=120)
    with tempfile.TemporaryDirectory() as folder:
        config = EvaluateConfig(
            dataset=DatasetName.WORLD.value,
            seed=benchmark.seed,
            worlds=benchmark.conversations,
            systems=benchmark.systems,
            writer_model=benchmark.model,
            reader_model=benchmark.model,
            concurrency=benchmark.concurrency,
            output_dir=Path(folder),
            mlflow=False,
        )
        limiter = AdaptiveLimiter(benchmark.concurrency)
        lm = language_model(benchmark.model, temperature=0.0, limiter=limiter)
        print(f"{lm.model}, {benchmark.conversations} worlds of seed {benchmark.seed}")
        for table in _measured(config, lm, benchmark.wordings):
            console.print(table)


def _measured(config: EvaluateConfig, lm: dspy.LM, wordings: int) -> Iterable[Table]:
    worlds = load_worlds(config.source, config.seed)
    ceiling = evaluate_oracle(config)
    assert ceiling is not None, "the truth of a world is known"
    from_gold = config.replace(systems="memory", writer_model=ORACLE, output_dir=config.output_dir / "gold")
    _results(from_gold, {ORACLE: oracle_lm(worlds), config.reader_model: lm})
    answers = _answers(from_gold.output_dir)
    yield _reader_table(answers, _answers(config.output_dir / "ceiling"))
    cases = [
        ("", line["question"][:1].lower() + line["question"][1:], _is_right(line))
        for line in answers
        if line["gold"] is not None and line["outcome"] == Outcome.OK
    ]
    yield _wordings_table("Wordings of questions that are most often answered wrong", cases, wordings)

    assert not isinstance(lm.engine, str), "a model's engine is made with it"
    recorder = RecordingEngine(lm.engine)
    began = time.perf_counter()
    results = _results(config, {config.reader_model: lm.copy(engine=recorder)})
    elapsed_s = time.perf_counter() - began
    oracle = Oracle(worlds)
    yield _writer_table(recorder.exchanges, oracle)
    gold = [
        (f"{kind}, {operation.action}: ", operation.raw_text, is_done)
        for kind, operation, is_done in gold_operations(recorder.exchanges, oracle.reply)
    ]
    yield _wordings_table("Wordings of operations that are most often wrong or missing", gold, wordings)
    yield _program_table(results["systems"], ceiling, f"{len(recorder.exchanges):,} calls, {elapsed_s:.0f} s")


def _results(config: EvaluateConfig, models: dict[str | None, dspy.LM]) -> Json:
    quiet = Console(stderr=True)
    results = evaluate(config, console=quiet, models=lambda name, _: models[name])
    assert results is not None, "the mode is full"
    return results


def _answers(folder: Path) -> list[Json]:
    lines = (folder / "memory" / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def _reader_table(answers: Sequence[Json], oracle_answers: Sequence[Json]) -> Table:
    headings = ("right", "abstains", "oracle right", "oracle abstains", "questions", "failed")
    table = _table("Reader, from the oracle's memories; without failed replies", "category", headings)
    for category in ("all", *sorted({line["category"] for line in answers})):
        cells: list[str] = []
        failed = 0
        for lines in (answers, oracle_answers):
            asked = [line for line in lines if category in (line["category"], _headline(line))]
            group = [line for line in asked if line["outcome"] == Outcome.OK]
            failed += len(asked) - len(group)
            cells += (_share(group, _is_right), _share(group, _abstains))
        table.add_row(category, *cells, str(len(asked)), str(failed))
    return table


def _headline(answer: Json) -> str:
    return "" if answer["category"] == WorldQuestionType.EARLIER_STATE else "all"


def _is_right(answer: Json) -> bool:
    return answer["locomo_f1"] is not None and answer["locomo_f1"] >= RIGHT_FROM


def _abstains(answer: Json) -> bool:
    return answer["answer"] is not None and is_abstention(answer["answer"])


def _share(answers: Sequence[Json], claim: Callable[[Json], bool]) -> str:
    """Format the share of answers for which a claim is true."""
    claims = [(float(claim(answer)), answer["question_id"].partition(":")[0]) for answer in answers]
    return _interval(claims)


def _writer_table(exchanges: Sequence[Exchange], oracle: Oracle) -> Table:
    headings = ("F1", "precision", "recall", "right", "written", "gold", "dates right")
    table = _table("Writer's operations, against the oracle's on the same prompts", "kind, action", headings)
    tallies = _tallies_by_conversation(exchanges, oracle)
    groups = sorted({group for found in tallies.values() for group in found})
    sections: list[tuple[str, list[tuple[Kind, str]]]] = [("all", groups)]
    for kind in sorted({kind for kind, _ in groups}):
        sections.append((kind, [group for group in groups if group[0] == kind]))
    for group in groups:
        sections.append((", ".join(group), [group]))
    for name, section_groups in sections:
        by_conversation = {
            conversation: sum(
                (found.get(group, OperationCounts()) for group in section_groups), OperationCounts()
            )
            for conversation, found in tallies.items()
        }
        table.add_row(name, *_writer_cells(by_conversation))
    return table


def _tallies_by_conversation(
    exchanges: Sequence[Exchange], oracle: Oracle
) -> dict[str, dict[tuple[Kind, str], OperationCounts]]:
    exchanges_by_conversation: dict[str, list[Exchange]] = {}
    for exchange in exchanges:
        if find_signature(exchange.system) in SPECIALISTS.values():
            exchanges_by_conversation.setdefault(oracle.find_conversation_id(exchange.user), []).append(
                exchange
            )
    return {
        conversation: operation_agreement(found, oracle.reply)
        for conversation, found in exchanges_by_conversation.items()
    }


def _writer_cells(tallies: dict[str, OperationCounts]) -> list[str]:
    total = sum(tallies.values(), OperationCounts())
    # F1 is the mean, over the operations written and the gold ones, of 1 for a right operation and 0 else
    operations = [
        (float(rank < 2 * tally.correct), conversation)
        for conversation, tally in tallies.items()
        for rank in range(tally.predicted + tally.gold)
    ]
    shares = (total.precision, total.recall)
    counts = (total.correct, total.predicted, total.gold)
    days = f"{total.correct_dates}/{total.gold_dates}" if total.gold_dates else "-"
    return [_interval(operations), *map(_spelled, shares), *map(str, counts), days]


def _program_table(systems: Json, ceiling: Json, effort: str) -> Table:
    headings = ("F1, categories 1-4", "abstention", "all five", "tokens/question", "failures")
    table = _table(f"Whole program: {effort}", "system", headings)
    for name, system in {"oracle (upper bound)": ceiling, **systems}.items():
        scores = (system["locomo_f1"]["all"], system["abstention"], system["overall_with_abstention"])
        tokens = f"{system['tokens_per_question'] or 0:,.0f}"
        table.add_row(name, *map(format_interval, scores), tokens, str(system["failures"]["all"]))
    return table


def _wordings(texts: Sequence[str]) -> list[str]:
    """Mask names, numbers and rare words of each text with an ellipsis.

    Example:
        >>> _wordings(["Ana practices judo every Friday.", "Tom practices chess every Monday."])
        ['… practices judo every …', '… practices chess every …']
    """
    words_by_text = [re.findall(r"[^\W_]+", text.replace("'s", "")) for text in texts]
    counts = Counter(word for words in words_by_text for word in set(words))
    common = {
        word for word, count in counts.items() if word.islower() and count >= _COMMON_SHARE * len(texts)
    }
    masked = (" ".join(w if w in common else "…" for w in words) for words in words_by_text)
    return [re.sub("…(?: …)+", "…", text) for text in masked]


def _wordings_table(title: str, cases: Sequence[tuple[str, str, bool]], most: int) -> Table:
    """List the wordings with the most wrong cases; a case is a prefix, a text, and True if it is right."""
    table = _table(title, "wording", ("wrong", "of", "share wrong"))
    masked = _wordings([text for _, text, _ in cases])
    wordings = [prefix + wording for (prefix, _, _), wording in zip(cases, masked, strict=True)]
    counts = Counter(wordings)
    wrong = Counter(
        wording for wording, (_, _, is_right) in zip(wordings, cases, strict=True) if not is_right
    )
    for wording, count in wrong.most_common(most):
        table.add_row(wording, str(count), str(counts[wording]), f"{count / counts[wording]:.2f}")
    return table


def _table(title: str, first: str, headings: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column(first, no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def _interval(scores: Sequence[tuple[float, str]]) -> str:
    """Format a mean and its interval; each score has the name of its conversation."""
    if not scores:
        return "-"
    values, clusters = zip(*scores, strict=True)
    found = clustered_interval(values, clusters, rng=BootstrapSampler(0).rng("benchmark"))
    interval = "" if found.low is None else f" {found.low:.2f}..{found.high:.2f}"
    return f"{found.value:.3f}{interval}"


def _spelled(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


if __name__ == "__main__":
    sys.exit(run_script(main))
