"""The result of a training compared with its start on the test split.

Both are evaluated like any system: whole conversations are remembered, and all their questions are asked at
the end. They are compared on the questions that both answered.
"""

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from locomo.statistics import paired_comparison
from memory_program.agents.program import saved_reply_format
from memory_program.configs.evaluate_config import EvaluateConfig, SystemName
from memory_program.configs.train_config import TrainConfig
from memory_program.configs.trainer_groups import Part
from memory_program.core.checkpoints import LogEntry
from memory_program.core.errors import NoResultError
from memory_program.core.json_files import Json, read_json_file, read_run_file
from memory_program.core.sqlite_address import sqlite_url
from memory_program.evaluation.console import format_count
from memory_program.evaluation.evaluation_run import evaluate
from memory_program.evaluation.item_records import Journals
from memory_program.evaluation.question_selection import load_selection
from memory_program.evaluation.report.results_json import EVALUATION_RESULTS_FILE
from memory_program.evaluation.scoring.question_scores import BootstrapSampler, ScoredQuestion, score_question
from memory_program.evaluation.scoring.score_signature import read_run
from memory_program.evaluation.scoring.system_records import SystemRecords
from memory_program.models.reply_settings import ReplyFormat
from memory_program.rl.model_card import format_difference
from memory_program.rl.trained_program import PROGRAM_FILE, make_base_program
from memory_program.rl.training_data import TrainingSplits

BASE, TRAINED = "base", "trained"
PROMPTS_ONLY, WEIGHTS_ONLY, BOTH = "prompts only", "weights only", "both"
_NOTE = (
    "weights only: the weights that were trained under the program's prompts, asked under the base prompts"
)


@dataclass(frozen=True, slots=True)
class _Row:
    """A system of the comparison: its prompts (None: those of its models) and its models.

    ``records`` names the folder of its records.
    """

    name: str
    records: str
    program: Path | None
    writer: str
    reader: str


def compare_with_base(config: TrainConfig, splits: TrainingSplits, console: Console) -> Json:
    """Evaluate the start and the result of a training on the test conversations; compare by question.

    With ``--program`` there are four systems: base, its prompts only, the weights only, and both. If writer
    and reader were trained, each is evaluated alone, too. Records of the same weights are reused: the folders
    of a trained system's records name a hash of them.

    Returns:
        JSON: ``systems`` (by row, as in results.json of an evaluation), ``comparisons`` (the last row minus
        the first: ``locomo_f1`` on answerable questions, ``all five`` with abstention) and ``gains`` (each
        row's F1 minus that of the first).

    Raises:
        ModelError: a model does not answer.
        RecordError: the saved program is damaged.
        RunInUseError: another process works in the folder.
    """
    # all reply as the trained ones were taught; left to itself, a model of this process would reply as JSON
    path = config.trained_folder / PROGRAM_FILE
    saved = read_run_file(path, "delete its folder and run --mode train again, which saves the result again")
    is_chat = all(saved_reply_format(saved, part) is ReplyFormat.CHAT for part in config.parts)
    replies = ReplyFormat.CHAT if is_chat else config.system.replies.reply_format
    seed = config.trainer.optimizer.seed
    systems: Json = {}
    scored: dict[str, list[ScoredQuestion]] = {}
    rows = _make_rows(config)
    # rows with one writer share its memories; a training of a writer alone keeps those of each row apart
    shares_banks = len(rows) > 2 or "reader" in config.parts
    banks = config.output_dir / "evaluation" / "banks.sqlite"
    for row in rows:
        models = row.writer if config.parts == ("writer",) else f"{row.writer} writes, {row.reader} answers"
        line = f"evaluating {row.name} ({models}) on {format_count(len(splits.test), 'conversation')}"
        console.print(line, highlight=False, markup=False, soft_wrap=True)
        system = SystemName.MEMORY if row.program is None else SystemName.OPTIMIZED
        evaluation = EvaluateConfig(
            system=config.system.replace(reply_format=replies),
            source=config.source,
            conversations=",".join(conversation.conversation_id for conversation in splits.test),
            num_test=config.num_test,
            sessions=config.part.sessions,
            systems=system.value,
            program=row.program,
            writer_model=row.writer,
            reader_model=row.reader,
            judge_model=config.grading.judge_model,
            api_base=config.api_base,
            reader_api_base=config.reader_api_base,
            judge_api_base=config.judge_api_base,
            output_dir=config.output_dir / "evaluation" / row.records,
            db_url=sqlite_url(banks) if shares_banks else None,
            seed=seed,
            retry_errors=config.retry_errors,
            mlflow=False,
            max_errors=sys.maxsize,  # a base whose replies are useless is a result here
        )
        try:
            results = evaluate(evaluation, console=Console(quiet=True))
        except NoResultError:  # as is one that cannot reply at all; the results are written
            results = read_json_file(evaluation.output_dir / EVALUATION_RESULTS_FILE)
        assert results is not None, "a full run reports"
        systems[row.name] = results["systems"][system.value]
        folder = evaluation.output_dir / system.value
        recorded = SystemRecords(folder, read_run(folder), Journals.read(folder), load_selection(evaluation))
        scored[row.name] = [score_question(question, record, {}) for question, record in recorded.answers()]
    first, *others = (row.name for row in rows)
    comparisons = {
        name: _compare_answers(scored[others[-1]], scored[first], seed, headline_only=headline_only)
        for name, headline_only in (("locomo_f1", True), ("all five", False))
    }
    gains = {name: _compare_answers(scored[name], scored[first], seed, headline_only=True) for name in others}
    return {"systems": systems, "comparisons": comparisons, "gains": gains}


