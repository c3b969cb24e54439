"""The limit and the stop of each agent's replies, as a model is sent them."""

from typing import Any

import dspy
import pytest
from dspy.lm15 import Config

from locomo.judge.judge import Judge
from memory_program.agents.context import MemoryContext, NoContext
from memory_program.agents.reader import QAReader
from memory_program.agents.reply_limits import writer_tokens
from memory_program.agents.writer import MemoryWriter
from memory_program.bank.budget import count_tokens
from memory_program.bank.space import MemorySpace
from memory_program.configs.evaluate_config import EvaluateConfig
from memory_program.core.errors import ConfigError
from memory_program.models.factory import takes_chat_template
from memory_program.models.reply_settings import (
    ReplySettings,
    may_think,
    most_reply_tokens,
    thinking_tokens,
)
from tests.conversations import session
from tests.scripted_lm import ScriptedLM, fields

SESSION = session(1, "Mara: I adopted a dog yesterday, Pip!", "Tom: I bake bread every Sunday.")
WITHOUT_THOUGHTS = ReplySettings(chat_template_kwargs={"enable_thinking": False})
MARKER = "[[ ## completed ## ]]"


def read(lm: ScriptedLM, replies: ReplySettings | None = None) -> Config:
    with lm, dspy.context(lm=lm):
        assert QAReader(NoContext(), replies=replies).ask(MemorySpace("mara"), "Who is Pip?").text == "A dog"
    return lm.script.configs[0]


def scripted(**settings: Any) -> ScriptedLM:
    return ScriptedLM([fields(answer="A dog")], **settings)


def test_an_answer_has_a_short_limit_and_stops_at_the_marker():
    config = read(scripted(model="openai/Qwen/Qwen2.5-7B-Instruct"))
    assert (config.max_tokens, config.stop) == (256, (MARKER,))


@pytest.mark.parametrize(
    ("model", "arguments", "stop"),
    [
        ("openai/my-model", {}, ()),
        ("openai/Qwen/Qwen3-8B", {}, ()),
        ("openai/Qwen/Qwen3-8B", {"enable_thinking": False}, (MARKER,)),
        ("openai/Qwen/Qwen3-30B-A3B-Instruct-2507", {}, (MARKER,)),
        ("openai/deepseek-r1", {}, ()),
    ],
)
def test_a_model_that_may_rehearse_the_marker_in_its_thoughts_is_not_stopped_there(model, arguments, stop):
    assert read(scripted(model=model), ReplySettings(chat_template_kwargs=arguments)).stop == stop


@pytest.mark.parametrize(
    ("settings", "replies", "limit"),
    [
        ({"max_tokens": 100}, None, 100),  # a model with a lower limit keeps it
        ({"max_tokens": 4096}, ReplySettings(max_tokens=2000), 2000),
        ({"model": "openai/Qwen/Qwen3-8B"}, None, 256 + 8192),
        (
            {"model": "openai/Qwen/Qwen3-8B"},
            ReplySettings(chat_template_kwargs={"enable_thinking": False}),
            256,
        ),
        ({"model": "openai/Qwen/Qwen3-8B"}, ReplySettings(max_tokens=700), 700),
        ({"model": "openai/Qwen/Qwen2.5-7B-Instruct"}, None, 256),
    ],
)
def test_an_override_the_model_and_its_thoughts_change_the_limit(settings, replies, limit):
    assert read(scripted(**settings), replies).max_tokens == limit


def test_the_embedded_model_ends_its_replies_itself():
    assert read(scripted(model="pocket", max_tokens=128)).stop == ()


def test_a_reasoning_model_that_dspy_knows_has_the_limit_of_the_model():
    lm = scripted(model="openai/gpt-5-mini", max_tokens=16_000, temperature=None)
    config = read(lm)
    assert (config.max_tokens, config.stop) == (16_000, ())


def test_each_writing_agent_has_the_limit_of_its_task():
    with ScriptedLM([fields(tool_calls='{"tool_calls": []}')] * 4) as lm, dspy.context(lm=lm):
        MemoryWriter()(space=MemorySpace("mara"), session=SESSION)
    assert [config.max_tokens for config in lm.script.configs] == [512] * 4


def test_the_limit_of_a_specialist_grows_with_the_session():
    said = "Mara: I adopted a dog yesterday. "
    assert writer_tokens("semantic", said * 100) == 256 + count_tokens(said * 100)
    assert writer_tokens("semantic", said * 1000) == 2048
    assert writer_tokens("generalist", said * 1000) == 4096
    assert writer_tokens("core", said * 1000) == 512


def test_a_search_has_more_room_than_an_answer():
    reply = fields(tool_calls='{"tool_calls": []}', answer="A dog")
    with ScriptedLM([reply]) as lm, dspy.context(lm=lm):
        QAReader(MemoryContext(), max_searches=1).ask(MemorySpace("mara"), "Who is Pip?")
    assert lm.script.configs[0].max_tokens == 384


def test_a_verdict_has_a_limit():
    with ScriptedLM([fields(reasoning="Same.", verdict="CORRECT")], max_tokens=4096) as lm:
        Judge(lm=lm).grade("Who is Pip?", "a dog", "A dog")
    assert lm.script.configs[0].max_tokens == 512


@pytest.mark.parametrize(
    "name", ["gemini/gemini-2.5-flash", "vertex_ai/gemini-3-pro-preview", "openrouter/x-ai/grok-4"]
)
def test_thoughts_of_hosted_models_have_room_and_no_switch_in_the_chat_template(name):
    assert thinking_tokens(name, {}) == thinking_tokens(name, {"enable_thinking": False}) == 8192
    assert may_think(name, {"enable_thinking": False})
    assert not takes_chat_template(name, None)


@pytest.mark.parametrize("name", ["gemini/gemini-2.0-flash", "gemini/gemini-1.5-pro", "xai/grok-2"])
def test_hosted_models_without_thoughts_have_the_limit_of_the_reply(name):
    assert thinking_tokens(name, {}) == 0


def test_thoughts_of_open_models_have_room():
    assert thinking_tokens("openai/allenai/Olmo-3-7B-Think", {}) == 8192
    assert thinking_tokens("local:HuggingFaceTB/SmolLM3-3B", {"enable_thinking": False}) == 0
    assert thinking_tokens("openai/deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", {}) == 8192
    assert thinking_tokens("openai/Qwen/Qwen3-4B-Instruct-2507", {}) == 0
    assert most_reply_tokens("openai/qwq", ReplySettings()) == 4096 + 8192


@pytest.mark.parametrize("value", ["enable_thinking=false", "[]", "3"])
def test_arguments_of_the_chat_template_are_a_json_object(value):
    with pytest.raises(
        ConfigError, match=r"chat_template_kwargs=.* is not a JSON object: expected something like"
    ):
        EvaluateConfig(chat_template_kwargs=value)


def test_settings_of_replies_are_recorded_only_if_they_are_not_the_default():
    assert "max_reply_tokens" not in EvaluateConfig().system.for_records()
    config = EvaluateConfig(max_reply_tokens=700, reply_format="json")
    assert config.system.for_records()["max_reply_tokens"] == 700
    assert config.system.for_records()["reply_format"] == "json"
