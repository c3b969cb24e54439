"""The cost of a run, estimated before it starts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from locomo.types import Conversation
from memory_program.bank.budget import count_tokens
from memory_program.configs.endpoints import Role, server_address
from memory_program.configs.evaluate_config import EvaluateConfig, SystemName
from memory_program.core.errors import BudgetExceededError, ConfigError
from memory_program.models.http_engine import is_reasoning_model
from memory_program.models.model_names import runs_here
from memory_program.models.reply_settings import ReplySettings, thinking_tokens
from memory_program.models.usage import BATCH_PRICE_SHARE, estimate_cost

# Means over LoCoMo, in tokens. An estimate within a factor of two is good enough.
_WRITER_PROMPT, _RELATED_MEMORIES, _WRITER_REPLY = 900, 700, 400
_READER_PROMPT, _READER_REPLY, _SHOWN_ITEM = 350, 30, 45
_JUDGE_PROMPT, _JUDGE_REPLY = 450, 80
_SPECIALISTS = 4
_STAGES = {Role.WRITER: "build", Role.READER: "answer", Role.JUDGE: "judge"}
_PHASES = 2


@dataclass(frozen=True, slots=True)
class StageEstimate:
    """The remaining calls of a stage; the cost is None if the price of the model is unknown."""

    system: str
    stage: str
    model: str
    calls: int
    cost_usd: float | None
    tokens: int = 0
    """Tokens sent and received."""
    thinks: bool = False
    """True if the model also writes thoughts. They are paid, and the estimate leaves them out."""


def estimate_build(
    config: EvaluateConfig, name: SystemName, conversations: Sequence[Conversation], missing: int
) -> StageEstimate | None:
    """Estimate the calls to write ``missing`` sessions; None if there are none."""
    writer = config.writer_model_for(name)
    if not missing or writer is None:
        return None
    transcripts = [count_tokens(s.transcript) for c in conversations for s in c.sessions]
    is_generalist = config.system.writer.writer_mode == "generalist"  # it does the work of all in one call
    agents, share = (1, _SPECIALISTS) if is_generalist else (_SPECIALISTS, 1)
    input_tokens = _WRITER_PROMPT + share * _RELATED_MEMORIES + fmean(transcripts)
    calls = (
        missing
        * agents
        * config.system.writer.writer_max_turns
        * (_PHASES if config.build == "two-phase" else 1)
    )
    return _estimate(config, Role.WRITER, name, writer, calls, input_tokens, share * _WRITER_REPLY)


def estimate_answers(
    config: EvaluateConfig, name: SystemName, conversations: Sequence[Conversation], missing: int
) -> StageEstimate | None:
    """Estimate the calls to answer ``missing`` questions; None if there are none."""
    reader = config.reader_model_for(name)
    if not missing or reader is None:
        return None
    if name is SystemName.NO_MEMORY:
        context_tokens = 0.0
    elif name is SystemName.FULL_CONTEXT:
        most = config.system.reader.full_context_tokens or math.inf
        lengths = (sum(count_tokens(s.transcript) for s in c.sessions) for c in conversations)
        context_tokens = fmean(min(most, length) for length in lengths)
    else:
        shown, copies = config.system.retrieval, 2 if config.system.reader.with_verbatim_turns else 1
        context_tokens = min(shown.reader_budget, shown.top_k * _SHOWN_ITEM * copies)
    calls = missing * (1 + config.system.reader.max_searches)
    input_tokens = _READER_PROMPT + context_tokens
    return _estimate(config, Role.READER, name, reader, calls, input_tokens, _READER_REPLY)


def estimate_judgements(config: EvaluateConfig, name: str, missing: int) -> StageEstimate | None:
    """Estimate the calls to give ``missing`` verdicts; None if there are none, or no judge."""
    if not missing or config.judge is None:
        return None
    return _estimate(config, Role.JUDGE, name, config.judge, missing, _JUDGE_PROMPT, _JUDGE_REPLY)


def _estimate(
    config: EvaluateConfig,
    role: Role,
    name: str,
    model: str,
    calls: int,
    input_tokens: float,
    output_tokens: float,
) -> StageEstimate:
    address = server_address(config, role)
    cost_usd = estimate_cost(model, calls, input_tokens, output_tokens, api_base=address)
    if config.batch and cost_usd is not None:
        cost_usd *= BATCH_PRICE_SHARE
    tokens = round(calls * (input_tokens + output_tokens))
    thinks = writes_thoughts(model, config.system.replies.settings())
    return StageEstimate(str(name), _STAGES[role], model, calls, cost_usd, tokens, thinks)


def writes_thoughts(model: str, replies: ReplySettings) -> bool:
    """Tell if a model is known to write thoughts, which are paid beside its replies."""
    return is_reasoning_model(model) or thinking_tokens(model, replies.chat_template_kwargs) > 0


def check_affordable(
    estimates: Sequence[StageEstimate], spent_usd: float, max_cost_usd: float | None
) -> None:
    """Refuse to start a run that would cost too much.

    Args:
        estimates: the remaining calls.
        spent_usd: the cost of the run so far.
        max_cost_usd: the limit for the whole run; None is no limit.

    Raises:
        ConfigError: there is a limit, and a model with an unknown price.
        BudgetExceededError: the estimate is over the limit.
    """
    if max_cost_usd is None or not estimates:  # a finished run is reported, whatever it has cost
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
            f"the run would cost about ${expected:.4f}, more than max_cost={max_cost_usd!r}: raise "
            "--max-cost, ask fewer questions (--num-test, --conversations), or choose a cheaper model; no "
            "session was written and no question asked"
        )


def format_estimates(estimates: Sequence[StageEstimate]) -> list[str]:
    """Write the estimate as lines to print; calls to models on this machine cost nothing and have no line."""
    hosted = [estimate for estimate in estimates if not runs_here(estimate.model)]
    if not hosted:
        return []
    lines = [
        f"  {e.system} {e.stage}: {e.calls:,} calls to {e.model}, about {e.tokens:,} tokens, "
        + (f"about ${e.cost_usd:.4f}" if e.cost_usd is not None else "price unknown")
        + (", thoughts not included" if e.thinks else "")
        for e in hosted
    ]
    known = [estimate.cost_usd for estimate in hosted if estimate.cost_usd is not None]
    rest = ", plus calls of unknown price" if len(known) < len(hosted) else ""
    return [f"estimated cost: about ${sum(known):.4f}{rest}" if known else "estimated cost: unknown", *lines]