def _make_rows(config: TrainConfig) -> list[_Row]:
    """List the systems to compare, the start first and the result last."""
    digest = hashlib.sha256()
    start: dict[Part, str] = {"writer": config.writer, "reader": config.reader}
    trained = dict(start)
    for part in config.parts:
        folder = config.weights_folder(part)
        trained[part] = f"local:{folder}"
        for path in sorted(folder.glob("*.safetensors")):
            digest.update(path.read_bytes())
    weights = digest.hexdigest()[:12]

    def make(name: str, program: Path | None, writer: str, reader: str) -> _Row:
        is_trained = [writer, reader] != list(start.values())
        records = name.replace(" ", "-") + (f"-{weights}" if is_trained else "")
        return _Row(name, records, program, writer, reader)

    base = make(BASE, None, start["writer"], start["reader"])
    result = (trained["writer"], trained["reader"])
    if config.program is None and len(config.parts) == 1:
        return [base, make(TRAINED, None, *result)]
    if config.program is None:
        return [
            base,
            make("writer only", None, trained["writer"], start["reader"]),
            make("reader only", None, start["writer"], trained["reader"]),
            make(BOTH, None, *result),
        ]
    programs = [config.output_dir / "evaluation" / f"{name}.json" for name in ("base", "program")]
    # copies, since weights may lie beside the program itself, and would write for it
    programs[0].parent.mkdir(parents=True, exist_ok=True)
    make_base_program(config).save(str(programs[0]))
    programs[1].write_bytes(config.program.read_bytes())
    return [
        base,
        make(PROMPTS_ONLY, programs[1], start["writer"], start["reader"]),
        make(WEIGHTS_ONLY, programs[0], *result),
        make(BOTH, programs[1], *result),
    ]


def comparison_table(comparison: Json) -> Table:
    """Make a table of the systems, their gains over the first where there are several, and the difference."""
    systems, gains = comparison["systems"], comparison.get("gains", {})
    note = _NOTE if WEIGHTS_ONLY in systems else None
    title = "test: official F1, 95 % interval by conversation"
    table = Table(box=box.SIMPLE_HEAD, title=title, caption=note, caption_justify="left")

    def interval(score: Json) -> str:
        if score["value"] is None:
            return ""
        bounds = "" if score["low"] is None else f" ({score['low']:.2f}..{score['high']:.2f})"
        return f"{score['value']:.3f}{bounds}"

    has_gains = len(gains) > 1
    headings = ["", "F1", "abstention", "all five", "failures", *(["F1 minus base"] if has_gains else [])]
    for heading in headings:
        table.add_column(heading, justify="left" if not heading else "right")
    for name, system in systems.items():
        scores = (system["locomo_f1"]["all"], system["abstention"], system["overall_with_abstention"])
        gain = [format_difference(gains[name]) if name in gains else ""] if has_gains else []
        table.add_row(name, *map(interval, scores), str(system["failures"]["all"]), *gain)
    if not has_gains:
        headline, overall = (comparison["comparisons"][name] for name in ("locomo_f1", "all five"))
        table.add_row("difference", format_difference(headline), "", format_difference(overall), "")
    return table


def validation_difference(first: LogEntry, best: LogEntry, seed: int) -> Json | None:
    """Compare two validations on the questions scored in both; None if there are none.

    The best validation was selected for its score, so its gain is biased upwards.
    """
    before = first["scores"]
    both = [
        (score, before[conversation][question], conversation)
        for conversation, scores in best["scores"].items()
        for question, score in scores.items()
        if question in before.get(conversation, {})
    ]
    return _paired_json(both, BootstrapSampler(seed).rng("validation"))


def _compare_answers(
    ours: Sequence[ScoredQuestion], theirs: Sequence[ScoredQuestion], seed: int, *, headline_only: bool
) -> Json | None:
    """Compare on the questions scored for both; None if there are none."""
    both = [
        (one.locomo_f1, other.locomo_f1, one.question.cluster)
        for one, other in zip(ours, theirs, strict=True)
        if (one.is_headline or not headline_only)
        and one.locomo_f1 is not None
        and other.locomo_f1 is not None
    ]
    return _paired_json(both, BootstrapSampler(seed).rng("trained against base", str(headline_only)))


def _paired_json(both: Sequence[tuple[float, float, str]], rng: np.random.Generator) -> Json | None:
    if not both:
        return None
    a, b, clusters = zip(*both, strict=True)
    return asdict(paired_comparison(a, b, clusters, rng=rng))
