"""What is kept of a run: the best program as a file, and all that was tried as JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import orjson

from memory_program import __version__
from memory_program.agents.program import MemoryProgram
from memory_program.evaluation.provenance import git_commit, lock_hash
from memory_program.evaluation.report import write_json
from memory_program.evaluation.scoring import Json
from memory_program.optimization.bench import Bench, Candidate
from memory_program.optimization.calls import PaidCalls
from memory_program.optimization.preparation import Material
from memory_program.optimization.prompts import as_json, fingerprint, prompts_of
from memory_program.optimization.selection import compared, val_interval
from memory_program.optimization.stage import StageResult
from memory_program.optimize_config import OptimizeConfig

_OF_THE_MACHINE = frozenset(
    {
        "api_base",
        "data",
        "dataset",
        "mlflow",
        "output",
        "output_dir",
        "program",
        "tracking_uri",
        "num_threads",
    }
)
"""Settings that say where and not what: addresses and paths; the dataset is told by its name and hash."""


def run_results(
    config: OptimizeConfig,
    material: Material,
    program: MemoryProgram,
    stages: Sequence[StageResult],
    calls: PaidCalls,
    lost_sessions: int,
) -> Json:
    """Say as JSON what a run tried, what won, and what that rests on.

    Args:
        config: of the run.
        material: what it worked on.
        program: what it ends with.
        stages: what was tried.
        calls: the calls of the run.
        lost_sessions: sessions in whose remembering a call failed.
    """
    return {
        "optimizer": config.optimizer.value,
        "target": config.target.value,
        "settings": config.model_dump(mode="json", exclude=set(_OF_THE_MACHINE)),
        "dataset": {
            "name": material.dataset.name,
            "sha256": material.dataset.sha256,
            "is_modified": material.dataset.is_modified,
            "train": [conversation.conversation_id for conversation in material.train],
            "val": [conversation.conversation_id for conversation in material.val],
            "test": list(material.test_ids),
        },
        "models": {"task": config.model, "prompts": config.proposer, "judge": config.judge},
        "version": __version__,
        "git_commit": git_commit(),
        "lock_hash": lock_hash(),
        "program": fingerprint(prompts_of(program)),
        "calls": {"used": calls.used, **asdict(calls.usage)},
        "lost_sessions": lost_sessions,
        "stages": [_stage(config, material, stage) for stage in stages],
    }


def save_program(path: Path, program: MemoryProgram, results: Json) -> None:
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


def _stage(config: OptimizeConfig, material: Material, stage: StageResult) -> Json:
    bench, choice = stage.bench, stage.choice
    comparison = choice.comparison
    return {
        "target": stage.target.value,
        "stopped": stage.stopped,
        "examples": {"train": len(bench.train), "val": len(bench.val)},
        "attempts": {"scored": bench.scored, "failed": bench.failed, "first_failure": bench.first_failure},
        "baseline": _score(config, material, bench, bench.baseline, stage.target.value),
        "winner": {
            "number": choice.winner.number,
            "is_baseline": choice.winner is bench.baseline,
            **_score(config, material, bench, choice.winner, stage.target.value),
        },
        "comparison": asdict(comparison) if comparison is not None else None,
        "candidates": [_candidate(config, bench, candidate) for candidate in bench.candidates],
    }


def _score(
    config: OptimizeConfig, material: Material, bench: Bench, candidate: Candidate, target: str
) -> Json:
    interval = val_interval(bench, candidate, config.seed)
    if interval is None:
        return {"score": None, "signature": None}
    return {"score": interval, "signature": signature(config, material, candidate, interval["n"], target)}


def signature(config: OptimizeConfig, material: Material, candidate: Candidate, n: int, target: str) -> str:
    """Write what a score on validation depends on, as one line to quote with it."""
    parts = {
        "cat": "1-5",
        "n": n,
        "judge": f"{config.judge}/{config.rubric}" if config.judge is not None else "none",
        "data": material.dataset.version,
        "v": __version__,
        "split": "val",
        "examples": "questions" if target == "reader" else "sessions",
        "model": config.model,
        "temperature": f"{config.temperature:g}",
        "prompts": candidate.name[:8],
        "seed": config.seed,
        **config.system_settings.model_dump(),
    }
    metric = {"f1": "locomo_f1", "judge": "judge", "mix": "mean(locomo_f1,judge)"}[config.metric]
    return "|".join([metric, *(f"{name}:{value}" for name, value in parts.items())])


def _candidate(config: OptimizeConfig, bench: Bench, candidate: Candidate) -> Json:
    is_validated = bench.is_validated(candidate)
    comparison = compared(bench, candidate, config.seed) if is_validated else None
    return {
        "number": candidate.number,
        "fingerprint": candidate.name,
        "train": {"score": candidate.train_score, "tries": len(candidate.train)},
        "val": val_interval(bench, candidate, config.seed) if is_validated else None,
        "against_baseline": asdict(comparison) if comparison is not None else None,
        "calls": candidate.calls,
        "prompts": as_json(candidate.prompts),
    }
