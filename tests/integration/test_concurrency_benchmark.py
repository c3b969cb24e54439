"""The benchmark of concurrency in its smallest setting, and the server that it measures against."""

import importlib.util
import io
import json
import sys
from types import ModuleType

import pytest
from rich.console import Console

from memory_program.configs.evaluate_config import EvaluateConfig
from memory_program.evaluation.datasets import load_dataset
from tests.conftest import CHECKOUT


def benchmark(name: str) -> ModuleType:
    """Import a script of ``benchmarks/``, which is no package."""
    path = CHECKOUT / "benchmarks" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"benchmarks_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_a_run_is_measured_by_its_calls_its_chain_and_what_a_cache_could_serve() -> None:
    concurrency = benchmark("concurrency")
    sample = load_dataset(EvaluateConfig().source, 0).conversations
    conversation = min(sample, key=lambda talk: len(talk.sessions))
    setting = concurrency.Setting(
        "quick", "two-phase", 16, [conversation], is_judged=True, rule=concurrency.OWN_SERVER_RULE
    )
    row = concurrency.measure(setting, ["--dataset", "sample"], 0.01)

    sessions, questions = len(conversation.sessions), len(conversation.questions)
    judged = sum(question.is_headline for question in conversation.questions)
    least = 4 * sessions + questions + judged
    assert least <= row.calls <= least + 4 * (sessions - 1)
    assert setting.chain == 4  # propose, settle, answer, judge
    assert row.ideal_s(0.01) == pytest.approx(0.01 * max(4, row.calls / 16))
    assert row.ideal_s(0.01) <= row.seconds < row.whole_s
    assert 4 <= row.most_in_flight <= 16
    assert row.usage["build"]["cached_tokens"] > 0

    printed = Console(file=io.StringIO(), width=120)
    printed.print(concurrency.speed_table([row], 0.01), concurrency.cache_table([row]))
    text = printed.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]  # it is a StringIO
    assert f"{row.calls:,}" in text
    assert "own server: blocks of 16" in text


def test_the_ideal_is_the_chain_or_what_the_concurrency_allows_whichever_is_more() -> None:
    concurrency = benchmark("concurrency")
    conversations = load_dataset(EvaluateConfig().source, 0).conversations
    longest = max(len(conversation.sessions) for conversation in conversations)
    in_order, in_two_phases, judged, *_ = concurrency.settings(conversations)
    assert (in_order.chain, in_two_phases.chain, judged.chain) == (longest + 1, 3, longest + 2)
    row = concurrency.Measured(in_order, 3200, 32, 30.0, 40.0, 10.0, 1.0, {})
    assert row.ideal_s(0.2) == pytest.approx(20.0)
    assert concurrency.Measured(in_order, 32, 32, 1.0, 2.0, 1.0, 0.1, {}).ideal_s(0.2) == pytest.approx(
        0.2 * (longest + 1)
    )


def test_a_cache_serves_whole_blocks_of_the_longest_beginning_that_was_there_before() -> None:
    cache = benchmark("latency_server").PrefixCache(block_tokens=2, least_tokens=4)  # 8 and 16 characters
    assert cache.served("a" * 40) == 0
    assert cache.served("a" * 40) == 10
    assert cache.served("a" * 20 + "b" * 20) == 4  # 16 of the 20 are whole blocks
    assert cache.served("a" * 8 + "c" * 32) == 0  # one block is under the least
    assert cache.served("b" * 40) == 0


def test_the_server_replies_to_every_prompt_of_the_program_as_a_model_would() -> None:
    server = benchmark("latency_server")
    ask = "\n\nRespond with the corresponding output fields, starting with the field "
    session = "[[ ## session ## ]]\nMara: I adopted a dog named Pip.\nTom: Congratulations to both of you!"
    job, text = server.reply(
        "write semantic memories of a session", session + ask + "`[[ ## tool_calls ## ]]`"
    )
    assert job == "write"
    assert text.count('"manage_memory"') == 2
    job, text = server.reply("", f"{session}{ask}`[[ ## tool_calls ## ]]`")
    assert (job, "edit_core" in text) == ("write", True)
    memories = "[[ ## memories ## ]]\nPip is a dog."
    assert server.reply("", f"{memories}{ask}`[[ ## answer ## ]]`")[1].startswith(
        "[[ ## answer ## ]]\nPip is"
    )
    assert server.reply("", f"{ask}`[[ ## reasoning ## ]]`, then `[[ ## verdict ## ]]`")[0] == "judge"
    assert server.reply("", "hello") == ("other", "ready")
    told = "## New Messages\nuser: I adopted a dog.\nassistant: Lovely!\n\n\n## Observation Date\n2026-01-01"
    job, text = server.reply("", f"## Existing Memories\n[]\n\n{told}")  # as mem0 asks
    assert job == "extract"
    assert [one["text"] for one in json.loads(text)["memory"]] == [
        "user: I adopted a dog.",
        "assistant: Lovely!",
    ]
