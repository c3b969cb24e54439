"""What the training was worth: the program with the trained writer against the one that it began with.

Both are evaluated like any system, by ``evaluation``: whole conversations of the test split are remembered,
and all their questions are asked at the end. The two are compared on the questions that both answered.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from locomo.statistics import paired_comparison
from memory_program.configs.evaluate_config import EvaluateConfig, SystemName
from memory_program.configs.train_config import TrainConfig
from memory_program.core.checkpoints import LogEntry
from memory_program.core.json_files import Json
from memory_program.evaluation.evaluation_run import evaluate
from memory_program.evaluation.item_records import Journals
from memory_program.evaluation.question_selection import load_selection
from memory_program.evaluation.scoring.question_scores import BootstrapSampler, ScoredQuestion, score_question
from memory_program.evaluation.scoring.score_signature import read_run
from memory_program.evaluation.scoring.system_records import SystemRecords
from memory_program.rl.model_card import format_difference
from memory_program.rl.training_data import DataSplits

BASE, TRAINED = "base", "trained"


def compare_with_base(config: TrainConfig, material: DataSplits, console: Console) -> Json:
    """Evaluate base and trained writer on the test conversations, and compare them by question.

    What was evaluated before, of the very same weights, is not done again.

    Returns:
        JSON: ``systems`` (base and trained, as in results.json of an evaluation) and ``comparisons`` (trained
        minus base: ``locomo_f1`` on what has an answer, ``all five`` with abstention).

    Raises:
        ModelError: a model does not answer.
        RunInUseError: another process works in the folder.
    """
    writers = {BASE: config.model, TRAINED: f"local:{config.trained_folder}"}
    systems: Json = {}
    scored: dict[str, list[ScoredQuestion]] = {}
    for name, writer in writers.items():
        line = f"evaluating {name} ({writer}) on {len(material.test)} conversations"
        console.print(line, highlight=False, markup=False)
        evaluation = _evaluation_config(config, material, name, writer)
        results = evaluate(evaluation, console=Console(quiet=True))
        assert results is not None, "a full run reports"
        systems[name] = results["systems"][SystemName.MEMORY.value]
        scored[name] = _score_records(evaluation)
    return {"systems": systems, "comparisons": _compare_systems(scored[TRAINED], scored[BASE], config.seed)}


def comparison_table(comparison: Json) -> Table:
    """Lay out both systems, and by how much the trained one is better."""
    table = Table(box=box.SIMPLE_HEAD, title="test: official F1, 95 % interval by conversation")
    for heading in ("", "F1", "abstention", "all five", "failures"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, system in comparison["systems"].items():
        scores = (system["locomo_f1"]["all"], system["abstention"], system["overall_with_abstention"])
        table.add_row(name, *map(_interval, scores), str(system["failures"]["all"]))
    headline, everything = (comparison["comparisons"][name] for name in ("locomo_f1", "all five"))
    table.add_row("difference", format_difference(headline), "", format_difference(everything), "")
    return table


def validation_difference(first: LogEntry, best: LogEntry, seed: int) -> Json | None:
    """Compare two validations on the questions that have a score in both; None if there is none.

    The best one was chosen for its score, so what it gained here is more than what it would gain elsewhere.
    """
    before = first["scores"]
    both = [
        (score, before[conversation][question], conversation)
        for conversation, scores in best["scores"].items()
        for question, score in scores.items()
        if question in before.get(conversation, {})
    ]
    return _paired_json(both, BootstrapSampler(seed).rng("validation"))


def _evaluation_config(config: TrainConfig, material: DataSplits, name: str, writer: str) -> EvaluateConfig:
    """Say how one of the two is evaluated; records of other weights lie in another folder."""
    digest = "" if name == BASE else f"-{_weights_digest(config)}"
    return EvaluateConfig(
        **config.system_settings.model_dump(),
        dataset=config.dataset,
        data=config.data,
        allow_modified=config.allow_modified,
        conversations=",".join(conversation.conversation_id for conversation in material.test),
        num_test=config.num_test,
        systems=SystemName.MEMORY.value,
        writer_model=writer,
        reader_model=config.reader,
        judge_model=config.judge_model,
        api_base=config.api_base,
        output_dir=config.output_dir / "evaluation" / f"{name}{digest}",
        seed=config.seed,
        mlflow=False,
    )


def _weights_digest(config: TrainConfig) -> str:
    found = hashlib.sha256()
    for path in sorted(config.trained_folder.glob("*.safetensors")):
        found.update(path.read_bytes())
    return found.hexdigest()[:12]


def _score_records(evaluation: EvaluateConfig) -> list[ScoredQuestion]:
    folder = evaluation.output_dir / SystemName.MEMORY.value
    recorded = SystemRecords(folder, read_run(folder), Journals.read(folder), load_selection(evaluation))
    return [score_question(question, record, {}) for question, record in recorded.answers()]


def _compare_systems(ours: Sequence[ScoredQuestion], theirs: Sequence[ScoredQuestion], seed: int) -> Json:
    return {
        "locomo_f1": _compare_answers(ours, theirs, seed, headline_only=True),
        "all five": _compare_answers(ours, theirs, seed, headline_only=False),
    }


def _compare_answers(
    ours: Sequence[ScoredQuestion], theirs: Sequence[ScoredQuestion], seed: int, *, headline_only: bool
) -> Json | None:
    """Compare on the questions that both have a score for; None if there is none."""
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


def _interval(score: Json) -> str:
    if score["value"] is None:
        return ""
    around = "" if score["low"] is None else f" ({score['low']:.2f}..{score['high']:.2f})"
    return f"{score['value']:.3f}{around}"
