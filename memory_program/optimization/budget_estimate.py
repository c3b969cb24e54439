"""Estimates of the calls and the cost of an optimisation before it starts, good to about a factor of two."""

from memory_program.agents.program import MemoryProgram
from memory_program.configs.endpoints import Role, server_address
from memory_program.configs.evaluate_config import EvaluateConfig, SystemName
from memory_program.configs.optimize_config import OptimizeConfig, Target
from memory_program.evaluation.data_splits import DataSplits
from memory_program.evaluation.stages.cost_estimate import (
    StageEstimate,
    estimate_answers,
    estimate_build,
    estimate_judgements,
    writes_thoughts,
)
from memory_program.models.usage import estimate_cost
from memory_program.optimization.dev_examples import conversations_to_ask
from memory_program.optimization.optimizers import expected_attempts, expected_proposals, num_finalists

_PROPOSAL_TOKENS, _PROPOSAL_REPLY_TOKENS = 4000, 500


def estimate_run(config: OptimizeConfig, splits: DataSplits, program: MemoryProgram) -> list[StageEstimate]:
    """Estimate the calls of all stages, including those whose replies are on disk from an earlier try.

    Args:
        config: the config of the run.
        splits: the conversations by split.
        program: the program that the run begins with.
    """
    name, known = SystemName.MEMORY, set[str]()  # the conversations whose memories are written
    as_evaluated = EvaluateConfig(
        systems=name.value,
        model=config.model,
        writer_model=config.writer_model,
        judge_model=config.judge,
        api_base=config.api_base,
        judge_api_base=config.judge_api_base,
        system=config.system,
    )
    limits = ((splits.train, config.num_examples), (splits.val, config.num_val))
    estimates: list[StageEstimate | None] = []
    for target in config.rounds * config.target.stages:
        is_writer = target is Target.WRITER
        train, val = (
            min(limit, sum(len(c.sessions if is_writer else c.questions) for c in conversations))
            for conversations, limit in limits
        )
        drawn = [c if is_writer else conversations_to_ask(c, limit) for c, limit in limits]
        used = [conversation for of_split in drawn for conversation in of_split]
        sessions = sum(len(c.sessions) for c in used if c.conversation_id not in known)
        # an improved writer processes every session again
        known = set() if is_writer else known | {c.conversation_id for c in used}
        is_retrieval = target is Target.RETRIEVAL
        attempts = expected_attempts(config, train, val) + (1 + num_finalists(config)) * val
        if is_retrieval:
            attempts = config.retrieval_trials * train + 2 * val
        questions = attempts * (config.episode_questions if is_writer else 1)
        part = program.writer if is_writer else program.reader
        estimates += [
            estimate_build(as_evaluated, name, used, sessions + attempts * is_writer),
            estimate_answers(as_evaluated, name, used, questions),
            estimate_judgements(as_evaluated, name, questions) if config.judge is not None else None,
            None
            if is_retrieval
            else _estimate_proposals(config, expected_proposals(config, len(part.named_predictors()))),
        ]
    return [estimate for estimate in estimates if estimate is not None]


def estimate_judging(config: OptimizeConfig, train: int, val: int, predictors: int) -> list[StageEstimate]:
    """Estimate the calls that improve a judge, including those whose replies are on disk from an earlier try.

    Args:
        config: the config of the run.
        train: number of answers to learn from.
        val: number of answers to choose on.
        predictors: number of prompts of the judge.
    """
    attempts = config.rounds * (expected_attempts(config, train, val) + (1 + num_finalists(config)) * val)
    as_evaluated = EvaluateConfig(
        judge_model=config.model, api_base=config.api_base, judge_api_base=config.judge_api_base
    )
    estimates = [
        estimate_judgements(as_evaluated, "known answers", attempts),
        _estimate_proposals(config, config.rounds * expected_proposals(config, predictors)),
    ]
    return [estimate for estimate in estimates if estimate is not None]


def _estimate_proposals(config: OptimizeConfig, calls: int) -> StageEstimate | None:
    """Estimate the calls that write instructions; None without any."""
    if not calls:
        return None
    address = server_address(config, Role.PROMPT)
    cost_usd = estimate_cost(
        config.proposer, calls, _PROPOSAL_TOKENS, _PROPOSAL_REPLY_TOKENS, api_base=address
    )
    tokens = calls * (_PROPOSAL_TOKENS + _PROPOSAL_REPLY_TOKENS)
    thinks = writes_thoughts(config.proposer, config.system.replies.settings())
    return StageEstimate(config.optimizer.value, "propose", config.proposer, calls, cost_usd, tokens, thinks)
