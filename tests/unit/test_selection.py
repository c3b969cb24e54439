"""Which conversations and questions a run is about: ids, and files of ids."""

import pytest
from locomo_samples import question, sample, write

from locomo.benchmark_errors import DatasetError
from memory_program.configs.evaluate_config import EvaluateConfig
from memory_program.core.errors import ConfigError
from memory_program.evaluation.question_selection import load_selection


@pytest.fixture
def data(tmp_path):
    talks = [sample(f"talk-{n}", qa=[question(f"When {n}?"), question(f"Where {n}?")]) for n in (1, 2, 3)]
    return write(tmp_path / "talks.json", talks)


def chosen(data, **settings):
    selection = load_selection(EvaluateConfig(dataset=str(data), systems="extractive", **settings))
    asked = [question.question_id for question in selection.questions]
    return [conversation.conversation_id for conversation in selection.conversations], asked


def subset(tmp_path, text):
    path = tmp_path / "subset"
    path.write_text(text, encoding="utf-8")
    return path


def test_without_a_choice_everything_is_used(data):
    conversations, asked = chosen(data)
    assert conversations == ["talk-1", "talk-2", "talk-3"]
    assert len(asked) == 6


def test_conversations_are_chosen_by_their_ids(data):
    conversations, asked = chosen(data, conversations="talk-3, talk-1")
    assert conversations == ["talk-1", "talk-3"]
    assert len(asked) == 4


@pytest.mark.parametrize(
    "text",
    [
        "talk-2\n\ntalk-3\n",
        '["talk-2", "talk-3"]',
        '{"sample_ids": ["talk-2", "talk-3"]}',
        '{"character_ids": ["talk-2", "talk-3"]}',
    ],
)
def test_a_subset_file_names_conversations(data, tmp_path, text):
    conversations, asked = chosen(data, subset_file=subset(tmp_path, text))
    assert conversations == ["talk-2", "talk-3"]
    assert len(asked) == 4


def test_a_subset_file_of_questions_selects_their_conversations(data, tmp_path):
    conversations, asked = chosen(data, subset_file=subset(tmp_path, "talk-1:q1\ntalk-3:q0\n"))
    assert (conversations, asked) == (["talk-1", "talk-3"], ["talk-1:q1", "talk-3:q0"])


def test_the_first_questions_are_those_of_the_subset(data, tmp_path):
    path = subset(tmp_path, "talk-2\ntalk-3")
    assert chosen(data, subset_file=path, num_test=3) == (
        ["talk-2", "talk-3"],
        ["talk-2:q0", "talk-2:q1", "talk-3:q0"],
    )


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("talk-1\ntalk-9\ntalk-8\n", "names 'talk-9' and 1 more: expected ids .*'talk-1' or 'talk-1:q0'"),
        ("\n", "names nothing: expected ids"),
        ("[]", "names nothing: expected ids"),
    ],
)
def test_a_subset_file_that_does_not_fit_is_refused(data, tmp_path, text, complaint):
    with pytest.raises(ConfigError, match=complaint):
        chosen(data, subset_file=subset(tmp_path, text))


def test_a_subset_file_that_cannot_be_read_is_refused(data, tmp_path):
    with pytest.raises(ConfigError, match=r"subset_file=.*nowhere' cannot be read"):
        chosen(data, subset_file=tmp_path / "nowhere")
    with pytest.raises(DatasetError, match="is not a list"):
        chosen(data, subset_file=subset(tmp_path, '{"ids": ["talk-1"]}'))


def test_an_unknown_conversation_is_refused_with_the_first_of_many(tmp_path):
    data = write(tmp_path / "talks.json", [sample(f"talk-{n}", qa=[question()]) for n in range(30)])
    with pytest.raises(ConfigError) as caught:
        chosen(data, conversations="talk-99")
    assert str(caught.value).endswith("talk-7, talk-8, talk-9 and 20 more")


def test_a_subset_of_a_split_without_questions_is_refused(tmp_path):
    data = write(tmp_path / "talks.json", [sample("talk-1", qa=[])])
    with pytest.raises(ConfigError, match=r"subset_file=.*this split has none: leave --subset-file"):
        chosen(data, subset_file=subset(tmp_path, "talk-1\n"))


def test_a_split_without_conversations_is_refused(tmp_path):
    data = write(tmp_path / "one.json", [sample("conv-26", qa=[question("When?")])])
    assert chosen(data, split="train")[0] == ["conv-26"]
    with pytest.raises(
        ConfigError, match=r"split='test' has none of the 1 conversations .*leave --split out"
    ):
        chosen(data, split="test")


def test_a_subset_that_the_first_sessions_cannot_answer_is_refused(tmp_path):
    asked = [question("When?"), question("Which dog?", evidence=["D2:1"])]
    data = write(tmp_path / "talks.json", [sample("talk-1", qa=asked)])
    with pytest.raises(ConfigError, match="sessions=1 leaves no question"):
        chosen(data, subset_file=subset(tmp_path, "talk-1:q1"), sessions=1)
