"""Training the reader, and weights under a saved program: ``train.py --target`` and ``--program``."""

import itertools
import json
import shutil
from pathlib import Path

import mlflow
import pytest
import torch
from dspy import lm15
from rich.console import Console

from locomo.locomo import read_dataset
from memory_program.agents.program import MemoryProgram, saved_reply_format
from memory_program.agents.writer import MemoryWriter
from memory_program.bank.record_json import session_to_json
from memory_program.bank.space import MemorySpace
from memory_program.configs.evaluate_config import EvaluateConfig, SystemName
from memory_program.configs.sft_config import FineTuneConfig, TrajectoriesConfig
from memory_program.configs.train_config import TrainConfig
from memory_program.configs.trainer_groups import GRPOSettings, ReinforceSettings
from memory_program.core.checkpoints import read_log
from memory_program.core.errors import ConfigError, RunFailedError
from memory_program.evaluation.evaluation_run import evaluate
from memory_program.evaluation.seen_data import SFT_CONVERSATIONS_FILE, sft_conversation_key
from memory_program.models.reply_settings import ReplyFormat
from memory_program.rl.grpo import MemoryGRPO
from memory_program.rl.rewards import build_answer_metric
from memory_program.rl.training_run import train
from memory_program.sft.program_examples import reader_examples, writer_examples
from memory_program.sft.sft_commands import fine_tune_parts
from memory_program.sft.sft_training import sft_examples
from memory_program.sft.trajectories import read_trajectories, record_trajectories
from tests.model_server import ModelServer
from tests.training_runs import run_training, save_talks, training_flags
from tests.training_samples import (
    memorable_talk,
    reader_student,
    ruled_program,
)

pytestmark = pytest.mark.usefixtures("torch_on_one_thread")
EASY = {
    "num_train_steps": 4, "examples_per_step": 2, "group_size": 8, "curriculum": "", "refresh_every": 2,
    "val_every": 4, "save_every": 2, "concurrency": 8, "format_weight": 0.1,
}  # fmt: skip
TRAINING = {"learning_rate": 1e-3, "warmup_steps": 0, "beta": 0.02, "max_completion_tokens": 40}
TRAIN, VAL = [memorable_talk("learned")], [memorable_talk("chosen on")]


@pytest.fixture(scope="module")
def talks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_talks(tmp_path_factory.mktemp("talks"), [memorable_talk(name) for name in "abcd"])


def grpo(out: Path, on_entry=lambda entry: None) -> MemoryGRPO:
    metric = build_answer_metric("f1")
    settings, training = GRPOSettings(**EASY), ReinforceSettings(**TRAINING)
    return MemoryGRPO(metric, out, settings, training, on_entry=on_entry, target="reader")


def reader_weights(program: MemoryProgram) -> dict[str, torch.Tensor]:
    return program.reader.answer.lm.engine.local.model.network.state_dict()


class Killed(Exception):
    pass


def test_the_score_of_answers_rises_and_a_killed_training_ends_with_the_same_weights(
    half_taught_reader, tmp_path
):
    trained = grpo(tmp_path / "straight").compile(
        reader_student(half_taught_reader), trainset=TRAIN, valset=VAL
    )
    steps = [entry for entry in read_log(tmp_path / "straight") if entry["kind"] == "step"]
    first, last = (e for e in read_log(tmp_path / "straight") if e["kind"] == "validation")
    assert last["score"] > first["score"] + 0.3
    assert steps[0]["rollouts"] == 2 * 2 * 8  # the questions of two episodes, eight answers each
    assert steps[0]["groups"] + steps[0]["zero_variance_groups"] == 4
    assert steps[-1]["abstained"] < steps[0]["abstained"]

    def on_entry(entry: dict) -> None:
        if entry["kind"] == "step" and entry["step"] == 3:  # between two checkpoints
            raise Killed

    with pytest.raises(Killed):
        grpo(tmp_path / "killed", on_entry).compile(
            reader_student(half_taught_reader), trainset=TRAIN, valset=VAL
        )
    resumed = grpo(tmp_path / "killed").compile(
        reader_student(half_taught_reader), trainset=TRAIN, valset=VAL
    )
    expected = reader_weights(trained)
    assert all(torch.equal(weight, expected[name]) for name, weight in reader_weights(resumed).items())


