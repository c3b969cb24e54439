"""What a run will cost, estimated before it starts."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from locomo.types import Conversation
from memory_program.bank.budget import count_tokens
from memory_program.configs.evaluate_config import EvaluateConfig, SystemName
from memory_program.core.errors import BudgetExceededError, ConfigError
from memory_program.models.usage import estimate_cost

# Means over LoCoMo, in tokens. An estimate need not be better than within a factor of two.
_WRITER_PROMPT, _RELATED_MEMORIES, _WRITER_REPLY = 900, 700, 400
_READER_PROMPT, _READER_REPLY, _SHOWN_ITEM = 350, 30, 45
_JUDGE_PROMPT, _JUDGE_REPLY = 450, 80
_SPECIALISTS = 4
_PHASES = 2


@dataclass(frozen=True, slots=True)
class StageEstimate:
    """The calls of a stage that are still to be made; the cost is None where the model has no known price."""

    system: str
    stage: str
    model: str
    calls: int
    cost_usd: float | None
    tokens: int = 0
    """What is sent and received, in all."""


def estimate_build(
    config: EvaluateConfig, name: SystemName, conversations: Sequence[Conversation], missing: int
) -> StageEstimate | None:
    """Estimate writing ``missing`` sessions; None if that takes no call."""
    writer = config.writer_model_for(name)
    if not missing or writer is None:
        return None
    transcripts = [count_tokens(s.transcript) for c in conversations for s in c.sessions]
    agents = _SPECIALISTS if config.system.writer.writer_mode == "specialists" else 1
    input_tokens = _WRITER_PROMPT + _RELATED_MEMORIES + fmean(transcripts)
    calls = (
        missing
        * agents
        * config.system.writer.writer_max_turns
        * (_PHASES if config.build == "two-phase" else 1)
    )
    return _estimate(config, name, "build", writer, calls, input_tokens, _WRITER_REPLY)


def estimate_answers(
    config: EvaluateConfig, name: SystemName, conversations: Sequence[Conversation], missing: int
) -> StageEstimate | None:
    """Estimate answering ``missing`` questions; None if that takes no call."""
    if not missing or config.reader is None or not name.has_model_reader:
        return None
    calls = missing * (1 + config.system.reader.max_searches)
    input_tokens = _READER_PROMPT + _context_tokens(config, name, conversations)
    return _estimate(config, name, "answer", config.reader, calls, input_tokens, _READER_REPLY)


def estimate_judgements(config: EvaluateConfig, name: str, missing: int) -> StageEstimate | None:
    """Estimate ``missing`` verdicts; None if there are none, or no judge."""
    if not missing or config.judge is None:
        return None
    return _estimate(config, name, "judge", config.judge, missing, _JUDGE_PROMPT, _JUDGE_REPLY)


def _context_tokens(config: EvaluateConfig, name: SystemName, conversations: Sequence[Conversation]) -> float:
    if name is SystemName.NO_MEMORY:
        return 0
    if name is SystemName.FULL_CONTEXT:
        return fmean(sum(count_tokens(s.transcript) for s in c.sessions) for c in conversations)
    shown = config.system.retrieval
    return min(
        shown.reader_budget,
        shown.top_k * _SHOWN_ITEM * (2 if config.system.reader.with_verbatim_turns else 1),
    )


def _estimate(
    config: EvaluateConfig,
    name: str,
    stage: str,
    model: str,
    calls: int,
    input_tokens: float,
    output_tokens: float,
) -> StageEstimate:
    cost_usd = estimate_cost(model, calls, input_tokens, output_tokens, api_base=config.api_base)
    tokens = round(calls * (input_tokens + output_tokens))
    return StageEstimate(str(name), stage, model, calls, cost_usd, tokens)


def check_affordable(
    estimates: Sequence[StageEstimate], spent_usd: float, max_cost_usd: float | None
) -> None:
    """Refuse to start what would cost too much.

    Args:
        estimates: what is still to be done.
        spent_usd: what the records of the run have cost so far.
        max_cost_usd: what the whole run may cost; None is no limit.

    Raises:
        ConfigError: there is a limit, and a model without a known price.
        BudgetExceededError: the estimate is over the limit.
    """
    if max_cost_usd is None:
        return
    unpriced = sorted({estimate.model for estimate in estimates if estimate.cost_usd is None})
    if unpriced:
        raise ConfigError(
            f"max_cost={max_cost_usd!r} cannot be kept: as called here, {', '.join(unpriced)} has no known "
            "price; leave --max-cost out, or choose a model with a list price"
        )
    expected = spent_usd + sum(estimate.cost_usd or 0.0 for estimate in estimates)
    if expected > max_cost_usd:
        raise BudgetExceededError(
            f"the run would cost about ${expected:.4f}, and max_cost={max_cost_usd!r}: raise --max-cost, ask "
            "fewer questions (--num-test, --conversations), or take a cheaper model; nothing was called"
        )


def format_estimates(estimates: Sequence[StageEstimate]) -> list[str]:
    """Write the estimate as lines to print; none if there is no call to make."""
    lines = [
        f"  {e.system} {e.stage}: {e.calls:,} calls to {e.model}, about {e.tokens:,} tokens, "
        + (f"about ${e.cost_usd:.4f}" if e.cost_usd is not None else "price unknown")
        for e in estimates
    ]
    if not lines:
        return []
    known = [estimate.cost_usd for estimate in estimates if estimate.cost_usd is not None]
    beside = ", and what has no known price" if len(known) < len(lines) else ""
    return [f"estimated cost: about ${sum(known):.4f}{beside}" if known else "cost: unknown", *lines]
