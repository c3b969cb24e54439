"""What is kept of a run: the best program as a file, and all that was tried as JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import dspy
import orjson

from memory_program import __version__
from memory_program.configs.optimize_config import OptimizeConfig
from memory_program.core.json_files import Json, write_json
from memory_program.core.provenance import git_commit, lock_hash
from memory_program.optimization.call_journal import ReplyCache
from memory_program.optimization.candidate_evaluator import CandidateEvaluator, PromptCandidate
from memory_program.optimization.candidate_selection import compare_with_baseline, val_interval
from memory_program.optimization.optimization_stage import StageResult
from memory_program.optimization.optimization_target import OptimizationTarget
from memory_program.optimization.prompt_text import fingerprint_prompts, prompts_to_json, read_prompts

_MACHINE_SETTINGS = frozenset(
    {
        "api_base",
        "data",
        "dataset",
        "mlflow",
        "output",
        "output_dir",
        "program",
        "tracking_uri",
        "concurrency",
    }
)
"""Settings that say where and not what: addresses and paths; the dataset is told by its name and hash."""


def run_results(
    config: OptimizeConfig, subject: OptimizationTarget, stages: Sequence[StageResult], calls: ReplyCache
) -> Json:
    """Say as JSON what a run tried, what won, and what that rests on.

    Args:
        config: of the run.
        subject: what it improved, and worked on.
        stages: what was tried.
        calls: the calls of the run.
    """
    return {
        "optimizer": config.optimizer.value,
        "target": config.target.value,
        "settings": config.model_dump(mode="json", exclude=set(_MACHINE_SETTINGS)),
        "dataset": subject.dataset,
        "models": {"task": config.model, "prompts": config.proposer, "judge": config.judge},
        "version": __version__,
        "git_commit": git_commit(),
        "lock_hash": lock_hash(),
        "program": fingerprint_prompts(read_prompts(subject.program)),
        "calls": {"used": calls.used, **asdict(calls.usage)},
        "lost_sessions": subject.lost_sessions,
        "stages": [_stage_json(config, subject, stage) for stage in stages],
    }


def save_program(path: Path, program: dspy.Module, results: Json) -> None:
    """Write a program as DSPy does (JSON, without models), with what it was chosen by as its metadata.

    Raises:
        OSError: the file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.stem}.part.json")
    program.save(str(part))
    state = orjson.loads(part.read_bytes())
    part.unlink()
    stages = [{name: value for name, value in s.items() if name != "candidates"} for s in results["stages"]]
    state["metadata"]["optimization"] = {**results, "stages": stages}
    write_json(path, state)


def _stage_json(config: OptimizeConfig, subject: OptimizationTarget, stage: StageResult) -> Json:
    bench, choice = stage.bench, stage.choice
    comparison, tally = choice.comparison, bench.tally
    return {
        "target": stage.target.value,
        "stopped": stage.stopped,
        "examples": {"train": len(bench.train), "val": len(bench.val)},
        "attempts": {
            "scored": tally.succeeded,
            "failed": tally.failed,
            "first_failure": tally.first_failure,
        },
        "baseline": _score_json(config, subject, stage, bench.baseline),
        "winner": {
            "number": choice.winner.number,
            "is_baseline": choice.winner is bench.baseline,
            **_score_json(config, subject, stage, choice.winner),
        },
        "comparison": asdict(comparison) if comparison is not None else None,
        "candidates": [_candidate_json(config, bench, candidate) for candidate in bench.candidates],
    }


def _score_json(
    config: OptimizeConfig, subject: OptimizationTarget, stage: StageResult, candidate: PromptCandidate
) -> Json:
    interval = val_interval(stage.bench, candidate, config.seed)
    if interval is None:
        return {"score": None, "signature": None}
    more = subject.errors(stage.bench, candidate) if stage.bench.is_fully_validated(candidate) else {}
    return {
        "score": interval,
        "signature": subject.signature(stage.target, candidate, interval["n"]),
        **more,
    }


def _candidate_json(config: OptimizeConfig, bench: CandidateEvaluator, candidate: PromptCandidate) -> Json:
    is_validated = bench.is_fully_validated(candidate)
    comparison = compare_with_baseline(bench, candidate, config.seed) if is_validated else None
    return {
        "number": candidate.number,
        "fingerprint": candidate.name,
        "train": {"score": candidate.train_score, "tries": len(candidate.train)},
        "val": val_interval(bench, candidate, config.seed) if is_validated else None,
        "against_baseline": asdict(comparison) if comparison is not None else None,
        "calls": candidate.calls,
        "prompts": prompts_to_json(candidate.prompts),
    }