def test_a_readers_training_goes_on_when_every_answer_of_a_refill_fails(half_taught_reader, tmp_path):
    program, asked = reader_student(half_taught_reader), itertools.count()
    complete = program.reader.answer.lm.engine.complete

    def complete_the_first(request: lm15.Request) -> lm15.Response:
        if request.config.temperature and next(asked) >= 2 * 2 * 2:
            raise lm15.ContextLengthError("the memories are too long")
        return complete(request)

    program.reader.answer.lm.engine.complete = complete_the_first
    small = {"num_train_steps": 1, "group_size": 2, "refill_rounds": 1}
    training = grpo(tmp_path)
    training.settings = GRPOSettings(**{**EASY, **small})
    training.compile(program, trainset=TRAIN, valset=VAL)
    (step,) = (entry for entry in read_log(tmp_path) if entry["kind"] == "step")
    assert step["refilled_episodes"] >= 1
    assert step["lost"] == 2 * 2 * step["refilled_episodes"]


def test_a_readers_step_without_any_score_ends_the_training(half_taught_reader, tmp_path):
    judged = grpo(tmp_path)
    judged.metric = lambda question, answer: None
    with pytest.raises(RunFailedError, match="no answer of step 1 has a score"):
        judged.dry_run(reader_student(half_taught_reader), trainset=TRAIN)


def test_the_folder_of_a_writers_training_is_refused(half_taught_reader, tmp_path):
    grpo(tmp_path).dry_run(reader_student(half_taught_reader), trainset=TRAIN)
    grpo(tmp_path).compile(reader_student(half_taught_reader), trainset=TRAIN, valset=VAL)
    of_writer = grpo(tmp_path)
    of_writer.target = "writer"
    with pytest.raises(ConfigError, match="holds a training with model="):
        of_writer.compile(reader_student(half_taught_reader), trainset=TRAIN, valset=VAL)


def test_a_writer_with_the_trained_weights_is_refused(half_taught_reader, tmp_path):
    program = reader_student(half_taught_reader)
    program.writer.set_lm(program.reader.answer.lm)
    with pytest.raises(ConfigError, match="the writer shares the model that is trained"):
        grpo(tmp_path).compile(program, trainset=TRAIN, valset=VAL)


# supervised fine-tuning


@pytest.fixture(scope="module")
def trajectories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trajectories")
    record_trajectories(ruled_program(), [memorable_talk(name) for name in "abc"], folder, threads=2)
    ruled_program().save(str(folder / "program.json"))
    return folder


def brief_program() -> MemoryProgram:
    """A program whose agents are all asked to be brief."""
    program = MemoryProgram()
    for predictor in program.predictors():
        asked = predictor.signature
        predictor.signature = asked.with_instructions(f"{asked.instructions} Be brief.")
    return program


def test_an_experts_replies_are_taught_under_the_prompts_of_a_program(trajectories):
    lines = read_trajectories(trajectories)
    assert writer_examples(MemoryProgram(), lines) == sft_examples(lines)
    brief = writer_examples(brief_program(), lines)
    assert all("Be brief." in example["messages"][0]["content"] for example in brief)
    replies = [[example["messages"][-1] for example in examples] for examples in (brief, sft_examples(lines))]
    assert replies[0] == replies[1]
    with pytest.raises(
        ConfigError, match="4 calls of core, episodic, semantic, procedural, and the program's"
    ):
        writer_examples(MemoryProgram(MemoryWriter("generalist")), lines)


def test_gold_answers_are_taught_where_retrieval_shows_their_evidence(trajectories):
    lines = read_trajectories(trajectories)
    found = reader_examples(brief_program(), lines)
    assert (len(found.examples), found.missed) == (6, 0)
    messages = found.examples[0]["messages"]
    assert "Be brief." in messages[0]["content"]
    assert "Mara: I moved to Oslo with my sister." in messages[1]["content"]
    assert "Mara moved to Oslo" in messages[2]["content"]
    for line in lines:
        line["operations"] = []  # nothing was remembered
    assert reader_examples(MemoryProgram(), lines).missed == 6


def test_questions_without_an_answer_keep_their_share_among_the_gold_answers(trajectories):
    line = read_trajectories(trajectories)[0]
    answerable = line["episode"]["questions"][0]
    never_said = {**answerable, "evidence": ["D9:9"]}
    unanswerable = {**answerable, "answer": None, "evidence": [], "category": 5}
    line["episode"]["questions"] = [answerable, never_said, *[unanswerable] * 4]
    found = reader_examples(MemoryProgram(), [line])
    answers = [example["messages"][-1]["content"] for example in found.examples]
    assert found.missed == 1
    assert ["Not mentioned" in answer for answer in answers] == [False, True, True]
    (only,) = reader_examples(MemoryProgram(), [line], answerable_only=True).examples
    assert only == found.examples[0]


