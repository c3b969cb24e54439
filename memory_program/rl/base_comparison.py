"""The trained writer compared with its base model on the test split.

Both are evaluated like any system: whole conversations are remembered, and all their questions are asked at
the end. They are compared on the questions that both answered.
"""

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from locomo.statistics import paired_comparison
from memory_program.agents.program import saved_reply_format
from memory_program.configs.evaluate_config import EvaluateConfig, SystemName
from memory_program.configs.train_config import TrainConfig
from memory_program.core.checkpoints import LogEntry
from memory_program.core.errors import NoResultError
from memory_program.core.json_files import Json, read_json_file
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
from memory_program.rl.training_data import TrainingSplits

BASE, TRAINED = "base", "trained"


def compare_with_base(config: TrainConfig, splits: TrainingSplits, console: Console) -> Json:
    """Evaluate the base and the trained writer on the test conversations, and compare them by question.

    Records of the same weights are reused. The folder of the trained writer's records names a hash of them.

    Returns:
        JSON: ``systems`` (base and trained, as in results.json of an evaluation) and ``comparisons`` (trained
        minus base: ``locomo_f1`` on answerable questions, ``all five`` with abstention).

    Raises:
        ModelError: a model does not answer.
        RunInUseError: another process works in the folder.
    """
    weights = hashlib.sha256()
    for path in sorted(config.trained_folder.glob("*.safetensors")):
        weights.update(path.read_bytes())
    trained_records = f"{TRAINED}-{weights.hexdigest()[:12]}"
    # both reply as the trained one was taught; left to itself, a model of this process would reply as JSON
    taught = saved_reply_format(read_json_file(config.trained_folder / "program.json"), "writer")
    replies = taught if taught is ReplyFormat.CHAT else config.system.replies.reply_format
    seed = config.trainer.optimizer.seed
    systems: Json = {}
    scored: dict[str, list[ScoredQuestion]] = {}
    for name, writer, records in (
        (BASE, config.model, BASE),
        (TRAINED, f"local:{config.trained_folder}", trained_records),
    ):
        line = f"evaluating {name} ({writer}) on {format_count(len(splits.test), 'conversation')}"
        console.print(line, highlight=False, markup=False)
        evaluation = EvaluateConfig(
            system=config.system.replace(reply_format=replies),
            source=config.source,
            conversations=",".join(conversation.conversation_id for conversation in splits.test),
            num_test=config.num_test,
            sessions=config.part.sessions,
            systems=SystemName.MEMORY.value,
            writer_model=writer,
            reader_model=config.reader,
            judge_model=config.grading.judge_model,
            api_base=config.api_base,
            reader_api_base=config.reader_api_base,
            judge_api_base=config.judge_api_base,
            output_dir=config.output_dir / "evaluation" / records,
            seed=seed,
            mlflow=False,
            max_errors=sys.maxsize,  # a base whose replies are useless is a result here
        )
        try:
            results = evaluate(evaluation, console=Console(quiet=True))
        except NoResultError:  # as is one that cannot reply at all; the results are written
            results = read_json_file(evaluation.output_dir / EVALUATION_RESULTS_FILE)
        assert results is not None, "a full run reports"
        systems[name] = results["systems"][SystemName.MEMORY.value]
        folder = evaluation.output_dir / SystemName.MEMORY.value
        recorded = SystemRecords(folder, read_run(folder), Journals.read(folder), load_selection(evaluation))
        scored[name] = [score_question(question, record, {}) for question, record in recorded.answers()]
    comparisons = {
        name: _compare_answers(scored[TRAINED], scored[BASE], seed, headline_only=headline_only)
        for name, headline_only in (("locomo_f1", True), ("all five", False))
    }
    return {"systems": systems, "comparisons": comparisons}


def comparison_table(comparison: Json) -> Table:
    """Make a table of both systems and their difference."""
    table = Table(box=box.SIMPLE_HEAD, title="test: official F1, 95 % interval by conversation")

    def interval(score: Json) -> str:
        if score["value"] is None:
            return ""
        bounds = "" if score["low"] is None else f" ({score['low']:.2f}..{score['high']:.2f})"
        return f"{score['value']:.3f}{bounds}"

    for heading in ("", "F1", "abstention", "all five", "failures"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, system in comparison["systems"].items():
        scores = (system["locomo_f1"]["all"], system["abstention"], system["overall_with_abstention"])
        table.add_row(name, *map(interval, scores), str(system["failures"]["all"]))
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
        (one.locomo_f1, other.locomo_f1, one.question.conversation_id)
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
