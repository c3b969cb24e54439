"""Settings that several commands share, in small groups. A default stands here once.

Docstrings are the help of the flags. Nothing slow is imported, so that ``--help`` answers at once.
"""

import json
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import tyro
from pydantic import Field, field_validator, model_validator

from memory_program.core.errors import ConfigError
from memory_program.core.settings import ApiBase, Settings, SettingsGroup, TrackingUri
from memory_program.models.model_names import OBSERVATIONS, embedder_fingerprint, is_bundled, is_local
from memory_program.models.reply_settings import ReplyFormat, ReplySettings

WriterMode = Literal["specialists", "generalist"]

_API_BASE = (
    "Base URL of your own OpenAI-compatible server, for example http://127.0.0.1:8000/v1. It is used for "
    "every API model without a base URL of its own."
)
_CONVERSATIONS = (
    "Comma-separated ids of the conversations to use; in LongMemEval question ids, in PerLTQA names. "
    "Default: all."
)
_CONCURRENCY = (
    "Maximum number of model calls in flight, and of tasks in parallel. 8 stays under most rate limits of "
    "new accounts."
)
_MAX_COST = (
    "Budget in US dollars, retries and earlier attempts included. Above it, the run stops and keeps its "
    "results. It needs models with a known price."
)
_NUM_TEST = "Ask only the first N questions. For a quick look, not for a score."
_NUM_TRAIN = (
    "Minimum number of training examples (sessions with questions). Whole conversations are taken until it "
    "is reached. A file may have fewer."
)
_PROGRAM = (
    "Saved program (JSON from optimize.py or train.py). Its prompts and demos replace the built-in ones."
)
_PUSH = 'Push the result to this Hugging Face repository, "owner/model". A new repository is private.'
_SEED = "Random seed for generated conversations, sampling and statistics. API models get no seed."
_SESSIONS = "Use only the first N sessions of each conversation, and the questions that they can answer."
_SUBSET_FILE = (
    "File with the ids of the conversations to use (in evaluate.py also of questions): one id per line, a "
    "JSON list, or a JSON object with a list under sample_ids or character_ids (MemBuilder's format)."
)
_RETRY_ERRORS = (
    "Retry what an earlier evaluation recorded as failed. Without it, failures stay, and are counted beside "
    "the score."
)
_TEMPERATURE = "Sampling temperature of writer and reader, from 0 to 2. A judge always uses 0."

# settings that several commands have, each with its one default
Concurrency = Annotated[int, Field(default=8, ge=1, le=1024, description=_CONCURRENCY)]
Conversations = Annotated[
    str,
    tyro.conf.arg(aliases=("--conv-id", "--sample-id", "--character-id")),
    Field(default="", description=_CONVERSATIONS),
]
HubRepository = Annotated[str | None, Field(default=None, description=_PUSH)]
MaxCost = Annotated[float | None, Field(default=None, gt=0, allow_inf_nan=False, description=_MAX_COST)]
NumTest = Annotated[int | None, Field(default=None, ge=1, description=_NUM_TEST)]
NumTrain = Annotated[int, Field(default=600, ge=1, description=_NUM_TRAIN)]
RetryErrors = Annotated[bool, Field(default=False, description=_RETRY_ERRORS)]
SavedProgram = Annotated[Path | None, Field(default=None, description=_PROGRAM)]
Seed = Annotated[int, Field(default=0, ge=0, description=_SEED)]
ServerAddress = Annotated[ApiBase | None, Field(default=None, description=_API_BASE)]
Sessions = Annotated[int | None, Field(default=None, ge=1, description=_SESSIONS)]
SubsetFile = Annotated[Path | None, Field(default=None, description=_SUBSET_FILE)]
Temperature = Annotated[float, Field(default=0.0, ge=0, le=2, description=_TEMPERATURE)]


MACHINE_SETTINGS = frozenset(
    [
        "api_base",
        "arbor_config",
        "concurrency",
        "data",
        "db_url",
        "embedder_api_base",
        "executor",
        "judge_api_base",
        "mlflow",
        "output",
        "output_dir",
        "prompt_api_base",
        "push_to_hub",
        "ray_address",
        "reader_api_base",
        "report_file",
        "runs",
        "sampler_url",
        "tracking_uri",
        "traces",
        "writer_api_base",
    ]
)
"""Settings of the machine and not of the result: addresses, paths, threads."""

