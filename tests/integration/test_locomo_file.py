"""The official file: its counts, its known flaws repaired, its download, and its splits."""

import json
import subprocess
import sys
from collections import Counter

import pytest
from file_server import served

from locomo.benchmark_errors import DatasetError
from locomo.locomo import LOCOMO_SHA256, load_locomo, read_conversations
from locomo.metrics import locomo_f1
from locomo.split_data import main
from locomo.splits import SPLITS, select_split
from locomo.types import ANSWERABLE_CATEGORIES, Category, all_questions

pytestmark = pytest.mark.dataset

# reference: the counts of the released file, by conversation
# speakers, sessions, turns, questions, and questions of category 1 to 5
COUNTS = {
    "conv-26": (("Caroline", "Melanie"), 19, 419, 199, (32, 37, 13, 70, 47)),
    "conv-30": (("Jon", "Gina"), 19, 369, 105, (11, 26, 0, 44, 24)),
    "conv-41": (("John", "Maria"), 32, 663, 193, (31, 27, 8, 86, 41)),
    "conv-42": (("Joanna", "Nate"), 29, 629, 260, (37, 40, 11, 111, 61)),
    "conv-43": (("Tim", "John"), 29, 680, 242, (31, 26, 14, 107, 64)),
    "conv-44": (("Audrey", "Andrew"), 28, 675, 158, (30, 24, 7, 62, 35)),
    "conv-47": (("James", "John"), 31, 689, 190, (20, 34, 13, 83, 40)),
    "conv-48": (("Deborah", "Jolene"), 30, 681, 239, (21, 42, 10, 118, 48)),
    "conv-49": (("Evan", "Sam"), 25, 509, 196, (37, 33, 13, 73, 40)),
    "conv-50": (("Calvin", "Dave"), 30, 568, 204, (32, 32, 7, 87, 46)),
}

# what the repair takes away from a question's evidence, and what it puts in its place
REPAIRED = {
    "conv-26:q37": ({"D8:6; D9:17"}, {"D8:6", "D9:17"}),
    "conv-42:q58": ({"D10:19"}, set()),  # names no turn
    "conv-42:q88": ({"D"}, set()),
    "conv-43:q18": ({"D:11:26"}, {"D11:26"}),
    "conv-47:q38": ({"D4:36"}, set()),  # names no turn
    "conv-49:q31": ({"D9:1 D4:4 D4:6"}, {"D9:1", "D4:4", "D4:6"}),
    "conv-49:q38": ({"D22:1 D22:2 D9:10 D9:11"}, {"D22:1", "D22:2", "D9:10", "D9:11"}),
    "conv-49:q46": ({"D21:18 D21:22 D11:15 D11:19"}, {"D21:18", "D21:22", "D11:15", "D11:19"}),
    "conv-50:q5": (set(), set()),  # one id twice
    "conv-50:q69": ({"D30:05"}, {"D30:5"}),
}


@pytest.fixture(scope="module")
def locomo(locomo_path):
    return load_locomo(locomo_path)


@pytest.fixture(scope="module")
def by_id(locomo):
    return {c.conversation_id: c for c in locomo.conversations}


@pytest.fixture(scope="module")
def questions(locomo):
    return all_questions(locomo.conversations)


def test_the_file_is_the_official_one(locomo):
    assert (locomo.sha256, locomo.is_modified, locomo.name) == (LOCOMO_SHA256, False, "locomo")


def test_the_ten_conversations_come_in_order(by_id):
    assert list(by_id) == list(COUNTS)


@pytest.mark.parametrize("name", COUNTS)
def test_a_conversation_has_the_published_counts(by_id, name):
    conversation = by_id[name]
    categories = Counter(question.category for question in conversation.questions)
    assert (
        conversation.speakers,
        len(conversation.sessions),
        len(conversation.turns),
        len(conversation.questions),
        tuple(categories[category] for category in Category),
    ) == COUNTS[name]


def test_the_totals_are_the_published_ones(locomo, questions):
    assert sum(len(c.sessions) for c in locomo.conversations) == 272
    assert sum(len(c.turns) for c in locomo.conversations) == 5_882
    assert Counter(q.category for q in questions) == {1: 282, 2: 321, 3: 96, 4: 841, 5: 446}
    assert sum(q.category in ANSWERABLE_CATEGORIES for q in questions) == 1_540


def test_session_dates_increase_and_no_day_has_two(locomo):
    for conversation in locomo.conversations:
        days = [session.date_time.date() for session in conversation.sessions]
        assert days == sorted(set(days))