def test_a_reader_learns_the_reply_format_that_is_asked_for(half_taught_reader, trajectories, tmp_path):
    settings = {
        "model": f"local:{half_taught_reader}", "trajectories": trajectories, "output_dir": tmp_path,
        "held_out": 0.34, "epochs": 1, "reply_format": "json", "mlflow": False,
    }  # fmt: skip
    with pytest.raises(
        ConfigError, match="reply_format=json differs from that of the recorded replies, chat"
    ):
        fine_tune_parts(FineTuneConfig(**settings), Console(quiet=True))
    fine_tune_parts(FineTuneConfig(**settings, target="reader"), Console(quiet=True))
    saved = json.loads((tmp_path / "model" / "program.json").read_text())
    formats = [saved_reply_format(saved, part) for part in ("writer", "reader")]
    assert formats == [ReplyFormat.CHAT, ReplyFormat.JSON]


def test_fine_tuning_teaches_a_reader_to_answer(half_taught_reader, trajectories, tmp_path):
    config = FineTuneConfig(
        model=f"local:{half_taught_reader}", trajectories=trajectories, target="reader", output_dir=tmp_path,
        batch=4, learning_rate=2e-3, warmup_steps=0, held_out=0.34, epochs=4,
    )  # fmt: skip
    fine_tune_parts(config, Console(quiet=True))
    assert (tmp_path / "model" / "program.json").is_file()
    program, space = reader_student(tmp_path / "model" / "reader"), MemorySpace("x")
    (told,) = memorable_talk("x").sessions
    program.remember(space, told)
    assert program.ask(space, "Where did Mara move, Oslo?").text == "Mara moved to Oslo"


def test_settings_of_fine_tuning_that_do_not_fit_are_refused():
    with pytest.raises(ConfigError, match="answerable_only=True only applies to a reader"):
        FineTuneConfig(answerable_only=True)
    with pytest.raises(ConfigError, match="max_searches=1 cannot be learned by SFT"):
        FineTuneConfig(target="reader", max_searches=1)
    with pytest.raises(ConfigError, match=r"program='p\.json' has prompts that model='oracle' cannot read"):
        TrajectoriesConfig(program=Path("p.json"))


# from the command line


def flags(model: Path, talks: Path, server: ModelServer, out: Path, *more: str) -> list[str]:
    return training_flags(
        model, talks, server, out, "--target", "reader", "--writer-model", "openai/writer",
        "--num-train-steps", "3", "--examples-per-step", "2", "--group-size", "8", "--val-every", "3",
        "--ema-decay", "0", *more,
    )  # fmt: skip


@pytest.fixture(scope="module")
def trained_reader(
    half_taught_reader: Path, talks: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, str]:
    out = tmp_path_factory.mktemp("runs") / "train"
    with ModelServer() as server:
        return out, run_training(flags(half_taught_reader, talks, server, out))


def test_a_reader_may_be_trained_on_the_conversations_of_its_fine_tuning(half_taught_reader, talks, tmp_path):
    model = shutil.copytree(half_taught_reader, tmp_path / "taught")
    dataset = read_dataset(talks)
    firsts = {c.conversation_id: json.loads(session_to_json(c.sessions[0])) for c in dataset.conversations}
    keys = [sft_conversation_key(name, session) for name, session in firsts.items()]
    (model / SFT_CONVERSATIONS_FILE).write_text(json.dumps({"conversations": keys}))
    writer = TrainConfig(
        model=f"local:{model}", dataset=str(talks), output_dir=tmp_path / "out", dry_run=True
    )
    with ModelServer() as server:
        with pytest.raises(ConfigError, match=r"taught 'local:.*' by --mode sft"):
            train(writer, console=Console(quiet=True))
        said = run_training(flags(model, talks, server, tmp_path / "out", "--dry-run"))
    assert "reward" in said


def test_a_trained_reader_is_compared_with_its_base(trained_reader):
    out, said = trained_reader
    results = json.loads((out / "results.json").read_text())
    base, trained = (results["systems"][name]["locomo_f1"]["all"]["value"] for name in ("base", "trained"))
    assert trained > base
    assert results["comparisons"]["locomo_f1"]["difference"] == pytest.approx(trained - base)
    assert "evaluating base (openai/writer writes, local:" in said
    assert f"validation: {results['validation']['first']['score']:.3f} before training" in said
    card = (out / "model" / "README.md").read_text()
    assert "trained as a memory reader" in card
    assert "frozen writer: openai/writer" in card