_LIMITS = frozenset(
    {"dry_run", "max_calls", "max_cost", "max_errors", "minutes", "mode", "retry_errors"}
)  # how far a command goes


def tracked_params(config: Settings) -> dict[str, Any]:  # Any: JSON values
    """Return the settings that a result depends on. A rerun with the same ones continues its MLflow run."""
    return config.model_dump(mode="json", exclude={*MACHINE_SETTINGS, *_LIMITS})


class DatasetName(StrEnum):
    """The datasets known by name; any other is a file. ``evaluation/datasets.py`` loads them."""

    LOCOMO = "locomo"
    LOCOMO_PLUS = "locomo-plus"
    LONGMEMEVAL = "longmemeval"
    PERLTQA = "perltqa"
    PERSONAMEM = "personamem"
    BEAM = "beam"
    MEMORYAGENTBENCH = "memoryagentbench"
    SAMPLE = "sample"
    WORLD = "world"


EVALUATION_ONLY = (
    DatasetName.LOCOMO_PLUS,
    DatasetName.PERSONAMEM,
    DatasetName.BEAM,
    DatasetName.MEMORYAGENTBENCH,
)
"""The benchmarks with a score of their own and no training split: nothing is trained or optimised on them."""

NUGGET_DATASETS = (DatasetName.BEAM, DatasetName.LOCOMO_PLUS)
"""The benchmarks whose data say what an answer should have; a judge looks for each part (see ``nuggets``)."""


class DataSettings(SettingsGroup):
    """The dataset: conversations and questions."""

    only_with: ClassVar[Mapping[str, tuple[str, tuple[str, ...]]]] = {
        "data": ("dataset", ("locomo", "longmemeval", "perltqa", *EVALUATION_ONLY)),
        "allow_modified": ("dataset", ("locomo",)),
        "audited": ("dataset", ("locomo",)),
        "num_worlds": ("dataset", ("world",)),
    }

    dataset: str = DatasetName.SAMPLE.value
    """Dataset: "sample" (a few generated conversations, shipped with the program), "world" (more of them,
    generated from --seed), "locomo", "longmemeval" (its S variant), "perltqa", "personamem" (32k; multiple
    choice), "memoryagentbench", "beam" and "locomo-plus" (both need --data), or the path of a JSON file in
    LoCoMo's schema."""

    data: Path | None = None
    """Path of the dataset's official files: locomo10.json; a LongMemEval file (S, M or oracle); PerLTQA's
    folder en_v2; PersonaMem's questions_SIZE.csv; BEAM's folder chats/SIZE; a file of rows (.parquet, .jsonl)
    of BEAM or MemoryAgentBench; locomo_plus.json. Default: they are downloaded once, into a cache. BEAM and
    LoCoMo-Plus are not downloaded."""

    audited: Path | None = None
    """With --dataset locomo: the errors.json of the audit dial481/locomo-audit, or its folder audit. Download
    it first. Questions with a wrong gold answer are left out, and wrong evidence is corrected. Every
    signature says so."""

    num_worlds: int = Field(default=20, ge=1)
    """Number of conversations that --dataset world generates. Their names, places and things do not occur in
    the training data of pocket, the embedded model."""

    allow_modified: bool = False
    """Accept a LoCoMo file that differs from the official one. Every signature then says so."""

    @model_validator(mode="after")
    def _check_dataset_has_setting(self) -> Self:
        for name, (_, allowed) in self.only_with.items():
            is_set = getattr(self, name) != type(self).model_fields[name].default
            if is_set and self.dataset not in allowed:
                raise ConfigError(
                    f"--{name.replace('_', '-')} only applies to --dataset {' or '.join(allowed)} "
                    f"(got --dataset {self.dataset})"
                )
        return self

    @property
    def is_synthetic(self) -> bool:
        """True if the generator makes the conversations, the only ones that the embedded model knows."""
        return self.dataset in (DatasetName.SAMPLE.value, DatasetName.WORLD.value)

    def check_exists(self) -> None:
        """Check that the dataset is a benchmark, or a file on this machine.

        Raises:
            ConfigError: it is neither.
        """
        if self.dataset not in tuple(DatasetName) and not Path(self.dataset).exists():
            raise ConfigError(
                f"dataset={self.dataset!r} is no file here, and no benchmark: choose from "
                f"{', '.join(DatasetName)}, or name a JSON file"
            )

    def check_trainable(self) -> None:
        """Check that the data may be trained on.

        Raises:
            ConfigError: it is what evaluations generate.
        """
        if self.dataset in EVALUATION_ONLY:
            raise ConfigError(
                f"--dataset {self.dataset} cannot be trained on: it has no training split; choose another "
                "--dataset"
            )
        if self.dataset == DatasetName.WORLD.value:
            raise ConfigError(
                "--dataset world cannot be trained on: choose --dataset sample, which generates training "
                "conversations from --seed"
            )


