"""What an optimisation will take, estimated before it starts; good to within a factor of two or so."""

from memory_program.agents.program import MemoryProgram
from memory_program.configs.evaluate_config import EvaluateConfig, SystemName
from memory_program.configs.optimize_config import OptimizeConfig, Target
from memory_program.evaluation.stages.cost_estimate import (
    StageEstimate,
    estimate_answers,
    estimate_build,
    estimate_judgements,
)
from memory_program.models.usage import estimate_cost
from memory_program.optimization.candidate_selection import MAX_FINALISTS
from memory_program.optimization.dev_data import OptimizationSplits
from memory_program.optimization.optimizers import expected_attempts, expected_proposals

_PROPOSAL_TOKENS, _PROPOSAL_REPLY_TOKENS = 4000, 500


def estimate_run(
    config: OptimizeConfig, material: OptimizationSplits, program: MemoryProgram
) -> list[StageEstimate]:
    """Estimate the calls of all stages, those included whose replies are on disk from an earlier try.

    Args:
        config: of the run.
        material: what it works on.
        program: what it begins with.
    """
    estimates: list[StageEstimate | None] = []
    sessions = everything = sum(len(conversation.sessions) for conversation in material.used)
    for target in config.rounds * config.target.stages:
        estimates += _estimate_stage(config, target, material, program, sessions)
        sessions = everything if target is Target.WRITER else 0  # who was improved remembers anew
    return [estimate for estimate in estimates if estimate is not None]


def estimate_judging(config: OptimizeConfig, train: int, val: int, predictors: int) -> list[StageEstimate]:
    """Estimate the calls that improve a judge, those included whose replies are on disk from an earlier try.

    Args:
        config: of the run.
        train: how many answers there are to learn from.
        val: how many there are to choose on.
        predictors: how many prompts the judge has.
    """
    attempts = config.rounds * (expected_attempts(config, train, val) + (1 + MAX_FINALISTS) * val)
    proposals = config.rounds * expected_proposals(config, predictors)
    as_evaluated = EvaluateConfig(judge_model=config.model, api_base=config.api_base)
    estimates = [
        estimate_judgements(as_evaluated, "known answers", attempts),
        _estimate_proposals(config, proposals) if proposals else None,
    ]
    return [estimate for estimate in estimates if estimate is not None]


def _estimate_stage(
    config: OptimizeConfig,
    target: Target,
    material: OptimizationSplits,
    program: MemoryProgram,
    sessions: int,
) -> list[StageEstimate | None]:
    train, val = (_num_examples(config, target, material, split) for split in ("train", "val"))
    attempts = expected_attempts(config, train, val) + (1 + MAX_FINALISTS) * val
    is_writer = target is Target.WRITER
    questions = attempts * (config.episode_questions if is_writer else 1)
    part = program.writer if is_writer else program.reader
    proposals = expected_proposals(config, len(part.named_predictors()))
    as_evaluated = EvaluateConfig(
        systems=SystemName.MEMORY.value,
        model=config.model,
        judge_model=config.judge,
        api_base=config.api_base,
        system=config.system,
    )
    name, used = SystemName.MEMORY, material.used
    return [
        estimate_build(as_evaluated, name, used, sessions + attempts * is_writer),
        estimate_answers(as_evaluated, name, used, questions),
        estimate_judgements(as_evaluated, name, questions) if config.judge is not None else None,
        _estimate_proposals(config, proposals) if proposals else None,
    ]


def _num_examples(config: OptimizeConfig, target: Target, material: OptimizationSplits, split: str) -> int:
    conversations = material.train if split == "train" else material.val
    limit = config.num_examples if split == "train" else config.num_val
    if target is Target.READER:
        return min(limit, sum(len(conversation.questions) for conversation in conversations))
    return min(limit, sum(len(conversation.sessions) for conversation in conversations))


def _estimate_proposals(config: OptimizeConfig, calls: int) -> StageEstimate:
    cost_usd = estimate_cost(
        config.proposer, calls, _PROPOSAL_TOKENS, _PROPOSAL_REPLY_TOKENS, api_base=config.api_base
    )
    tokens = calls * (_PROPOSAL_TOKENS + _PROPOSAL_REPLY_TOKENS)
    return StageEstimate(config.optimizer.value, "propose", config.proposer, calls, cost_usd, tokens)