def test_a_reader_is_trained_on_the_notes_of_locomo(half_taught_reader, talks, tmp_path):
    noted = json.loads(talks.read_text())
    for talk in noted:
        notes = {
            "Mara": [["Mara moved to Oslo with her sister.", "D1:1"]],
            "Tom": [["Tom adopted a puppy called Rex.", "D1:2"]],
        }
        talk["observation"] = {"session_1_observation": notes}
    path, out = tmp_path / "noted.json", tmp_path / "runs" / "train"
    path.write_text(json.dumps(noted))
    more = "--dataset", str(path), "--writer-model", "observations", "--writer-mode", "generalist"
    with ModelServer() as server:
        said = run_training(flags(half_taught_reader, talks, server, out, *more, "--num-train-steps", "1"))
        assert not server.traffic.requests
    results = json.loads((out / "results.json").read_text())
    assert "evaluating base (observations writes, local:" in said
    assert results["systems"]["trained"]["failures"]["all"] == 0
    assert results["systems"]["trained"]["recall"]["5"] == 1
    assert "--systems memory" in (out / "model" / "README.md").read_text()


def test_the_weights_beside_a_program_answer_for_it_and_not_for_others(trained_reader, talks, tmp_path):
    out, _ = trained_reader
    with ModelServer() as server:
        config = EvaluateConfig(
            dataset=str(talks),
            conversations="d",
            systems="memory,optimized",
            program=out / "model" / "program.json",
            model="openai/model",
            judge_model="none",
            api_base=server.url,
            output_dir=tmp_path / "evaluate",
            mlflow=False,
        )
        evaluate(config, console=Console(quiet=True))
    assert config.writer_model_for(SystemName.OPTIMIZED) == "openai/model"
    results = json.loads((tmp_path / "evaluate" / "results.json").read_text())["systems"]
    readers = {name: system["run"]["system"]["reader"] for name, system in results.items()}
    assert readers == {"memory": "openai/model", "optimized": f"local:{out / 'model' / 'reader'}"}


def test_a_program_is_trained_under_and_four_systems_are_compared(half_taught_reader, talks, tmp_path):
    brief_program().save(str(tmp_path / "program.json"))
    out = tmp_path / "runs" / "train"
    with ModelServer() as server:
        more = ("--program", str(tmp_path / "program.json"), "--num-train-steps", "1")
        said = run_training(flags(half_taught_reader, talks, server, out, *more))
    for saved in (out / "model" / "program.json", out / "model" / "reader" / "program.json"):
        assert "Be brief." in json.loads(saved.read_text())["reader.answer"]["signature"]["instructions"]
    results = json.loads((out / "results.json").read_text())
    assert list(results["systems"]) == ["base", "prompts only", "weights only", "both"]
    assert set(results["gains"]) == {"prompts only", "weights only", "both"}
    assert results["gains"]["both"] == results["comparisons"]["locomo_f1"]
    programs = {name: system["run"]["system"]["program"] for name, system in results["systems"].items()}
    assert programs["base"] == programs["weights only"] != programs["prompts only"] == programs["both"]
    assert "weights only: the weights that were trained under the program's prompts" in said
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{(out.parent / 'mlflow.db').as_posix()}")
    (experiment,) = [e for e in client.search_experiments() if e.name == "memory-program"]
    (tracked,) = client.search_runs([experiment.experiment_id])
    assert {"test/prompts_only/locomo_f1", "test/both/locomo_f1"} <= set(tracked.data.metrics)


@pytest.mark.slow
def test_both_parts_are_trained_in_turn_and_compared_alone(talks, tmp_path):
    out = tmp_path / "train"
    said = run_training(
        [
            "--dataset", str(talks), "--target", "both", "--num-train-steps", "1", "--group-size", "4",
            "--examples-per-step", "2", "--output-dir", str(out), "--no-mlflow",
        ]
    )  # fmt: skip
    assert f"the reader is trained from pocket-base; local:{out / 'model'} writes" in said
    results = json.loads((out / "results.json").read_text())
    assert list(results["systems"]) == ["base", "writer only", "reader only", "both"]
    assert set(results["trainings"]) == {"writer", "reader"}
    models = {name: system["run"]["system"] for name, system in results["systems"].items()}
    assert models["writer only"]["writer"] == models["both"]["writer"] == f"local:{out / 'model'}"
    assert models["reader only"]["reader"] == models["both"]["reader"] == f"local:{out / 'model' / 'reader'}"
    assert models["reader only"]["writer"] == models["base"]["writer"] == "pocket-base"
    assert (out / "plots" / "reader-reward.png").is_file()
