"""The reward over HTTP, for other trainers: ``python -m memory_program.serving.reward_server --help``.

A request carries whole episodes and replies; no path from a request is ever opened. A bad item of a batch
has its own error, and the others are rewarded.
"""

import hmac
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Literal, Self, TypeGuard

import dspy
import orjson
import uvicorn
from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, Response
from pydantic import Field, model_validator

from locomo.judge.rubrics import Rubric
from memory_program import __version__
from memory_program.agents.context import MemoryContext
from memory_program.agents.model_prompts import load_agent_prompts
from memory_program.agents.predict_call import dspy_history_disabled
from memory_program.agents.reader import QAReader
from memory_program.bank.memory import MemoryKind
from memory_program.configs.groups import GradingSettings, RetrievalSettings, ServerAddress
from memory_program.configs.serve_config import LOOPBACK
from memory_program.configs.trainer_groups import DEFAULT_LENGTHS, LengthSettings
from memory_program.core.command_line import parse_flags, run_script
from memory_program.core.errors import ConfigError, MemoryProgramError, RecordError
from memory_program.core.json_files import Json
from memory_program.core.parallel import run_parallel
from memory_program.core.settings import Settings
from memory_program.models.factory import check_model, language_model
from memory_program.models.memoized import memoized
from memory_program.models.model_names import POCKET_BASE
from memory_program.models.reply_settings import ReplySettings, most_reply_tokens
from memory_program.rl.episode_json import episode_from_json
from memory_program.rl.rewards import RewardRule, build_answer_metric
from memory_program.serving.loopback import find_foreign_host
from memory_program.serving.reply_rewards import AGENTS, MAX_EARLIER, ReplyRewarder

TOKEN_VARIABLE = "MEMORY_PROGRAM_REWARD_TOKEN"
"""The environment variable with the bearer token."""

_MAX_REPLY_CHARS = 200_000  # of one reply; the longest that a model is likely to be allowed


