"""The files of a finished run: the best program, and all candidates as JSON (``results.json``)."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import dspy
import orjson

from memory_program.configs.groups import MACHINE_SETTINGS
from memory_program.configs.optimize_config import OptimizeConfig, Target
from memory_program.core.json_files import Json, write_json
from memory_program.core.provenance import provenance
from memory_program.evaluation.seen_data import optimization_datasets
from memory_program.models.model_names import model_program
from memory_program.optimization.call_journal import ReplyCache
from memory_program.optimization.candidate_evaluator import CandidateEvaluator, PromptCandidate
from memory_program.optimization.candidate_selection import compare_with_baseline, val_interval
from memory_program.optimization.judge_target import JudgeOptimizationTarget
from memory_program.optimization.memory_target import MemoryOptimizationTarget
from memory_program.optimization.optimization_stage import StageResult
from memory_program.optimization.prompt_text import fingerprint_prompts, prompts_to_json, read_prompts

OptimizationTarget = MemoryOptimizationTarget | JudgeOptimizationTarget
"""A program to improve, with the cases to try it on."""


def run_results(
    config: OptimizeConfig, subject: OptimizationTarget, stages: Sequence[StageResult], calls: ReplyCache
) -> Json:
    """Describe as JSON the candidates of a run, the winners, and everything that the scores depend on.

    Args:
        config: the config of the run.
        subject: the program that was improved, and its cases.
        stages: the results of the stages.
        calls: the calls of the run.
    """
    programs = [config.program]
    if config.target is not Target.JUDGE:  # the prompts may be those of models that were trained
        programs += [model_program(model) for model in (config.writer, config.model)]

    def score_json(stage: StageResult, candidate: PromptCandidate) -> Json:
        interval = val_interval(stage.evaluator, candidate, config.seed)
        if interval is None:
            return {"score": None, "signature": None}
        signature = subject.signature(stage.target, candidate, interval["n"], stage.fixed_settings)
        is_whole = stage.evaluator.is_fully_validated(candidate)
        errors = subject.errors(stage.evaluator, candidate) if is_whole else {}
        return {"score": interval, "signature": signature, **errors}

    described: list[Json] = []
    for stage in stages:
        evaluator, choice = stage.evaluator, stage.choice
        tally = evaluator.tally
        failures = {"failed": tally.failed, "first_failure": tally.first_failure}
        described.append(
            {
                "target": stage.target.value,
                "stopped": stage.stopped,
                "examples": {"train": len(evaluator.train), "val": len(evaluator.val)},
                "attempts": {"scored": tally.succeeded, **failures},
                "baseline": score_json(stage, evaluator.baseline),
                "winner": {
                    "number": choice.winner.number,
                    "is_baseline": choice.winner is evaluator.baseline,
                    **score_json(stage, choice.winner),
                },
                "comparison": asdict(choice.comparison) if choice.comparison is not None else None,
                "candidates": [candidate_json(config, evaluator, one) for one in evaluator.candidates],
            }
        )
    return {
        "optimizer": config.optimizer.value,
        "target": config.target.value,
        "settings": config.model_dump(mode="json", exclude={*MACHINE_SETTINGS, "dataset", "program"}),
        **optimization_datasets(subject.dataset, programs),
        "models": {"task": config.model, "prompts": config.proposer, "judge": config.judge},
        **provenance(),
        "program": fingerprint_prompts(read_prompts(subject.program)),
        "calls": {"used": calls.used, **asdict(calls.usage)},
        "lost_sessions": subject.lost_sessions,
        "stages": described,
    }


def save_program(path: Path, program: dspy.Module, results: Json) -> None:
    """Write a program as DSPy does (JSON, without models), with its results as metadata.

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


def candidate_json(config: OptimizeConfig, evaluator: CandidateEvaluator, candidate: PromptCandidate) -> Json:
    """Describe a candidate: its prompts and scores, and the difference from the baseline."""
    interval = comparison = None
    if evaluator.is_fully_validated(candidate):
        interval = val_interval(evaluator, candidate, config.seed)
        comparison = compare_with_baseline(evaluator, candidate, config.seed)
    return {
        "number": candidate.number,
        "fingerprint": candidate.name,
        "train": {"score": candidate.train_score, "tries": len(candidate.train)},
        "val": interval,
        "against_baseline": asdict(comparison) if comparison is not None else None,
        "calls": candidate.calls,
        "prompts": prompts_to_json(candidate.prompts),
    }
