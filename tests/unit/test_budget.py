"""Token counts without a network, packing, and the selection of memories over budget."""

import os
import subprocess
import sys
import time
from datetime import date

import pytest
import tiktoken
from hypothesis import given
from hypothesis import strategies as st

from memory_program.bank.budget import count_tokens, fit_memories, pack_to_budget
from memory_program.bank.memory import Memory, MemoryKind
from memory_program.core.errors import ConfigError

PROSE = "Melanie said: “I'm off to the café,\n\n  see you on 7 May 2023!”  🏖️ 東京 "


def memory(number: int, text: str, created: int) -> Memory:
    return Memory(f"m{number}", MemoryKind.SEMANTIC, text, None, (), created)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [  # counted with tiktoken 0.14
        ("", 0),
        ("Caroline went to the LGBTQ support group.", 9),
        ("<|endoftext|>", 7),
        ("nul\0byte", 4),
        ("東京", 3),
    ],
)
def test_counts_are_those_of_the_encoding(text: str, tokens: int) -> None:
    assert count_tokens(text) == tokens


@pytest.mark.parametrize("repeats", [1, 100, 5000])
def test_prose_of_any_length_is_counted_exactly(repeats: int) -> None:
    text = PROSE * repeats
    count_tokens("")  # loads the encoding from LiteLLM's files, which tiktoken then remembers
    assert count_tokens(text) == len(tiktoken.get_encoding("cl100k_base").encode(text))


@pytest.mark.parametrize("run", ["a", " ", "😀"])
def test_a_megabyte_without_spaces_is_counted_in_seconds(run: str) -> None:
    started = time.monotonic()
    assert count_tokens(run * 1_100_000 + "x") > 1000  # tiktoken's pattern gives up on a million spaces
    assert time.monotonic() - started < 10


def test_ten_megabytes_are_counted_in_seconds() -> None:
    started = time.monotonic()
    assert count_tokens(PROSE * (10_000_000 // len(PROSE))) > 2_000_000
    assert time.monotonic() - started < 20


def test_counting_needs_no_network_and_keeps_the_environment() -> None:
    code = (
        "import os, socket, sys\n"
        "def refuse(*args): raise OSError('no network')\n"
        "socket.socket.connect = socket.getaddrinfo = refuse\n"
        "from memory_program.bank.budget import count_tokens\n"
        "before = dict(os.environ)\n"
        "assert count_tokens('hello world') == 2\n"
        "assert dict(os.environ) == before and 'litellm' not in sys.modules"
    )
    for folder in (None, "/nowhere"):
        environment = {name: value for name, value in os.environ.items() if name != "TIKTOKEN_CACHE_DIR"}
        if folder is not None:
            environment["TIKTOKEN_CACHE_DIR"] = folder
        subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_packing_keeps_rank_order_and_lists_the_items_left_out() -> None:
    packed = pack_to_budget(["one two", "three " * 50, "four"], budget_tokens=6)
    assert packed.kept == ("one two", "four")
    assert packed.left_out == ("three " * 50,)
    assert packed.tokens == count_tokens("one two\n") + count_tokens("four\n")


@given(
    texts=st.lists(st.text(max_size=40), max_size=20),
    budget=st.integers(min_value=0, max_value=120),
)
def test_a_packing_loses_nothing_and_stays_in_its_budget(texts: list[str], budget: int) -> None:
    packed = pack_to_budget(texts, budget)
    assert packed.tokens <= budget
    assert sorted([*packed.kept, *packed.left_out]) == sorted(texts)
    assert count_tokens("\n".join(packed.kept)) <= packed.tokens
    assert pack_to_budget(packed.kept, budget).kept == packed.kept


def test_all_items_fit_exactly_their_own_cost() -> None:
    texts = ["one two", "three", "four five six"]
    cost = pack_to_budget(texts, 1000).tokens
    assert pack_to_budget(texts, cost).left_out == ()
    assert pack_to_budget(texts, cost - 1).left_out == ("four five six",)


def test_other_items_are_packed_by_their_text() -> None:
    assert pack_to_budget([1, 2, 3], 4, to_text=lambda number: "word " * number).kept == (1,)


def test_the_latest_memories_are_kept_in_chronological_order() -> None:
    memories = [memory(1, "old fact", 1), memory(2, "newer fact", 2), memory(3, "newest fact", 3)]
    two_lines = count_tokens("newer fact\n") + count_tokens("newest fact\n")
    packed = fit_memories(memories, two_lines)
    assert [kept.memory_id for kept in packed.kept] == ["m2", "m3"]
    assert [left.memory_id for left in packed.left_out] == ["m1"]
    assert fit_memories(memories[::-1], two_lines) == packed


def test_a_memory_costs_its_date_too() -> None:
    dated = Memory("m1", MemoryKind.EPISODIC, "Alice ran.", date(2023, 5, 7), (), 1)
    assert fit_memories([dated], 100).tokens == count_tokens("[2023-05-07] Alice ran.\n")


def test_the_core_is_paid_first_and_always_kept() -> None:
    memories = [memory(1, "a fact", 1)]
    core = "Alice is a nurse in Oslo."
    cost = count_tokens(core + "\n")
    assert fit_memories(memories, cost + 100, core).kept == tuple(memories)
    overfull = fit_memories(memories, cost - 1, core)
    assert (overfull.kept, overfull.left_out, overfull.tokens) == ((), tuple(memories), cost)


@pytest.mark.parametrize("core", ["", "Alice is a nurse."])
def test_a_negative_budget_is_refused(core: str) -> None:
    with pytest.raises(ConfigError, match="must be at least 0"):
        fit_memories([], -1, core)


@given(text=st.text(max_size=60))
@pytest.mark.parametrize("joint", ["", " ", "\n", "\u00a0", "\x1c"])
def test_a_text_has_no_fewer_tokens_than_words(joint: str, text: str) -> None:
    spaced = joint.join(text)
    assert count_tokens(spaced) >= len(spaced.split())  # by which packing skips what cannot fit


@given(
    texts=st.lists(
        st.lists(st.sampled_from(["a", "antidisestablishmentarianism", "\U0001f9a6", "x1!"]), max_size=9)
    ),
    budget=st.integers(min_value=0, max_value=90),
)
def test_packing_equals_counting_every_text(texts: list[list[str]], budget: int) -> None:
    lines = [" ".join(words) for words in texts]
    kept, spent = list[str](), 0
    for line in lines:
        cost = count_tokens(line + "\n")
        if spent + cost <= budget:
            kept.append(line)
            spent += cost
    assert pack_to_budget(lines, budget).kept == tuple(kept)


def test_a_tie_in_version_keeps_the_later_number():
    made = [Memory(f"m{n}", MemoryKind.SEMANTIC, f"fact number {n}", None, (), 1) for n in (9, 10)]
    packed = fit_memories(made, count_tokens("fact number 10\n"))
    assert [memory.memory_id for memory in packed.kept] == ["m10"]