class TrainingPart(SettingsGroup, init=False):
    """The part of the training split to use."""

    split: Literal["train", "sft", "rl"] = "train"
    """Part of the training split. train: all of it. sft and rl: two halves that share no conversation. Record
    trajectories on sft, and train by reward on rl. LongMemEval has MemBuilder's splits. For the sample, sft
    and rl are generated separately. Other datasets are split by order. The test split is never trained on."""

    conversations: Conversations

    subset_file: SubsetFile

    sessions: Sessions


class RetrievalSettings(SettingsGroup):
    """Retrieval: the memories that the reader is shown."""

    top_k: int = Field(default=10, ge=1, le=50)
    """Maximum number of memories shown to the reader, from 1 to 50. Verbatim turns, and each extra search,
    may add as many. MemBuilder uses 10. Rankings are always recorded up to 50."""

    reader_budget: int = Field(default=2000, ge=1)
    """Maximum tokens of context shown to the reader. Published memory systems use about 2,000 per
    question."""

    min_relative_score: float = Field(default=0.4, ge=0, le=1)
    """Drop retrieved memories that score below this fraction of the top score; 0 keeps all. The default 0.4
    lowers recall@10 by 0.001 on LoCoMo and removes most distractors. It has little effect with
    --with-verbatim-turns and --max-searches, which fuse rankings."""


class SearchSettings(SettingsGroup):
    """The ranking of memories and verbatim turns."""

    retrieval: Literal["bm25", "hybrid", "dense"] = "bm25"
    """Ranking: bm25 (lexical), dense (cosine similarity of the embeddings of --embedder), or hybrid
    (both)."""

    embedder: str | None = None
    """Embedding model for --retrieval hybrid and dense: a LiteLLM name such as openai/text-embedding-3-small,
    or "local:" and the folder or Hugging Face id of a sentence-transformers or model2vec model."""

    embedder_api_base: ApiBase | None = None
    """Base URL of the server of the embedding model. API key: EMBEDDER_API_KEY, or that of the provider.
    Default: --api-base."""

    dense_weight: float = Field(default=1.0, gt=0, le=10)  # bank.dense has it; numpy is slow, for --help
    """With --retrieval hybrid: the weight of the cosine similarity. BM25 has weight 1."""

    reranker: str | None = None
    """With --retrieval hybrid or dense: rerank the top 30 verbatim turns by late interaction (as ColBERT).
    Give "local:" and the folder or Hugging Face id of a sentence-transformers model; it may be that of
    --embedder."""

    only_with: ClassVar[Mapping[str, tuple[str, tuple[str, ...]]]] = {
        **dict.fromkeys(("embedder", "embedder_api_base", "reranker"), ("retrieval", ("hybrid", "dense"))),
        "dense_weight": ("retrieval", ("hybrid",)),
    }

    @model_validator(mode="after")
    def _check_embedder(self) -> Self:
        chosen = f"--retrieval {self.retrieval}"
        if self.retrieval != "bm25" and not (self.embedder or "").strip():
            raise ConfigError(
                f"{chosen} needs an embedding model: name one with --embedder, for example "
                "openai/text-embedding-3-small"
            )
        for name, (_, rankings) in self.only_with.items():
            is_set = getattr(self, name) != type(self).model_fields[name].default
            if is_set and self.retrieval not in rankings:
                raise ConfigError(
                    f"--{name.replace('_', '-')} only applies to --retrieval {' and '.join(rankings)} "
                    f"(got {chosen})"
                )
        if self.reranker is not None and (is_bundled(self.reranker) or not is_local(self.reranker)):
            raise ConfigError(
                f"--reranker {self.reranker} is not a local model: write local: and its folder or hub id"
            )
        return self

    @property
    def weight(self) -> float | None:
        """The weight of a ``DenseIndex``: None ranks by cosine alone."""
        return self.dense_weight if self.retrieval == "hybrid" else None

    def flags(self) -> dict[str, str]:
        """Give the ranking and its model by the names of their settings; none for BM25."""
        if self.embedder is None:
            return {}
        reranker = {} if self.reranker is None else {"reranker": self.reranker}
        return {"retrieval": self.retrieval, "embedder": self.embedder, **reranker}

    def for_records(self) -> dict[str, float | str]:
        """Give the settings that a result depends on; none for BM25, the only ranking of version 0.1."""
        if self.embedder is None:
            return {}
        embedder = embedder_fingerprint(self.embedder)
        weight = {"dense_weight": self.dense_weight} if self.retrieval == "hybrid" else {}
        reranker = {} if self.reranker is None else {"reranker": embedder_fingerprint(self.reranker)}
        return {"retrieval": self.retrieval, "embedder": embedder, **weight, **reranker}


