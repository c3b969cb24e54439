"""Splits by conversation: names and selection. Files and their proof need the real data."""

import json
import subprocess
import sys

import pytest
from locomo_samples import sample

from locomo.benchmark_errors import DatasetError
from locomo.locomo import read_conversations, read_dataset
from locomo.locomo_schema import parse_locomo
from locomo.split_data import main
from locomo.splits import (
    QUESTION_COUNTS,
    SPLITS,
    locomo_split,
    select_split,
    split_by_order,
    split_file,
    write_splits,
)


def test_every_conversation_is_in_exactly_one_split():
    ids = [identity for members in SPLITS.values() for identity in members]
    assert len(ids) == len(set(ids)) == 10


def test_the_counts_are_those_of_memupdate():
    assert QUESTION_COUNTS["train"] + QUESTION_COUNTS["val"] == 1347
    assert QUESTION_COUNTS["test"] == 639


@pytest.mark.parametrize(("name", "split"), [("conv-26", "train"), ("conv-47", "val"), ("conv-50", "test")])
def test_a_conversation_knows_its_split(name, split):
    assert locomo_split(name) == split


def test_a_conversation_of_ones_own_is_in_no_split():
    with pytest.raises(DatasetError, match=r"'talk-1' is in no split.*'all'"):
        locomo_split("talk-1")


def test_a_selection_keeps_the_order_of_the_data():
    conversations = parse_locomo([sample(n) for n in ("conv-50", "conv-26", "conv-48")], "talk.json")
    assert [c.conversation_id for c in select_split(conversations, "test")] == ["conv-50", "conv-48"]


def test_all_selects_conversations_of_any_name():
    conversations = parse_locomo([sample("conv-26"), sample("talk-1")], "talk.json")
    assert select_split(conversations, "all") == conversations


def test_an_unknown_split_is_refused_with_the_choices():
    with pytest.raises(DatasetError, match="unknown split 'dev': choose from train, val, test, all"):
        select_split([], "dev")


def test_a_missing_file_ends_the_command_with_an_error(tmp_path, capsys):
    assert main(["--data", str(tmp_path / "nowhere.json"), "--out", str(tmp_path)]) == 1
    assert "error: cannot read the data file" in capsys.readouterr().err


def test_the_command_starts_without_what_it_does_not_need():
    heavy = ("numpy", "dspy", "pooch", "nltk", "torch")
    code = f"import sys, locomo.split_data; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("count", "train", "val", "test"),
    [(1, 0, 1, 0), (2, 1, 1, 0), (3, 1, 1, 1), (4, 2, 1, 1), (8, 4, 2, 2), (11, 7, 2, 2)],
)
def test_other_conversations_are_split_by_their_order(count, train, val, test):
    conversations = parse_locomo([sample(f"talk-{n}") for n in range(count)], "talk.json")
    parts = split_by_order(conversations)
    assert [len(parts[name]) for name in ("train", "val", "test")] == [train, val, test]
    assert [*parts["train"], *parts["val"], *parts["test"]] == conversations


def test_a_split_of_ones_own_conversations_is_selected_by_name():
    conversations = parse_locomo([sample(f"talk-{n}") for n in range(4)], "talk.json")
    assert [c.conversation_id for c in select_split(conversations, "test")] == ["talk-3"]
    with pytest.raises(DatasetError, match="2 conversations are too few for a test split: add conversations"):
        select_split(conversations[:2], "test")


def test_conversations_of_locomo_are_not_mixed_with_others():
    conversations = parse_locomo([sample("conv-26"), sample("talk-1")], "talk.json")
    with pytest.raises(DatasetError, match="'talk-1' is in no split"):
        select_split(conversations, "train")


def test_an_id_with_a_blank_is_written_to_its_split(tmp_path):
    source = tmp_path / "talk.json"
    source.write_text(json.dumps([sample("conv-26 "), sample("conv-47"), sample("conv-48")]))
    write_splits(read_dataset(source), source, tmp_path / "out")
    written = read_conversations(split_file(tmp_path / "out", "train"))
    assert [conversation.conversation_id for conversation in written] == ["conv-26"]