class RewardServerConfig(Settings, init=False):
    """Serve the reward of replies over HTTP."""

    host: str = "127.0.0.1"
    """Address to listen on. Any address but those of this machine alone needs a token in the environment, as
    MEMORY_PROGRAM_REWARD_TOKEN."""

    port: int = Field(default=8765, ge=0, le=65_535)
    """Port to listen on."""

    reader_model: str = POCKET_BASE
    """Model that answers from the memories: any that evaluate.py takes."""

    api_base: ServerAddress

    grading: GradingSettings = GradingSettings()

    reward_rule: Literal["outcome", "dense", "delta"] = "dense"
    """Reward of a reply, as in train.py."""

    lengths: LengthSettings = DEFAULT_LENGTHS

    alpha: float = Field(default=4.0, ge=1)
    """Credit assignment: weight of a reply whose memories were retrieved. The response has it beside the
    reward."""

    retrieval: RetrievalSettings = RetrievalSettings()

    max_items: int = Field(default=256, ge=1)
    """Maximum number of items in a request."""

    max_megabytes: float = Field(default=16.0, gt=0)
    """Maximum size of a request, in megabytes."""

    threads: int = Field(default=16, ge=1)
    """Number of items of a request that are rewarded in parallel."""

    @model_validator(mode="after")
    def _check_judge(self) -> Self:
        self.grading.check_has_judge()
        return self


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Limits of a request, and the token that it must show; without a token, every request is allowed.

    ``is_local`` refuses requests of web pages of other hosts.
    """

    max_items: int = 256
    max_bytes: int = 16_000_000
    threads: int = 16
    token: str | None = None
    is_local: bool = False


def make_app(rewarder: ReplyRewarder, limits: RequestLimits) -> FastAPI:
    """Make the application: ``GET /health``, and ``POST /reward`` with ``{"items": [...]}``.

    An item is ``{"episode": ..., "agent": ..., "reply": ...}``, and may have an ``id``, and the ``earlier``
    replies of the agent in its turns before. For each the answer holds ``reward``, ``score``,
    ``length_penalty``, ``is_valid``, and of the attribution ``retrieved`` and ``weight`` (see
    ``ReplyReward``); or ``error``; in the items' order.
    """
    app = FastAPI(title="memory-program reward", version=__version__, docs_url=None, redoc_url=None)

    async def health() -> dict[str, str]:
        return {"status": "ok", "version": __version__}

    async def reward(request: Request) -> Response:
        foreign = find_foreign_host(request.headers) if limits.is_local else None
        if foreign is not None:
            return _error_response(403, foreign)
        given = request.headers.get("authorization", "").encode()
        if limits.token is not None and not hmac.compare_digest(given, f"Bearer {limits.token}".encode()):
            return _error_response(
                401, f"send the token as 'Authorization: Bearer ...'; the server has it from {TOKEN_VARIABLE}"
            )
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > limits.max_bytes:
                return _error_response(
                    413, f"a request may have {limits.max_bytes:,} bytes: send fewer items at once"
                )
        try:
            try:
                document = orjson.loads(body)
            except orjson.JSONDecodeError:
                document = json.loads(body)  # only this reads half a surrogate pair, which a reply may hold
        except (ValueError, RecursionError) as error:
            return _error_response(400, f"the request is not JSON ({error}): send an object with 'items'")
        items = document.get("items") if isinstance(document, dict) else None
        if not isinstance(items, list) or not items:
            return _error_response(
                400, "the request has no items: send an object with a list of one or more under 'items'"
            )
        most = limits.max_items
        if len(items) > most:
            return _error_response(
                400, f"{len(items)} items are more than the {most} that a request may have: send fewer"
            )
        tasks = [partial(_reward_item, rewarder, item) for item in items]
        rewards = await run_in_threadpool(run_parallel, tasks, limits.threads)
        return Response(json.dumps({"items": rewards}), media_type="application/json")

    app.add_api_route("/health", health)
    app.add_api_route("/health", health, methods=["HEAD"], include_in_schema=False)
    app.add_api_route("/reward", reward, methods=["POST"])
    return app


def _reward_item(rewarder: ReplyRewarder, item: object) -> Json:
    """Reward an item, or return its error."""
    identity = item.get("id") if isinstance(item, dict) else None
    named = {"id": identity} if isinstance(identity, str | int) else {}
    try:
        if not isinstance(item, dict):
            raise RecordError(
                f"{item!r:.80} is not an item: expected an object with episode, agent and reply"
            )
        agent, reply, episode = (item.get(name) for name in ("agent", "reply", "episode"))
        if agent not in AGENTS:
            raise RecordError(f"unknown agent {agent!r:.80}: choose from {', '.join(AGENTS)}")
        if not _is_reply(reply):
            raise RecordError(f"reply is no text of at most {_MAX_REPLY_CHARS:,} characters: {reply!r:.80}")
        if not isinstance(episode, dict):
            raise RecordError(f"episode={episode!r:.80} is not an object: write it with episode_to_json")
        expert_tokens = episode.get("expert_tokens")
        has_counts = isinstance(expert_tokens, dict) and all(
            kind in set(MemoryKind) and type(count) is int and count >= 0
            for kind, count in expert_tokens.items()
        )
        if expert_tokens is not None and not has_counts:
            raise RecordError(
                f"expert_tokens={expert_tokens!r:.80} are no counts by kind: expected for example "
                "{'episodic': 120, 'semantic': 80}"
            )
        earlier = item.get("earlier", [])
        if not isinstance(earlier, list) or len(earlier) > MAX_EARLIER or not all(map(_is_reply, earlier)):
            raise RecordError(
                f"earlier={earlier!r:.80} is no list of at most {MAX_EARLIER} replies: give the texts of the "
                "agent's replies in its turns before"
            )
        with dspy_history_disabled():
            found = rewarder.reward(episode_from_json(episode), agent, reply, expert_tokens, earlier)
    except MemoryProgramError as error:
        return {**named, "error": error.server_message}
    except RecursionError:
        return {**named, "error": "the item is nested too deeply to be read"}
    if found.reward is None:
        return {**named, "error": f"no reward can be given: {found.reason}"}
    parts = asdict(found)
    del parts["reason"]
    return {**named, **parts}


def _is_reply(given: object) -> TypeGuard[str]:
    return isinstance(given, str) and len(given) <= _MAX_REPLY_CHARS


def _error_response(status: int, message: str) -> Response:
    return JSONResponse({"error": message}, status_code=status)


def serve_rewards(config: RewardServerConfig) -> None:
    """Make the models, and serve until the process ends.

    Raises:
        ConfigError: the address is open to others, and there is no token.
        ModelError: a model cannot be used.
    """
    token = os.environ.get(TOKEN_VARIABLE) or None
    if config.host not in LOOPBACK and token is None:
        raise ConfigError(
            f"host={config.host!r} is open to other machines: set a token in the environment as "
            f"{TOKEN_VARIABLE}, or leave --host out"
        )

    def make_lm(name: str) -> dspy.LM:
        limit = most_reply_tokens(name, ReplySettings())
        lm = language_model(name, api_base=config.api_base, temperature=0.0, max_tokens=limit)
        check_model(lm)
        return lm

    lm, judge_name = make_lm(config.reader_model), config.grading.judge_model
    judge = None if judge_name is None else make_lm(judge_name)
    shown = config.retrieval
    reader = QAReader(MemoryContext(shown.top_k, shown.reader_budget, shown.min_relative_score))
    load_agent_prompts(reader, "reader", config.reader_model)
    reader.set_lm(memoized(lm))
    metric = build_answer_metric(config.grading.metric, Rubric(config.grading.rubric), judge)
    max_bytes = int(config.max_megabytes * 1e6)
    limits = RequestLimits(config.max_items, max_bytes, config.threads, token, is_local=token is None)
    rule = RewardRule(config.reward_rule, config.lengths.length_weight)
    app = make_app(ReplyRewarder(reader, metric, rule, config.lengths, config.alpha), limits)
    # no log of accesses: it would have a line a request, thousands a step
    uvicorn.run(app, host=config.host, port=config.port, log_level="info", access_log=False)


def main(
    arguments: Sequence[str] | None = None, prog: str = "python -m memory_program.serving.reward_server"
) -> int:
    """Serve with the settings of the command line, and return the exit status."""
    return run_script(lambda: serve_rewards(parse_flags(RewardServerConfig, arguments, prog=prog)))


if __name__ == "__main__":
    sys.exit(main())
