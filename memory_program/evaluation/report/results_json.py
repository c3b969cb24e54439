"""The results of a run as results.json, and as one JSON line per question."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import combinations
from pathlib import Path

from locomo.atomic_files import atomic_write_text
from locomo.types import HEADLINE_TYPES, Benchmark
from locomo.unspaced_scripts import UNSPACED_RUN
from memory_program import __version__
from memory_program.configs.evaluate_config import EvaluateConfig
from memory_program.core.hashing import content_hash
from memory_program.core.json_files import Json
from memory_program.core.provenance import provenance
from memory_program.evaluation.datasets import load_worlds
from memory_program.evaluation.question_selection import Selection
from memory_program.evaluation.scoring.bank_growth import count_tool_use, mean_bank_growth
from memory_program.evaluation.scoring.error_types import summarize_diagnoses
from memory_program.evaluation.scoring.judge_errors import (
    calibration_journal,
    compute_judge_error_rates,
    format_judge_error_rates,
)
from memory_program.evaluation.scoring.question_scores import (
    METRIC_NAMES,
    BootstrapSampler,
    paired_comparisons,
    summarize_system,
    verdict_score,
)
from memory_program.evaluation.scoring.score_signature import REPLY_SETTINGS, SystemRun
from memory_program.evaluation.scoring.stored_facts import measure_stored_facts
from memory_program.evaluation.scoring.system_records import ScoredSystem
from memory_program.models.http_engine import is_reasoning_model
from memory_program.models.usage import takes_sampling_parameters

EVALUATION_RESULTS_FILE = "results.json"


def build_evaluation_results(
    config: EvaluateConfig,
    selection: Selection,
    scored_systems: Sequence[ScoredSystem],
    oracle: Json | None = None,
) -> Json:
    """Compute results.json; the same records, selection and seed give the same numbers, to the last digit.

    Args:
        config: the settings of the run.
        selection: its conversations and questions.
        scored_systems: its systems.
        oracle: the results of the oracle as an upper bound, if there are any; stored as ``ceiling``.
    """
    resampling = BootstrapSampler(config.seed)
    has_banks = any(system.banks for system in scored_systems)
    worlds = load_worlds(config.source, config.seed) if has_banks else []
    systems: Json = {}
    for system in scored_systems:
        summary = summarize_system(system.scored, system.builds, resampling, system.replaced)
        n = summary["locomo_f1"]["all"]["n"]
        judge = system.run.judge
        quality: Json | None = None
        if judge is not None:
            known = calibration_journal(config).records
            quality = compute_judge_error_rates(judge, selection.dataset.benchmark, known, resampling)
        diagnosis = summarize_diagnoses(system.scored, system.diagnoses)
        correct, cost_usd = diagnosis["all"]["answers"] - diagnosis["all"]["wrong"], summary["cost_usd"]
        systems[system.run.system.name] = {
            **summary,
            "cost_per_correct_usd": cost_usd / correct if correct and cost_usd is not None else None,
            "diagnosis": diagnosis,
            "lost_banks": list(system.lost_banks),
            "growth": mean_bank_growth(selection.conversations, system.banks),
            "stored_facts": measure_stored_facts(selection.conversations, system.banks, worlds, resampling),
            "tools": count_tool_use(system.banks, system.builds),
            "calibration": None if judge is None else {"judge": judge.name, "quality": quality},
            "signature": score_signature(config, selection, system.run, n, quality),
            "run": asdict(system.run),
        }
        if system.run.chosen_on is not None:
            chosen_on = system.run.chosen_on
            seen = chosen_on.conversations if chosen_on.sha256 == selection.dataset.sha256 else ()
            ids = [conversation.conversation_id for conversation in selection.conversations]
            systems[system.run.system.name]["chosen_on"] = [name for name in ids if name in seen]
    return {
        "config": config.model_dump(mode="json"),
        "dataset": {
            "name": selection.dataset.name,
            "sha256": selection.dataset.sha256,
            "is_modified": selection.dataset.is_modified,
            "benchmark": selection.dataset.benchmark.value,
            "types": [kind.label for kind in HEADLINE_TYPES[selection.dataset.benchmark]],
            "conversations": [conversation.conversation_id for conversation in selection.conversations],
            "questions": len(selection.questions),
        },
        **provenance(),
        "lm_cache": "off",
        "seed": config.seed,
        "systems": systems,
        "ceiling": oracle,
        **compare_systems({system.run.system.name: system for system in scored_systems}, resampling),
    }


def compare_systems(systems: Mapping[str, ScoredSystem], resampling: BootstrapSampler) -> Json:
    """Compare each pair of systems on the questions that both were asked, by F1 and by each shared rubric.

    Returns:
        ``comparisons``, as ``paired_comparisons`` gives them, and ``not_compared``: pairs of systems with the
        rubrics by which different judges judged them, where a difference could come from the judges.
    """
    comparisons: list[Json] = []
    apart: list[Json] = []
    for a, b in combinations(systems, 2):
        scored = [{item.question.question_id: item for item in systems[name].scored} for name in (a, b)]
        both_asked = [question_id for question_id in scored[0] if question_id in scored[1]]
        aligned = {
            name: [items[question_id] for question_id in both_asked]
            for name, items in zip((a, b), scored, strict=True)
        }
        one, other = systems[a].run.judge, systems[b].run.judge
        alike, unlike = list[str](), list[str]()
        if one is not None and other is not None:
            for rubric in sorted(one.rubrics.keys() & other.rubrics.keys()):
                (alike if one.is_same_judge(other, rubric) else unlike).append(rubric)
        comparisons += paired_comparisons(aligned, alike, resampling, unlike)
        if unlike:
            apart.append({"a": a, "b": b, "rubrics": unlike})
    return {"comparisons": comparisons, "not_compared": apart}


def score_signature(
    config: EvaluateConfig, selection: Selection, run: SystemRun, n: int, quality: Json | None
) -> str:
    """Write everything that a score depends on as one line to quote with it.

    Settings that are not in it (threads, addresses, folders) do not change the score. ``quality`` has the
    error rates of the judge (see ``compute_judge_error_rates``), which are cited beside it.
    """
    system = run.system
    benchmark = selection.dataset.benchmark
    parts = {
        **({"cat": "1-4"} if benchmark is Benchmark.LOCOMO else {"bench": benchmark.value}),
        "n": n,
        "judge": run.judge.name if run.judge is not None else "none",
        **({"calibration": format_judge_error_rates(quality)} if quality is not None else {}),
        "data": selection.dataset.version,
        "v": __version__,
        "system": system.name,
    }
    if config.split != "all":
        parts["split"] = config.split
    if config.conversations:
        parts["conversations"] = "+".join(c.conversation_id for c in selection.conversations)
    if config.subset_file is not None:
        parts["subset"] = content_hash([question.question_id for question in selection.questions])[:8]
    if config.sessions is not None:
        parts["sessions"] = config.sessions
    if config.num_test is not None:
        parts["first"] = config.num_test
    if any(UNSPACED_RUN.search(str(question.answer)) for question in selection.questions):
        parts["unspaced_text"] = "by_character"
    if system.writer is not None:
        writer = system.written_by or system.writer
        parts |= {"writer": writer, "memory_budget": system.settings["memory_budget"]}
        parts["writer_mode"] = system.settings["writer_mode"]
        parts["writer_max_turns"] = system.settings["max_turns"]
        if system.settings.get("build") == "two-phase":  # older runs do not say how they were built
            parts["build"] = system.settings["build"]
    if system.reader is not None:
        reader = system.read_by or system.reader
        takes_one = takes_sampling_parameters(system.reader) and not is_reasoning_model(system.reader)
        temperature = f"{system.temperature:g}" if takes_one else "its own"
        parts |= {"reader": reader, "temperature": temperature}
        parts |= {"max_searches": system.settings["max_searches"], "program": system.program[:8]}
    if "answers_file" in system.settings:  # of a system from elsewhere, whose settings are unknown
        parts["answers_file"] = system.settings["answers_file"]
    else:
        parts |= {"top_k": system.settings["top_k"], "reader_budget": system.settings["reader_budget"]}
    if system.settings.get("relevance_floor"):  # older runs showed all that was found
        parts["min_relative_score"] = system.settings["relevance_floor"]
    parts |= {name: system.settings[name] for name in REPLY_SETTINGS if name in system.settings}
    names = ["writer_temperature", "retrieval", "embedder", "dense_weight", "reranker", "full_context_tokens"]
    for name in (*names, "answerability_check", "add_dates"):
        if name in system.settings:
            parts[name] = system.settings[name]
    if system.settings.get("archive"):
        parts["with_verbatim_turns"] = "on"
    return "|".join(
        [METRIC_NAMES.get(benchmark, "locomo_f1"), *(f"{name}:{value}" for name, value in parts.items())]
    )


def write_question_results(path: Path, system: ScoredSystem) -> None:
    """Write one line per question: question, gold answer, answer, scores and error type."""
    lines: list[str] = []
    for item, diagnosis in zip(system.scored, system.diagnoses, strict=True):
        question = item.question
        answer = item.record.answer if item.record is not None else None
        line = {
            "question_id": question.question_id,
            "category": question.category.label,
            "question": question.text,
            "gold": question.answer,
            "answer": answer.text if answer is not None else None,
            "outcome": answer.outcome.value if answer is not None else "missing",
            "locomo_f1": item.locomo_f1,
            "bleu1": item.bleu1,
            "judge": {rubric: verdict_score(item, rubric) for rubric in item.judgements},
            **({"nuggets": [found and found.value for found in item.nuggets]} if item.nuggets else {}),
            "recall": item.recall,
            "retrieval": item.retrieval,
            "tokens": item.tokens,
            "evidence": list(question.evidence),
            "fault": diagnosis.error_type.value if diagnosis is not None else None,
            "lost": list(diagnosis.lost_turns) if diagnosis is not None else [],
        }
        lines.append(json.dumps(line, ensure_ascii=True) + "\n")
    atomic_write_text(path, "".join(lines))