def test_dates_without_sessions_make_no_sessions(by_id):
    assert [session.number for session in by_id["conv-26"].sessions] == list(range(1, 20))


def test_the_first_session_may_be_opened_by_the_second_speaker(locomo):
    opened = [c.sessions[0].turns[0].speaker == c.speakers[0] for c in locomo.conversations]
    assert opened.count(False) == 6


def test_captions_are_read_with_and_without_a_link(locomo):
    turns = [turn for c in locomo.conversations for turn in c.turns.values()]
    assert sum(turn.caption is not None for turn in turns) == 1_226
    assert sum(turn.caption is not None and turn.image_url is None for turn in turns) == 316


def test_captions_are_evidence_for_many_questions(by_id, questions):
    captioned = [q for q in questions if any(by_id[q.conversation_id].turns[e].caption for e in q.evidence)]
    assert len(captioned) == 861


def test_texts_are_trimmed_and_lines_are_single_lines(locomo):
    turns = [turn for c in locomo.conversations for turn in c.turns.values()]
    assert all(turn.text == turn.text.strip() and turn.text for turn in turns)
    assert all("\n" not in turn.line for turn in turns)
    assert sum("\n" in turn.text for turn in turns) > 0
    assert any("<3" in turn.text for turn in turns)


def test_all_evidence_names_turns_that_exist_once(by_id, questions):
    for question in questions:
        assert set(question.evidence) <= set(by_id[question.conversation_id].turns)
        assert len(set(question.evidence)) == len(question.evidence)


def test_four_questions_have_no_evidence(questions):
    bare = ["conv-26:q30", "conv-26:q46", "conv-50:q39", "conv-50:q42"]
    assert [q.question_id for q in questions if not q.evidence] == bare


def test_evidence_differs_from_the_file_exactly_where_the_file_is_malformed(locomo_path, questions):
    samples = json.loads(locomo_path.read_text(encoding="utf-8"))
    written_Q = [asked["evidence"] for sample in samples for asked in sample["qa"]]
    repaired = {
        question.question_id: (set(written) - set(question.evidence), set(question.evidence) - set(written))
        for written, question in zip(written_Q, questions, strict=True)
        if written != list(question.evidence)
    }
    assert repaired == REPAIRED


def test_whole_numbers_stay_numbers(questions):
    numbers = [q.question_id for q in questions if isinstance(q.answer, int)]
    assert numbers == [f"conv-26:q{i}" for i in (1, 26, 40, 49, 72, 75)]


def test_adversarial_questions_have_a_trap_and_two_have_an_answer(questions):
    adversarial = [q for q in questions if q.category is Category.ADVERSARIAL]
    assert all(q.adversarial_answer for q in adversarial)
    assert {q.question_id: q.answer for q in adversarial if q.answer is not None} == {
        "conv-26:q167": "No",
        "conv-26:q178": "No",
    }


def test_question_ids_are_unique_though_texts_are_not(questions):
    assert len({q.question_id for q in questions}) == 1_986
    assert len({q.text for q in questions}) == 1_974


def test_the_vectors_of_the_official_scorer_are_reproduced(locomo_path):
    path = locomo_path.parent / "f1_vectors.json"
    if not path.exists():
        pytest.skip("needs f1_vectors.json beside the LoCoMo file")
    vectors = json.loads(path.read_text())["vectors"]
    assert len(vectors) == 24
    for vector in vectors:
        score = locomo_f1(vector["prediction"], vector["gold"], vector["category"])
        assert score == pytest.approx(vector["score"], abs=1e-12), vector


def test_the_gold_itself_scores_as_the_official_scorer_has_it(questions):
    scores = {
        category: [locomo_f1(str(q.answer), q.answer, category) for q in questions if q.category is category]
        for category in ANSWERABLE_CATEGORIES
    }
    means = {category.value: round(sum(s) / len(s), 3) for category, s in scores.items()}
    assert means == {1: 1.0, 2: 1.0, 3: 0.927, 4: 1.0}


def test_the_download_is_checked_cached_and_used_without_the_network(locomo_path, tmp_path):
    with served(locomo_path.parent) as address:
        first = load_locomo(base_url=address, cache_dir=tmp_path)
    again = load_locomo(base_url=address, cache_dir=tmp_path)  # nobody listens any more
    assert first.sha256 == again.sha256 == LOCOMO_SHA256
    assert not again.is_modified


