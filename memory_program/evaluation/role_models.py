"""The models of a run by role: each made once, from the address and the key of its role."""

from collections.abc import Callable, Sequence
from functools import cache

import dspy

from locomo.types import Conversation
from memory_program.bank.dense import DenseIndex
from memory_program.configs.endpoints import Role, server_address
from memory_program.configs.evaluate_config import EvaluateConfig
from memory_program.configs.optimize_config import OptimizeConfig
from memory_program.configs.serve_config import ServeConfig
from memory_program.configs.sft_config import TrajectoriesConfig
from memory_program.core.errors import ConfigError, ModelError
from memory_program.core.run_folder import EMBEDDINGS_FILE
from memory_program.models.batch_queue import BatchQueue, calling_directly
from memory_program.models.embedders import load_embedder
from memory_program.models.factory import (
    AdaptiveLimiter,
    check_model,
    language_model,
    takes_chat_template,
)
from memory_program.models.http_engine import read_key
from memory_program.models.model_names import OBSERVATIONS, is_local
from memory_program.models.rate_limit import RetryPolicy
from memory_program.models.reply_settings import most_reply_tokens
from memory_program.worlds.observation_expert import observations_lm

ModelFactory = Callable[[str, float], dspy.LM]
"""Makes the language model of a name and a temperature, ready for calls."""

RoleModels = Callable[[Role, str, float], dspy.LM]
"""Makes the language model of a role, a name and a temperature, ready for calls."""

_NAMES = {
    Role.WRITER: "writer",
    Role.READER: "reader",
    Role.JUDGE: "judge",
    Role.PROMPT: "instruction writer",
}


def load_dense_index(config: EvaluateConfig | OptimizeConfig | ServeConfig) -> DenseIndex | None:
    """Make the dense index of the embedding model of a run or of a server; None for retrieval by words.

    A run keeps all vectors in a file. A server keeps none beside its database, since no vector in such a file
    says whose it is; and it gives up soon, since somebody waits.

    Raises:
        EmbeddingError: the model cannot be used.
        StoreError: the file of the vectors cannot be used.
    """
    search = config.search
    if search.embedder is None:
        return None
    is_server = isinstance(config, ServeConfig)
    return load_embedder(
        search.embedder,
        api_base=search.embedder_api_base or config.api_base,
        cache_file=None if is_server else config.output_dir / EMBEDDINGS_FILE,
        weight=search.weight,
        reranker=search.reranker,
        limiter=AdaptiveLimiter(config.concurrency),
        retries=RetryPolicy(max_retries=1, max_wait_s=2.0, max_retry_after_s=5.0) if is_server else None,
    )


def with_locomo_notes(models: RoleModels, conversations: Sequence[Conversation]) -> RoleModels:
    """Let LoCoMo's own notes on some conversations write memories, where they are the writer."""

    def make(role: Role, name: str, temperature: float) -> dspy.LM:
        is_notes = role is Role.WRITER and name == OBSERVATIONS
        return observations_lm(conversations) if is_notes else models(role, name, temperature)

    return make


def check_template_arguments(
    config: EvaluateConfig | OptimizeConfig | ServeConfig | TrajectoriesConfig,
    named: Sequence[tuple[Role, str | None]],
) -> None:
    """Check that the arguments of the chat template reach a model of a run, if there are any.

    Raises:
        ConfigError: they reach none, and would only stand in the signature.
    """
    given = config.system.replies.chat_template_kwargs
    models = [(role, name) for role, name in named if name is not None and name != OBSERVATIONS]
    if not given or not models:
        return
    if not any(takes_chat_template(name, server_address(config, role)) for role, name in models):
        names = ", ".join(dict.fromkeys(name for _, name in models))
        raise ConfigError(
            f"chat_template_kwargs={given!r} would not reach {names}, since hosted APIs have no such "
            "setting: leave it out, or give the address of your own server with --api-base"
        )


def make_role_models(
    config: EvaluateConfig | OptimizeConfig | ServeConfig,
    models: ModelFactory | None = None,
    *,
    check: bool = False,
    batches: BatchQueue | None = None,
) -> RoleModels:
    """Return the maker of a run's models. Roles with the same model at the same address share it.

    Args:
        config: has the addresses. Models of one address share its limit of calls in flight.
        models: makes the models in place of the config.
        check: make one small call to each model, so that one that does not answer is an error at once.
        batches: sends the calls through the providers' batch APIs.
    """
    if models is not None:
        return lambda role, name, temperature: models(name, temperature)

    replies = config.system.replies.settings()

    @cache
    def limiter(address: str | None) -> AdaptiveLimiter:
        return AdaptiveLimiter(config.concurrency)

    @cache
    def local_model(name: str) -> dspy.LM:
        # once: a second one would be a second network in memory
        return language_model(
            name,
            max_tokens=most_reply_tokens(name, replies),
            limiter=limiter(None),
            chat_template_kwargs=replies.chat_template_kwargs,
        )

    @cache
    def make(name: str, temperature: float, address: str | None, key_variable: str | None) -> dspy.LM:
        if is_local(name):
            lm = local_model(name).copy(temperature=temperature)
        else:
            takes_template = takes_chat_template(name, address)
            lm = language_model(
                name,
                api_base=address,
                key_variable=key_variable,
                temperature=temperature,
                max_tokens=most_reply_tokens(name, replies),
                limiter=limiter(address),
                chat_template_kwargs=replies.chat_template_kwargs if takes_template else None,
                batches=batches,
            )
        if check:
            with calling_directly():
                check_model(lm, tries=2)
        return lm

    def make_for_role(role: Role, name: str, temperature: float) -> dspy.LM:
        key_variable = role.key_variable if read_key(role.key_variable) else None
        try:
            return make(name, temperature, server_address(config, role), key_variable)
        except ModelError as error:
            own = [f"--{role.value}-{name}" for name in ("model", "api-base")]
            flags = (
                own if f"{role.value}_api_base" in type(config).flat_fields() else ["--model", "--api-base"]
            )
            raise ModelError(
                f"the model of the {_NAMES[role]} cannot be used: {error}; see {' and '.join(flags)}"
            ) from error

    return make_for_role