class WriterSettings(SettingsGroup):
    """The writer: agents that write memories."""

    writer_mode: WriterMode = "specialists"
    """specialists: four agents in parallel, one for each kind of memory and one for the profile. generalist:
    one agent for everything, with a quarter of the calls (272 for LoCoMo). Small models need the narrower
    prompts of specialists."""

    writer_max_turns: int = Field(default=1, ge=1)
    """Maximum model calls of a writing agent per session. With 2 or more it can search memories, and correct
    calls that were refused. 1 is cheapest."""

    memory_budget: int = Field(default=20_000, ge=1)
    """Maximum tokens of memory per conversation. Above it, the writer consolidates: it merges and deletes old
    memories. The default is about the length of one LoCoMo conversation, and is seldom reached."""

    grounding_check: bool = True
    """Refuse a memory if fewer than one in five of its content words were said in the session. On LoCoMo it
    refuses 1 of 2,541 facts wrongly. Switch it off if memories are in another language than the
    conversation."""

    def check_can_write(self, writer_model: str | None) -> None:
        """Check the mode for a writer; raise ``ConfigError`` for LoCoMo's own notes by specialists."""
        if writer_model == OBSERVATIONS and self.writer_mode != "generalist":
            raise ConfigError(
                f"writer_model={OBSERVATIONS!r} writes no profile: add --writer-mode generalist"
            )


class ReaderSettings(SettingsGroup):
    """The reader: the agent that answers."""

    with_verbatim_turns: bool = False
    """Also show the reader verbatim turns of the conversation beside the memories. Off by default, so that
    memory is measured alone."""

    add_dates: bool = False
    """In the turns that the reader is shown, add the date that a phrase such as "yesterday" means: "yesterday
    (8 June 2023)". Memories have their dates without it."""

    max_searches: int = Field(default=0, ge=0)
    """Maximum number of extra searches that the reader may ask for. 0: one retrieval, one call."""

    full_context_tokens: int | None = Field(default=None, ge=1)
    """Context limit of the system full-context, in tokens, counted as for --reader-budget. The oldest turns
    are left out. For models with a short context window. Default: no limit."""


