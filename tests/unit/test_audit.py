"""LoCoMo under the overlay of an audit: wrong gold answers are left out, wrong evidence is corrected."""

import json
from dataclasses import replace

import pytest

from locomo.audit import apply_audit
from locomo.benchmark_errors import DatasetError
from locomo.locomo import read_dataset
from memory_program.configs.groups import DataSettings
from memory_program.core.errors import ConfigError
from memory_program.worlds import SAMPLE_FILE

DATASET = replace(read_dataset(SAMPLE_FILE), name="locomo")
TALK = DATASET.conversations[1]


def write(path, *entries):
    path.write_text(json.dumps(list(entries)))
    return path


def entry(index, error_type, evidence=(), **changed):
    text = TALK.questions[index].text
    found = {"question_id": f"locomo_1_qa{index}", "question": text, "error_type": error_type}
    return {**found, "correct_evidence": list(evidence), **changed}


def test_wrong_answers_are_left_out_and_wrong_evidence_is_corrected(tmp_path):
    entries = (entry(1, "HALLUCINATION"), entry(2, "WRONG_CITATION", ["D1:1; D1:2", "D99:1"]))
    audited = apply_audit(DATASET, write(tmp_path / "errors.json", *entries))
    kept = {question.index: question for question in audited.conversations[1].questions}
    assert set(kept) == {question.index for question in TALK.questions} - {1}
    assert kept[2].evidence == ("D1:1", "D1:2")
    assert kept[3] == TALK.questions[3]
    assert audited.conversations[0] == DATASET.conversations[0]


def test_the_version_of_the_data_names_the_audit_and_changes_with_it(tmp_path):
    one = apply_audit(DATASET, write(tmp_path / "errors_conv_1.json", entry(1, "HALLUCINATION")))
    whole = apply_audit(DATASET, tmp_path)
    other = apply_audit(DATASET, write(tmp_path / "errors.json", entry(2, "HALLUCINATION")))
    assert one.version == whole.version != other.version
    assert one.version.startswith("audited-")
    assert one.version.endswith(DATASET.sha256[:8])


def test_evidence_of_which_no_turn_is_known_is_refused(tmp_path):
    wrong = write(tmp_path / "errors.json", entry(2, "WRONG_CITATION", ["D99:1"]))
    with pytest.raises(DatasetError, match="names no turn of"):
        apply_audit(DATASET, wrong)


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"question": "Another?"}, "is not the question 'Another\\?'"),
        ({"question_id": "locomo_99_qa1"}, "names no question"),
        ({"question_id": "q1"}, "names no question"),
    ],
)
def test_an_entry_that_does_not_fit_is_refused(tmp_path, changed, complaint):
    with pytest.raises(DatasetError, match=complaint):
        apply_audit(DATASET, write(tmp_path / "errors.json", entry(1, "HALLUCINATION", **changed)))


def test_a_folder_without_an_audit_is_refused(tmp_path):
    with pytest.raises(DatasetError, match="has no errors_conv"):
        apply_audit(DATASET, tmp_path)


def test_only_locomo_has_an_audit(tmp_path):
    with pytest.raises(ConfigError, match="--audited only applies to --dataset locomo"):
        DataSettings(dataset="sample", audited=tmp_path)
