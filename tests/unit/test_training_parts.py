"""The part of the training split that a command uses: its halves, named conversations, first sessions."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from locomo.locomo import read_dataset
from locomo.types import Conversation
from memory_program.agents.program import MemoryProgram
from memory_program.agents.systems import make_system
from memory_program.agents.writer import MemoryWriter
from memory_program.bank.budget import count_tokens
from memory_program.bank.memory import MemoryKind
from memory_program.bank.record_json import session_to_json
from memory_program.bank.space import MemorySpace
from memory_program.cli import run_train
from memory_program.configs.groups import DataSettings, SystemSettings, TrainingPart
from memory_program.configs.sft_config import SynthesizeConfig, TrajectoriesConfig
from memory_program.configs.train_config import TrainConfig
from memory_program.core.errors import ConfigError, RecordError
from memory_program.core.json_files import read_json_file, write_json
from memory_program.evaluation.datasets import load_dataset
from memory_program.evaluation.seen_data import (
    SFT_CONVERSATIONS_FILE,
    OptimizationData,
    read_optimization_data,
    save_with_data,
    sft_conversation_key,
)
from memory_program.rl.episodes import Episode
from memory_program.rl.trained_program import (
    PROGRAM_FILE,
    leave_out_seen,
    make_base_program,
    save_trained_program,
)
from memory_program.rl.training_data import (
    check_not_taught,
    count_examples,
    inherit_sft_conversations,
    load_synthesis_conversations,
    load_training_splits,
    read_expert_lengths,
)
from memory_program.rl.training_run import train
from memory_program.sft.trajectories import record_trajectories
from tests.competent_model import chat_format
from tests.evaluation_samples import write_conversations
from tests.scripted_lm import ScriptedLM


@pytest.fixture
def source(tmp_path: Path) -> DataSettings:
    """Ten conversations of four sessions: six for training, two for validation, two for the test."""
    return DataSettings(dataset=str(write_conversations(tmp_path / "talks.json", 10)))


def trained(source: DataSettings, num_train: int = 600, **part: object) -> list[str]:
    splits = load_training_splits(source, 0, num_train, part=TrainingPart(**part))
    return [conversation.conversation_id for conversation in splits.train]


@pytest.mark.parametrize(
    ("part", "ids"),
    [
        ({}, [1, 2, 3, 4, 5, 6]),
        ({"split": "sft"}, [1, 2, 3]),
        ({"split": "rl"}, [4, 5, 6]),
        ({"split": "rl", "conversations": "talk-6,talk-4"}, [4, 6]),
        ({"conversations": "talk-2"}, [2]),
    ],
)
def test_a_part_of_the_training_split_is_used(source, part, ids):
    assert trained(source, **part) == [f"talk-{number}" for number in ids]


def test_named_conversations_are_all_used_whatever_the_number_of_examples(source):
    assert trained(source, num_train=1) == ["talk-1"]
    assert trained(source, num_train=1, conversations="talk-1,talk-2") == ["talk-1", "talk-2"]


@pytest.mark.parametrize("text", ["talk-5\ntalk-2\n", '{"sample_ids": ["talk-2", "talk-5"]}'])
def test_a_subset_file_names_conversations_of_the_training_split(source, tmp_path, text):
    path = tmp_path / "ids"
    path.write_text(text, encoding="utf-8")
    assert trained(source, subset_file=path) == ["talk-2", "talk-5"]
    with pytest.raises(
        ConfigError, match=r"subset_file=.*names 'talk-5' and 0 more: expected ids of this split"
    ):
        trained(source, subset_file=path, split="sft")


@pytest.mark.parametrize("name", ["talk-7", "talk-9"])
@pytest.mark.parametrize("split", ["train", "sft", "rl"])
def test_no_conversation_of_validation_or_test_is_trained_on(source, name, split):
    with pytest.raises(ConfigError, match=f"unknown conversation '{name}' in "):
        trained(source, split=split, conversations=name)


def test_sessions_shorten_every_split(source):
    splits = load_training_splits(source, 0, 600, part=TrainingPart(sessions=2))
    for conversation in (*splits.train, *splits.val, *splits.test):
        assert [session.number for session in conversation.sessions] == [1, 2]
        turns = conversation.turns
        assert all(set(question.evidence) <= set(turns) for question in conversation.questions)


def test_examples_are_counted_in_the_sessions_that_are_used(source):
    whole = load_training_splits(source, 0, 1).train
    fewer = count_examples(load_training_splits(source, 0, 1, part=TrainingPart(sessions=1)).train)
    assert fewer < count_examples(whole)
    needed = count_examples(whole)
    short = load_training_splits(source, 0, needed, part=TrainingPart(sessions=1)).train
    assert count_examples(short) >= needed
    assert len(short) > len(whole)


@pytest.mark.parametrize("dataset", ["talks", "sample"])
def test_unanswerable_questions_can_be_left_out_of_all_but_the_test_split(source, dataset):
    data = source if dataset == "talks" else DataSettings()
    splits = load_training_splits(data, 0, 6, 3, answerable_only=True)
    whole = load_training_splits(data, 0, 6, 3)

    def asked(conversations: tuple[Conversation, ...], *, answerable: bool) -> set[str]:
        return {q.question_id for c in conversations for q in c.questions if q.is_answerable is answerable}

    for name in ("train", "val"):
        assert asked(getattr(whole, name), answerable=False)
        assert not asked(getattr(splits, name), answerable=False)
        assert asked(getattr(whole, name), answerable=True) <= asked(getattr(splits, name), answerable=True)
    assert asked(splits.test, answerable=False) == asked(whole.test, answerable=False) != set()


def save_program(path: Path, **optimization: object) -> Path:
    system = make_system("memory", SystemSettings())
    path.parent.mkdir(exist_ok=True)
    system.save(str(path))
    state = read_json_file(path)
    state["metadata"] |= {"optimization": optimization}
    write_json(path, state)
    return path


def test_a_trained_model_still_tells_the_data_of_the_model_and_the_prompts_it_began_with(source, tmp_path):
    other = DataSettings(dataset=str(write_conversations(tmp_path / "other.json", 8, sessions=2)))
    first, second = tmp_path / "first" / PROGRAM_FILE, tmp_path / "second" / PROGRAM_FILE
    prompts = save_program(tmp_path / "prompts.json", dataset={"sha256": "p", "train": ["a"], "val": ["b"]})
    for path, config in (
        (first, TrainConfig(source=source, program=prompts)),
        (second, TrainConfig(source=other, model=f"local:{first.parent}")),
    ):
        path.parent.mkdir()
        program = make_base_program(config)
        save_trained_program(program, path, config, load_training_splits(config.source, 0, 600))
    seen = [
        read_optimization_data(second, sha256)
        for sha256 in ("p", load_dataset(source, 0).sha256, load_dataset(other, 0).sha256)
    ]
    assert [data and data.conversations for data in seen] == [
        ("a", "b"),
        tuple(f"talk-{number}" for number in range(1, 8)),
        tuple(f"talk-{number}" for number in range(1, 6)),
    ]


def test_a_program_that_is_saved_over_its_own_file_still_tells_its_data(source, tmp_path):
    dataset = {"sha256": "p", "train": ["a"], "val": ["b"]}
    path = save_program(tmp_path / "prompts.json", dataset=dataset)
    save_with_data(
        make_base_program(TrainConfig(source=source)), path, [path, None, tmp_path / "absent.json"]
    )
    assert read_optimization_data(path, "p") == OptimizationData("p", ("a", "b"))


def test_conversations_that_the_prompts_beside_a_model_were_optimised_on_are_not_tested(source, tmp_path):
    splits = load_training_splits(source, 0, 600)
    seen = {"sha256": splits.dataset.sha256, "train": ["talk-9"], "val": ["talk-1"]}
    other = {"sha256": "another file", "train": ["talk-10"], "val": ["talk-10"]}
    path = save_program(tmp_path / "model" / PROGRAM_FILE, dataset=other, earlier_datasets=[seen])
    config = TrainConfig(source=source, model=f"local:{path.parent}")
    left, lines = leave_out_seen(config, splits)
    assert [conversation.conversation_id for conversation in left.test] == ["talk-10"]
    assert lines == ["test: 1 conversations, without 1 that the prompts were optimised on"]
    save_program(path, dataset={**seen, "train": ["talk-9", "talk-10"]})
    with pytest.raises(ConfigError, match=r"the prompts in '.*program.json' were optimised on all 2 test"):
        leave_out_seen(config, splits)


def test_sessions_without_questions_are_an_error(tmp_path):
    talks = json.loads(write_conversations(tmp_path / "talks.json", 5).read_text(encoding="utf-8"))
    for one in talks:
        one["qa"] = [{**question, "evidence": ["D3:1"]} for question in one["qa"]]
    (tmp_path / "late.json").write_text(json.dumps(talks), encoding="utf-8")
    source = DataSettings(dataset=str(tmp_path / "late.json"))
    assert trained(source, sessions=3)
    with pytest.raises(ConfigError, match="sessions=2 leaves no question in the train split"):
        trained(source, sessions=2)


@pytest.mark.parametrize(
    ("split", "change", "answerable_only", "complaint"),
    [
        ("train", {"evidence": []}, False, "the train split has no question with evidence"),
        ("val", {"evidence": []}, False, "the val split has no question with evidence"),
        ("val", {"category": 5, "answer": None}, True, "answerable_only=True leaves no question in the val"),
        ("test", None, False, "the test split has no questions"),
    ],
)
def test_a_training_needs_questions_in_each_split(tmp_path, split, change, answerable_only, complaint):
    talks = json.loads(write_conversations(tmp_path / "talks.json", 5).read_text(encoding="utf-8"))
    for one in {"train": talks[:3], "val": talks[3:4], "test": talks[4:]}[split]:
        one["qa"] = [] if change is None else [{**question, **change} for question in one["qa"]]
    (tmp_path / "few.json").write_text(json.dumps(talks), encoding="utf-8")
    data = DataSettings(dataset=str(tmp_path / "few.json"))
    assert trained(data), "other commands need no questions"
    config = TrainConfig(
        source=data, answerable_only=answerable_only, output_dir=tmp_path / "run", mlflow=False
    )
    with pytest.raises(ConfigError, match=complaint):
        train(config)
    assert not (tmp_path / "run").exists(), "no model was loaded"


def test_generated_conversations_for_sft_are_others_than_those_for_rl():
    halves = [set(trained(DataSettings(), 12, split=split)) for split in ("sft", "rl", "train")]
    assert not halves[0] & halves[1]
    assert halves[1] == halves[2]


def test_one_training_conversation_cannot_be_shared(tmp_path):
    source = DataSettings(dataset=str(write_conversations(tmp_path / "few.json", 3)))
    assert trained(source, split="sft") == ["talk-1"]
    with pytest.raises(ConfigError, match="half 'rl' of the training split is empty: add conversations"):
        trained(source, split="rl")


def test_questions_are_written_for_all_of_ones_own_file_or_a_part(source):
    def chosen(**part: object) -> list[str]:
        found = load_synthesis_conversations(source, 0, 600, TrainingPart(**part))
        return [conversation.conversation_id for conversation in found]

    assert len(chosen()) == 10
    assert chosen(split="rl", conversations="talk-8") == ["talk-8"]
    (short,) = load_synthesis_conversations(source, 0, 600, TrainingPart(conversations="talk-8", sessions=1))
    assert len(short.sessions) == 1


def test_trajectories_are_of_the_half_for_sft_by_default():
    assert TrajectoriesConfig().part.split == "sft"
    assert SynthesizeConfig(model="openai/m").part.split == "train"


def test_what_taught_a_model_cannot_train_it_by_reward(source, tmp_path):
    dataset = read_dataset(Path(source.dataset))
    sessions = [json.loads(line) for line in _first_sessions(dataset)]
    taught = [sft_conversation_key(f"talk-{n}", sessions[n - 1]) for n in (1, 2)]
    path = tmp_path / SFT_CONVERSATIONS_FILE
    path.write_text(json.dumps({"conversations": taught}), encoding="utf-8")
    model = f"local:{tmp_path}"
    check_not_taught(model, dataset.conversations[2:])
    with pytest.raises(ConfigError, match=r"'talk-2' taught 'local:.*' by --mode sft.*train with --split rl"):
        check_not_taught(model, dataset.conversations[1:])
    inherit_sft_conversations(model, tmp_path / "trained")
    with pytest.raises(ConfigError, match="'talk-1' taught"):
        check_not_taught(f"local:{tmp_path / 'trained'}", dataset.conversations)
    inherit_sft_conversations("pocket-base", tmp_path / "other")
    assert not (tmp_path / "other").exists()
    check_not_taught("openai/m", dataset.conversations)
    check_not_taught("pocket-base", dataset.conversations)
    path.write_text("{}", encoding="utf-8")
    with pytest.raises(RecordError, match="does not list conversations"):
        check_not_taught(model, dataset.conversations)


def test_a_training_is_refused_what_taught_its_model(source, tmp_path, capsys):
    dataset = read_dataset(Path(source.dataset))
    key = sft_conversation_key("talk-2", json.loads(_first_sessions(dataset)[1]))
    (tmp_path / SFT_CONVERSATIONS_FILE).write_text(json.dumps({"conversations": [key]}), encoding="utf-8")
    flags = [
        "--dataset",
        source.dataset,
        "--model",
        f"local:{tmp_path}",
        "--output-dir",
        str(tmp_path / "run"),
    ]
    assert run_train(["--no-mlflow", *flags]) == 2
    assert "'talk-2' taught" in capsys.readouterr().err
    assert run_train(["--no-mlflow", "--split", "rl", *flags]) != 0  # there are no weights to train
    assert "taught" not in capsys.readouterr().err


def test_lengths_are_compared_with_an_experts_trajectories(source, tmp_path):
    conversation = read_dataset(Path(source.dataset)).conversations[0]
    program = MemoryProgram(MemoryWriter(checks_grounding=False))
    program.writer.agents = ("episodic", "semantic")
    call = {"name": "manage_memory", "args": {"action": "create", "text": "Mara moved to Oslo."}}
    replies = [chat_format({"tool_calls": json.dumps({"tool_calls": [call]})})] * 8
    program.writer.set_lm(ScriptedLM(replies))
    record_trajectories(program, [conversation], tmp_path / "expert", threads=1)
    splits = replace(
        load_training_splits(source, 0, 600), expert_lengths=read_expert_lengths(tmp_path / "expert")
    )
    first, second = (
        Episode(conversation, session, MemorySpace("x"), ()) for session in conversation.sessions[:2]
    )
    tokens = count_tokens("Mara moved to Oslo.")
    assert splits.expert_tokens(first, MemoryKind.EPISODIC) == tokens
    assert splits.expert_tokens(first, MemoryKind.PROCEDURAL) == 0
    assert splits.expert_tokens(first, None) == 2 * tokens
    assert splits.expert_tokens(second, None) == 0  # nothing is stored twice
    other = splits.train[1]
    assert splits.expert_tokens(Episode(other, other.sessions[0], MemorySpace("x"), ()), None) is None


def test_a_folder_without_trajectories_has_no_lengths(tmp_path):
    with pytest.raises(RecordError, match="holds no trajectories: run --mode trajectories first"):
        read_expert_lengths(tmp_path / "nowhere")
    (tmp_path / "a.jsonl").write_text('{"episode": 3}\n', encoding="utf-8")
    with pytest.raises(RecordError, match="holds a line that is no trajectory"):
        read_expert_lengths(tmp_path)


def _first_sessions(dataset) -> list[str]:
    return [session_to_json(conversation.sessions[0]) for conversation in dataset.conversations]