def test_one_changed_answer_is_noticed(locomo_path, tmp_path):
    copy = tmp_path / "locomo10.json"
    copy.write_bytes(locomo_path.read_bytes().replace(b"7 May 2023", b"8 May 2023", 1))
    with pytest.raises(DatasetError, match="not the official LoCoMo file"):
        load_locomo(copy)
    assert load_locomo(copy, allow_modified=True).is_modified


# Splits


@pytest.fixture
def splits(locomo_path, tmp_path):
    """A folder with freshly written splits, and the arguments that verify it."""
    arguments = ["--data", str(locomo_path), "--out", str(tmp_path)]
    assert main(arguments) == 0
    return tmp_path, [*arguments, "--verify"]


def test_each_split_is_a_file_in_the_same_schema(splits, locomo):
    folder, _ = splits
    for split in SPLITS:
        assert read_conversations(folder / f"{split}.json") == select_split(locomo.conversations, split)


def test_the_manifest_holds_ids_counts_and_the_hash_of_the_source(splits):
    manifest = json.loads((splits[0] / "splits.json").read_text())
    assert manifest["source"]["sha256"] == LOCOMO_SHA256
    assert {name: entry["questions"] for name, entry in manifest["splits"].items()} == {
        "train": 1_157,
        "val": 190,
        "test": 639,
    }
    assert {name: tuple(entry["conversations"]) for name, entry in manifest["splits"].items()} == SPLITS


def test_fresh_splits_verify(splits):
    assert main(splits[1]) == 0


def change_split(folder, name, change):
    path = folder / f"{name}.json"
    samples = json.loads(path.read_text(encoding="utf-8"))
    change(samples)
    path.write_text(json.dumps(samples), encoding="utf-8")


def test_a_conversation_in_two_splits_is_found(splits, capsys):
    folder, arguments = splits
    leaked = json.loads((folder / "test.json").read_text(encoding="utf-8"))[0]
    change_split(folder, "train", lambda samples: samples.append(leaked))
    assert main(arguments) == 1
    assert "train and test share conv-48 and 30 more" in capsys.readouterr().err


def test_a_session_in_two_splits_is_found_under_another_name(splits, capsys):
    folder, arguments = splits
    leaked = json.loads((folder / "test.json").read_text(encoding="utf-8"))[0] | {"sample_id": "conv-26b"}
    change_split(folder, "train", lambda samples: samples.append(leaked))
    assert main(arguments) == 1
    assert "train and test share conv-26b session_1 and 29 more" in capsys.readouterr().err


def test_a_lost_conversation_is_found(splits, capsys):
    folder, arguments = splits
    change_split(folder, "train", lambda samples: samples.pop())
    assert main(arguments) == 1
    assert "train.json does not hold exactly conv-26" in capsys.readouterr().err


def test_a_lost_question_is_found(splits, capsys):
    folder, arguments = splits
    change_split(folder, "val", lambda samples: samples[0]["qa"].pop())
    assert main(arguments) == 1
    assert "val.json does not hold exactly conv-47" in capsys.readouterr().err


def test_a_manifest_of_other_files_is_found(splits, capsys):
    folder, arguments = splits
    change_split(folder, "val", lambda samples: samples[0].pop("event_summary"))
    assert main(arguments) == 1
    assert "splits.json does not describe these files" in capsys.readouterr().err


def test_modified_data_does_not_pass_for_the_official_counts(locomo_path, tmp_path, capsys):
    samples = json.loads(locomo_path.read_text(encoding="utf-8"))
    next(sample for sample in samples if sample["sample_id"] == "conv-47")["qa"].pop()
    (tmp_path / "fewer.json").write_text(json.dumps(samples))
    arguments = ["--data", str(tmp_path / "fewer.json"), "--out", str(tmp_path), "--allow-modified"]
    assert main(arguments) == 0
    assert main([*arguments, "--verify"]) == 1
    assert "val.json holds 189 questions, expected 190" in capsys.readouterr().err


def test_an_unwritable_folder_is_an_error(locomo_path, tmp_path, capsys):
    taken = tmp_path / "splits"
    taken.write_text("a file stands where the folder should be")
    assert main(["--data", str(locomo_path), "--out", str(taken)]) == 1
    assert "name another folder by --out" in capsys.readouterr().err


def test_the_command_writes_and_verifies_in_a_process_of_its_own(locomo_path, tmp_path):
    command = [sys.executable, "-m", "locomo.split_data", "--data", str(locomo_path), "--verify"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "disjoint and complete" in done.stdout
    assert (tmp_path / "splits" / "test.json").exists()