class ReplyOptions(SettingsGroup):
    """The replies of all models: format and length."""

    reply_format: ReplyFormat | None = None
    """Format of replies. chat: text with field markers (DSPy's ChatAdapter). json: one JSON object,
    constrained by a schema. tools: the provider's native tool calls. Default: the format of the saved
    program, or else one that the model supports."""

    max_reply_tokens: int | None = Field(default=None, ge=1)
    """Maximum tokens of every reply, reasoning included. Default: a limit for each agent: an answer 256, a
    profile 512, a verdict 512, a specialist 512 to 2,048 by the length of the session, a generalist twice
    that."""

    chat_template_kwargs: str = ""
    """Arguments of the chat template, as a JSON object: '{"enable_thinking": false}' switches off the
    reasoning of Qwen3. For models in this process, on your own servers, and for hosted open models that
    reason."""

    @field_validator("chat_template_kwargs")
    @classmethod
    def _check_is_object(cls, value: str) -> str:
        try:
            is_object = not value or isinstance(json.loads(value), dict)
        except ValueError:
            is_object = False
        if not is_object:
            raise ConfigError(
                f"chat_template_kwargs={value!r} is not a JSON object: expected something like "
                """'{"enable_thinking": false}'"""
            )
        return value

    def settings(self) -> ReplySettings:
        """Return the settings of the agents; a format that was not chosen is chat."""
        template = json.loads(self.chat_template_kwargs or "{}")
        return ReplySettings(self.reply_format or ReplyFormat.CHAT, self.max_reply_tokens, template)


class SystemSettings(SettingsGroup, init=False):
    """Settings of retrieval, writer and reader; each system ignores those that it does not use."""

    retrieval: RetrievalSettings = RetrievalSettings()
    writer: WriterSettings = WriterSettings()
    reader: ReaderSettings = ReaderSettings()
    replies: ReplyOptions = ReplyOptions()

    def for_records(self) -> dict[str, float | str]:
        """Give the settings under their names of version 0.1, which records are keyed by.

        Settings of replies are among them if they are not the default: version 0.1 had none.
        """
        retrieval, writer, reader = self.retrieval, self.writer, self.reader
        return {
            "top_k": retrieval.top_k,
            "reader_budget": retrieval.reader_budget,
            "relevance_floor": retrieval.min_relative_score,
            "memory_budget": writer.memory_budget,
            "archive": reader.with_verbatim_turns,
            "max_turns": writer.writer_max_turns,
            "max_searches": reader.max_searches,
            "writer_mode": writer.writer_mode,
            **{name: value for name, value in self.replies.flat_values().items() if value},
            **({} if writer.grounding_check else {"grounding_check": False}),
            **({"add_dates": True} if reader.add_dates else {}),
        }


class GradingSettings(SettingsGroup):
    """The score of one answer."""

    answer_metric: Literal["f1", "judge", "mix"] | None = None
    """Score of an answer: f1 (LoCoMo's official F1), judge (the judge's verdict), or mix (the mean of both).
    A correct abstention scores 1 in each. Default: mix with --judge-model, otherwise f1."""

    rubric: Literal["lenient", "strict"] = "strict"
    """Rubric of the judge. A lenient judge accepts vague answers, and training learns to exploit that."""

    judge_model: str | None = None
    """Model of the judge, for --answer-metric judge and mix."""

    @property
    def metric(self) -> Literal["f1", "judge", "mix"]:
        """The score of an answer, whether it was named or not."""
        return self.answer_metric or ("f1" if self.judge_model is None else "mix")

    def describe_default(self) -> list[str]:
        """Say in a line that a judge is asked because its model was named."""
        if self.answer_metric is not None or self.judge_model is None:
            return []
        return [
            f"answers are scored by the mean of F1 and the verdict of {self.judge_model} "
            "(--answer-metric f1 or judge takes one of them)"
        ]

    def check_has_judge(self) -> None:
        """Check that a metric that needs a judge has one.

        Raises:
            ConfigError: it has none.
        """
        if self.metric != "f1" and self.judge_model is None:
            raise ConfigError(
                f"answer_metric={self.answer_metric!r} needs a judge: name its model with --judge-model, or "
                "choose --answer-metric f1"
            )


class TrackingSettings(SettingsGroup):
    """MLflow tracking."""

    mlflow: bool = True
    """Record the run and its metrics in MLflow."""

    tracking_uri: TrackingUri | None = None
    """MLflow tracking URI. Default: SQLite, in mlflow.db beside the folder of the run."""
