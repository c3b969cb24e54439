"""Where conversations come from: a path, the cache or the network, and what is refused on the way."""

import hashlib
import json

import pytest
from file_server import served
from locomo_samples import sample, write

from locomo.benchmark_errors import DatasetError
from locomo.locomo import LOCOMO_SHA256, Dataset, load_locomo, read_conversations, read_dataset
from memory_program.configs.groups import DataSettings
from memory_program.evaluation.datasets import load_dataset
from tests.evaluation_samples import conversation


def test_a_file_of_ones_own_is_named_after_itself_and_hashed(tmp_path):
    path = write(tmp_path / "diary.json", [sample()])
    dataset = read_dataset(path)
    assert dataset.name == "diary"
    assert dataset.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert not dataset.is_modified
    assert list(dataset.conversations) == read_conversations(path)


def test_a_byte_order_mark_is_no_fault(tmp_path):
    path = tmp_path / "diary.json"
    path.write_text(json.dumps([sample()]), encoding="utf-8-sig")
    assert read_conversations(path)[0].conversation_id == "talk-1"


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DatasetError, match=r"cannot read the data file '.*nowhere\.json' \(No such file"):
        read_conversations(tmp_path / "nowhere.json")


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(DatasetError, match="Is a directory"):
        read_conversations(tmp_path)


def test_truncated_json_says_at_which_line(tmp_path):
    path = tmp_path / "half.json"
    whole = json.dumps([sample()], indent=1)
    path.write_text(whole[: len(whole) // 2])
    with pytest.raises(DatasetError, match=r"half\.json: not valid JSON at line \d+, column \d+ .*truncated"):
        read_conversations(path)


@pytest.mark.parametrize("content", [b"", b"\x00", b"not json", b'[{"a": ', b"[1, 2"])
def test_what_is_no_json_is_refused(tmp_path, content):
    path = tmp_path / "broken.json"
    path.write_bytes(content)
    with pytest.raises(DatasetError, match="not valid JSON"):
        read_conversations(path)


def test_another_encoding_than_utf8_is_refused(tmp_path):
    path = tmp_path / "latin.json"
    path.write_bytes(json.dumps([sample("Zoë")], ensure_ascii=False).encode("latin-1"))
    with pytest.raises(DatasetError, match="not UTF-8 at byte"):
        read_conversations(path)


def test_a_doubled_key_is_refused_because_json_would_drop_the_first(tmp_path):
    path = tmp_path / "doubled.json"
    path.write_text(json.dumps([sample()]).replace('"session_2"', '"session_1"'))
    with pytest.raises(DatasetError, match="key 'session_1' occurs twice"):
        read_conversations(path)


@pytest.mark.parametrize("content", ["[" * 100_000, "[" + "9" * 5_000 + "]"])
def test_json_that_only_an_attacker_writes_is_refused_like_any_other(tmp_path, content):
    path = tmp_path / "bomb.json"
    path.write_text(content)
    with pytest.raises(DatasetError):
        read_conversations(path)


def test_a_modified_benchmark_is_refused_by_its_hash(tmp_path):
    path = write(tmp_path / "locomo10.json", [sample()])
    with pytest.raises(DatasetError, match=f"expected {LOCOMO_SHA256}; .* --allow-modified"):
        load_locomo(path)


def test_a_modified_benchmark_is_marked_when_it_is_allowed(tmp_path):
    path = write(tmp_path / "locomo10.json", [sample()])
    dataset = load_locomo(path, allow_modified=True)
    assert dataset.is_modified
    assert dataset.version == f"{dataset.sha256[:8]}-modified"


def test_the_official_file_is_known_by_eight_digits():
    assert Dataset((), LOCOMO_SHA256, is_modified=False, name="locomo").version == "79fa87e9"


def test_without_network_and_file_the_error_names_both_ways_out(tmp_path):
    with served(tmp_path) as address:
        pass  # the port was real, and nobody listens there any more
    with pytest.raises(DatasetError) as caught:
        load_locomo(base_url=address, cache_dir=tmp_path)
    message = str(caught.value)
    assert "--data PATH" in message
    assert f"{address}/locomo10.json" in message
    assert LOCOMO_SHA256 in message


def test_a_server_without_the_file_is_an_error(tmp_path):
    with served(tmp_path) as address, pytest.raises(DatasetError, match="404"):
        load_locomo(base_url=address, cache_dir=tmp_path / "cache")


def test_other_bytes_than_the_pinned_ones_are_not_kept(tmp_path):
    write(tmp_path / "locomo10.json", [sample()])
    cache = tmp_path / "cache"
    with served(tmp_path) as address, pytest.raises(DatasetError, match="hash"):
        load_locomo(base_url=address, cache_dir=cache)
    assert not (cache / "locomo10.json").exists()


def test_evidence_that_names_no_turn_is_left_out_and_reported_once(tmp_path, caplog):
    talk = conversation(1, sessions=2)
    talk["qa"][0]["evidence"] += ["D9:1", "note 3"]
    talk["qa"][1]["evidence"] = ["D2:77"]
    path = tmp_path / "own.json"
    path.write_text(json.dumps([talk]))
    source = DataSettings(dataset=str(path))
    questions = load_dataset(source, 0).conversations[0].questions
    load_dataset(source, 0)
    assert [question.evidence for question in questions[:2]] == [("D1:1",), ()]
    (told,) = [record.getMessage() for record in caplog.records]
    expected = "3 evidence ids name no turn and are left out, the first: 'D9:1', 'note 3', 'D2:77'"
    assert told == f"own.json: {expected}"
