"""An expert's trajectories, what other trainers are given of them, and a model that learns them."""

import io
import json
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import dspy
import pyarrow.parquet as pq
import pytest
import torch
from dspy import lm15
from rich.console import Console

from locomo.locomo import read_dataset
from memory_program.agents.program import MemoryProgram
from memory_program.agents.writer import MemoryWriter
from memory_program.cli import run_train
from memory_program.configs.sft_config import (
    ExportConfig,
    FineTuneConfig,
    SynthesizeConfig,
    TrajectoriesConfig,
)
from memory_program.configs.train_config import TrainConfig
from memory_program.configs.trainer_groups import ReinforceSettings
from memory_program.core.checkpoints import read_log
from memory_program.core.errors import ConfigError, RecordError, RunFailedError
from memory_program.core.mlflow_address import import_mlflow
from memory_program.inference.loading import load_model
from memory_program.models.factory import language_model
from memory_program.rl.episode_json import episode_from_json
from memory_program.rl.rewards import RewardRule, build_answer_metric
from memory_program.rl.training_data import check_not_taught
from memory_program.rl.training_run import train
from memory_program.serving.reply_rewards import ReplyRewarder
from memory_program.sft.exports import write_llamafactory, write_verl
from memory_program.sft.program_examples import writer_examples
from memory_program.sft.session_lines import session_file
from memory_program.sft.sft_commands import (
    collect_trajectories,
    export_to_format,
    fine_tune_parts,
    synthesize_questions,
)
from memory_program.sft.sft_training import sft_examples, split_by_conversation
from memory_program.sft.trajectories import read_trajectories, record_trajectories
from memory_program.tracking import EXPERIMENT
from memory_program.worlds import as_locomo_json
from tests.competent_model import Prompt, chat_format
from tests.conversations import session
from tests.model_server import ModelServer
from tests.training_samples import (
    REPLIES,
    reader_by_rules,
    reply,
    request,
    said,
    talk,
)

pytestmark = pytest.mark.usefixtures("torch_on_one_thread")
QUIET = Console(quiet=True)
SEARCH = said("search_memory", query="walks")
SYSTEMS = {request(agent).system: agent for agent in REPLIES}


class Expert:
    """An engine that remembers all that the sample session says, but for calls that are to fail."""

    def __init__(self, failing: int = 0) -> None:
        self.calls, self.failing = 0, failing

    def __deepcopy__(self, memo: object) -> "Expert":
        return self

    def complete(self, request: lm15.Request) -> lm15.Response:
        self.calls += 1
        if self.calls <= self.failing:
            raise lm15.ServerError("down")
        text = reply(SYSTEMS[request.system], remembers=True)
        return lm15.Response(
            id=None, model=request.model, message=lm15.Message.assistant(text), finish_reason="stop",
            usage=lm15.Usage(input_tokens=1, output_tokens=1),
        )  # fmt: skip


def expert(engine: Expert, model: str = "test/expert") -> MemoryProgram:
    program = MemoryProgram(MemoryWriter(checks_grounding=False))  # one of the memories is made up
    program.writer.set_lm(dspy.LM(model, engine=engine, cache=False, num_retries=0))
    return program


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("taught")
    record_trajectories(expert(Expert()), [talk(name) for name in "abc"], folder, threads=2)
    return folder


def test_a_trajectory_has_what_was_asked_replied_and_done(taught):
    lines = read_trajectories(taught)
    assert [line["episode"]["conversation_id"] for line in lines] == ["a", "b", "c"]
    first = lines[0]
    assert [call["agent"] for call in first["calls"]] == list(REPLIES)
    assert first["model"] == "test/expert"
    assert [made["text"] for o in first["operations"] for made in o["created"]] == [
        "Mara moved to Oslo.", "Tom adopted a puppy called Rex.", "Nobody said how.",
    ]  # fmt: skip
    assert len(first["episode"]["questions"]) == 2


def test_a_run_that_was_stopped_goes_on_where_it_was(tmp_path):
    talks = [talk("a"), talk("b")]
    failing = Expert(failing=4)
    found = record_trajectories(expert(failing), talks, tmp_path, threads=1)
    assert [(c.sessions, c.failure is None) for c in found] == [(0, False), (1, True)]
    (tmp_path / "b.jsonl").open("a").write('{"half a line')
    again = Expert()
    assert [c.sessions for c in record_trajectories(expert(again), talks, tmp_path, threads=1)] == [1, 1]
    assert again.calls == 4  # those of the conversation that was not done
    assert len(read_trajectories(tmp_path)) == 2


def test_what_has_a_file_is_skipped_if_one_wants(taught):
    untouched = Expert()
    assert record_trajectories(expert(untouched), [talk("a")], taught, threads=1, skip_existing=True) == []
    assert untouched.calls == 0
    with pytest.raises(RecordError, match="holds what 'test/expert' did, and not 'test/other'"):
        record_trajectories(
            expert(untouched, "test/other"), [talk("a")], taught, threads=1, skip_existing=True
        )


def test_another_text_or_another_expert_is_not_taken_for_what_is_done(taught):
    untouched = Expert()
    moved = replace(talk("a"), sessions=(session(1, "Mara: I moved to Rome.", "Tom: I adopted a puppy."),))
    with pytest.raises(RecordError, match="holds sessions of other data: name another folder"):
        record_trajectories(expert(untouched), [moved], taught, threads=1)
    with pytest.raises(RecordError, match="holds what 'test/expert' did, and not 'test/other': name another"):
        record_trajectories(expert(untouched, "test/other"), [talk("a")], taught, threads=1)
    told_otherwise = expert(untouched)
    for _, predictor in told_otherwise.writer.named_predictors():
        predictor.signature = predictor.signature.with_instructions("Write down all that is said.")
    with pytest.raises(RecordError, match="holds what other prompts led to: name another folder"):
        record_trajectories(told_otherwise, [talk("a")], taught, threads=1)
    assert untouched.calls == 0


def test_the_oracle_teaches_what_is_made_up(tmp_path):
    config = TrajectoriesConfig(num_train=3, output_dir=tmp_path / "oracle")
    collect_trajectories(config, QUIET)
    lines = read_trajectories(config.output_dir)
    assert len({line["episode"]["conversation_id"] for line in lines}) == 1
    assert len(lines) >= 8
    assert all(call["is_valid"] for line in lines for call in line["calls"])
    assert sum(bool(line["operations"]) for line in lines) > 4
    for before, after in pairwise(lines):
        assert after["episode"]["operations"] == before["episode"]["operations"] + before["operations"]
    assert json.loads((config.output_dir / "program.json").read_text()).keys() > {"writer.core"}


def test_conversations_of_earlier_commands_in_the_folder_are_told(tmp_path):
    for seed in (0, 3):
        console = Console(file=io.StringIO(), width=120)
        config = TrajectoriesConfig(num_train=3, seed=seed, output_dir=tmp_path / "oracle")
        collect_trajectories(config, console)
    assert (
        "and 1 conversations of earlier commands, which sft and export take, too" in console.file.getvalue()
    )


def test_no_trajectories_are_an_error(tmp_path):
    with pytest.raises(RecordError, match="holds no trajectories: run --mode trajectories first"):
        read_trajectories(tmp_path)


@pytest.mark.parametrize(
    ("line", "missing"),
    [('{"session": {}, "questions": []}', "episode, calls, operations"), ("[]", "episode")],
)
def test_a_file_of_another_command_is_not_taken_for_trajectories(tmp_path, line, missing):
    (tmp_path / "a.jsonl").write_text(f"{line}\n")
    with pytest.raises(RecordError, match=f"a.jsonl' holds a line without {missing}.*: name another folder"):
        read_trajectories(tmp_path)
    with pytest.raises(RecordError, match=f"a.jsonl' holds a line without {missing}"):
        record_trajectories(expert(Expert()), [talk("a")], tmp_path, threads=1)


def test_an_experts_faults_are_not_taught(taught):
    lines = read_trajectories(taught)
    lines[0]["calls"][1]["is_valid"] = False
    examples = sft_examples(lines[:1])
    assert len(examples) == 3
    assert [message["role"] for message in examples[0]["messages"]] == ["system", "user", "assistant"]
    assert examples[0]["messages"][2]["content"] == reply("core", remembers=True)


def test_examples_are_held_out_by_conversation(taught):
    lines = read_trajectories(taught)
    lessons = split_by_conversation(lines, 0.34, seed=0)
    assert (len(lessons.train), len(lessons.val)) == (8, 4)
    assert len(split_by_conversation(lines, 0.99, seed=0).train) == 4, "one is left to learn from"
    with pytest.raises(ConfigError, match="1 conversations of trajectories"):
        split_by_conversation(lines[:1], 0.5, seed=0)


def test_llamafactory_finds_its_dataset_by_name_with_the_columns_that_it_reads(taught, tmp_path):
    export_to_format(ExportConfig(trajectories=taught, output_dir=tmp_path), QUIET)
    folder = tmp_path / "llamafactory"
    (entry,) = json.loads((folder / "dataset_info.json").read_text()).values()
    rows = json.loads((folder / entry["file_name"]).read_text())
    assert entry["formatting"] == "sharegpt"
    assert len(rows) == 12
    for row in rows:
        said = row[entry["columns"]["messages"]]
        assert [turn["from"] for turn in said] == ["human", "gpt"]
        assert row[entry["columns"]["system"]] in SYSTEMS
    assert rows[0]["conversations"][1]["value"] == reply("core", remembers=True)


def test_demonstrations_are_turns_of_their_own_for_llamafactory(taught, tmp_path):
    (line, *_) = read_trajectories(taught)
    call = next(call for call in line["calls"] if call["is_valid"])
    system, asked = call["messages"]
    shown = [{"role": "user", "content": "a demo"}, {"role": "assistant", "content": "its reply"}]
    path, _ = write_llamafactory([{"calls": [{**call, "messages": [system, *shown, asked]}]}], tmp_path)
    (row,) = json.loads(path.read_text())
    assert [turn["from"] for turn in row["conversations"]] == ["human", "gpt", "human", "gpt"]
    assert row["conversations"][2]["value"] == asked["content"]


@pytest.mark.parametrize("name", ["a/b", "x" * 300])
def test_an_id_that_is_no_file_name_has_a_file_of_its_own(tmp_path, name):
    path = session_file(tmp_path, name)
    path.touch()
    assert session_file(tmp_path, name) == path
    assert session_file(tmp_path, name.replace("/", "_")) != path or "/" not in name
    assert session_file(tmp_path, "conv-26").name == "conv-26.jsonl"


def test_a_row_of_verl_can_be_rolled_out_and_rewarded(taught, tmp_path):
    rewarder = ReplyRewarder(reader_by_rules(), build_answer_metric("f1"), RewardRule("dense"))
    for by, count, worth in (("session", 12, 0.5), ("question", 24, 1.0)):
        export_to_format(ExportConfig(format="verl", by=by, trajectories=taught, output_dir=tmp_path), QUIET)
        rows = pq.read_table(tmp_path / "verl" / f"by_{by}.parquet").to_pylist()
        assert len(rows) == count
        row = rows[1]
        assert [message["role"] for message in row["prompt"]] == ["system", "user"]
        extra = row["extra_info"]
        assert (extra["index"], extra["agent"]) == (1, "episodic")
        sent = json.loads(extra["episode"])
        assert sent["expert_tokens"] == {"episodic": 6, "semantic": 7, "procedural": 4}
        episode = episode_from_json(sent)
        assert rewarder.reward(episode, "episodic", reply("episodic", remembers=True)).reward == worth
    namespaces = {row["extra_info"]["namespace"] for row in rows}
    assert len(namespaces) == 6
    assert all(name[:5] in ("a-qa0", "a-qa1", "b-qa0", "b-qa1", "c-qa0", "c-qa1") for name in namespaces)


def test_an_agent_with_several_turns_has_a_row_of_verl_for_its_last(taught, tmp_path):
    lines = read_trajectories(taught)
    calls = lines[1]["calls"]
    place = [call["agent"] for call in calls].index("episodic")
    wrote = calls[place]
    shown = [*wrote["messages"][:-1], {"role": "user", "content": "search_memory: (none)"}]
    calls[place : place + 1] = [{**wrote, "reply": SEARCH}, {**wrote, "messages": shown}]
    assert write_verl(lines, tmp_path / "rows.parquet") == 12
    rows = pq.read_table(tmp_path / "rows.parquet").to_pylist()
    of_agent = [row for row in rows if row["extra_info"]["agent"] == "episodic"]
    earlier = [json.loads(row["extra_info"]["earlier"]) for row in of_agent]
    assert (earlier, of_agent[1]["prompt"]) == ([[], [SEARCH], []], shown)
    rewarder = ReplyRewarder(reader_by_rules(), build_answer_metric("f1"), RewardRule("dense"))
    episode = episode_from_json(json.loads(of_agent[1]["extra_info"]["episode"]))
    assert rewarder.reward(episode, "episodic", wrote["reply"], earlier=earlier[1]).reward == 0.5


@pytest.mark.parametrize(
    ("named", "file", "backend"),
    [
        ("", "global_step_20/actor/model_world_size_2_rank_0.pt", "fsdp"),
        ("global_step_9", "global_step_9/actor/model_world_size_2_rank_0.pt", "fsdp"),
        ("global_step_9/actor", "global_step_9/actor/dist_ckpt/x", "megatron"),
    ],
)
def test_shards_of_verl_are_refused_with_the_command_that_merges_them(tmp_path, capsys, named, file, backend):
    for path in (file, "global_step_9/actor/huggingface/config.json"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    assert run_train(["--mode", "export", "--from-verl", str(tmp_path / named)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    actor = tmp_path / file.partition("/actor/")[0] / "actor"
    assert f"python -m verl.model_merger merge --backend {backend} --local_dir {actor} --target_dir" in line


@pytest.mark.parametrize(
    ("file", "error"), [("lora_adapter/x", "merge them with PEFT"), ("notes", "holds no checkpoint of verl")]
)
def test_what_verl_did_not_merge_whole_is_refused(tmp_path, capsys, file, error):
    for path in (file, "model.safetensors"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    assert run_train(["--mode", "export", "--from-verl", str(tmp_path)]) == 2
    assert error in capsys.readouterr().err


def test_a_model_that_verl_merged_becomes_a_model_with_its_program(model, taught, tmp_path):
    shutil.copytree(model, tmp_path / "global_step_3" / "actor" / "huggingface")
    (taught / "program.json").write_text("{}")
    export_to_format(ExportConfig(from_verl=tmp_path, trajectories=taught, output_dir=tmp_path), QUIET)
    assert load_model(str(tmp_path / "hf"), "cpu", torch.float32).network.dtype == torch.float32
    assert (tmp_path / "hf" / "program.json").read_text() == "{}"
    (taught / "program.json").unlink()


@pytest.fixture(scope="module")
def model(half_taught: Path) -> Path:
    return half_taught


def test_fine_tuning_teaches_the_experts_replies(model, taught, tmp_path):
    settings = {
        "model": f"local:{model}", "trajectories": taught, "output_dir": tmp_path / "sft", "batch": 4,
        "learning_rate": 2e-3, "warmup_steps": 0, "held_out": 0.34,
    }  # fmt: skip
    fine_tune_parts(FineTuneConfig(**settings, epochs=6), QUIET)
    with pytest.raises(ConfigError, match="holds a training with epochs=6"):
        fine_tune_parts(FineTuneConfig(**settings, epochs=1), QUIET)
    losses = [e["loss"] for e in read_log(tmp_path / "sft") if e["kind"] == "validation"]
    client = import_mlflow().MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
    (tracked,) = client.search_runs([client.get_experiment_by_name(EXPERIMENT).experiment_id])
    assert (tracked.info.status, tracked.data.tags["mlflow.source.name"]) == (
        "FINISHED",
        "train.py --mode sft",
    )
    curve = client.get_metric_history(tracked.info.run_id, "validation/loss")
    assert [point.value for point in curve] == losses
    assert tracked.data.metrics["best_loss"] == min(losses)
    assert tracked.data.params["epochs"] == "6"
    assert [used.dataset.name for used in tracked.inputs.dataset_inputs] == [taught.name]
    assert len(losses) == 7
    assert min(losses) < 0.3 * losses[0]
    talks = [talk(name) for name in "abcd"]
    check_not_taught(f"local:{model}", talks)
    for shared in talks[:3]:
        with pytest.raises(ConfigError, match=f"'{shared.conversation_id}' taught .* by --mode sft"):
            check_not_taught(f"local:{tmp_path / 'sft' / 'model'}", [talks[3], shared])
    lm = language_model(f"local:{tmp_path / 'sft' / 'model'}")
    greedy = lm15.Config(temperature=0.0, max_tokens=40)
    said = lm(replace(request("semantic"), model=lm.model, config=greedy))
    assert said.text == reply("semantic", remembers=True)
    lm.engine.local.close()


@pytest.mark.parametrize(
    "name", ["loss_type", "beta", "ema_decay", "temperature", "max_completion_tokens", "iterations"]
)
def test_what_only_rewards_need_is_no_setting_of_fine_tuning(name):
    with pytest.raises(ConfigError, match=f"unknown setting '{name}'"):
        FineTuneConfig(**{name: getattr(ReinforceSettings(), name)})


def test_a_model_is_exported_in_half_precision(model, tmp_path):
    export_to_format(ExportConfig(format="hf", model=model, output_dir=tmp_path), QUIET)
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert config["dtype"] == "bfloat16"
    assert (tmp_path / "hf" / "tokenizer.json").is_file()


def test_lost_calls_are_told_and_what_is_done_is_kept(tmp_path):
    path = tmp_path / "talks.json"
    path.write_text(json.dumps(as_locomo_json([talk(name) for name in "abcd"])), encoding="utf-8")
    failing = dspy.LM("test/expert", engine=Expert(failing=1), cache=False, num_retries=0)
    config = TrajectoriesConfig(
        model="test/expert", dataset=str(path), output_dir=tmp_path / "out", num_threads=1, split="train"
    )
    with pytest.raises(RunFailedError, match="1 conversations are not finished"):
        collect_trajectories(config, QUIET, expert=failing)
    collect_trajectories(config, QUIET, expert=failing)
    assert len(read_trajectories(config.output_dir)) == 2


def test_an_expert_behind_a_server_gets_the_settings_of_its_replies(tmp_path):
    path = tmp_path / "talks.json"
    path.write_text(json.dumps(as_locomo_json([talk(name) for name in "abcd"])), encoding="utf-8")
    with ModelServer() as server:
        config = TrajectoriesConfig(
            model="openai/Qwen/Qwen3-8B",
            api_base=server.url,
            dataset=str(path),
            output_dir=tmp_path / "out",
            split="train",
            chat_template_kwargs='{"enable_thinking": false}',
            max_reply_tokens=9000,
            max_completion_tokens=9000,
        )
        collect_trajectories(config, QUIET)
        _check, *calls = server.traffic.bodies
    assert calls
    assert all(body["chat_template_kwargs"] == {"enable_thinking": False} for body in calls)
    assert {body.get("max_tokens") or body["max_completion_tokens"] for body in calls} == {9000}


def talks_file(folder: Path) -> str:
    path = folder / "talks.json"
    path.write_text(json.dumps(as_locomo_json([talk(name) for name in "abcd"])), encoding="utf-8")
    return str(path)


def test_an_expert_is_called_as_in_an_evaluation(tmp_path):
    settings = {"dataset": talks_file(tmp_path), "output_dir": tmp_path / "out", "split": "train"}
    with ModelServer() as server:
        collect_trajectories(
            TrajectoriesConfig(
                model="openai/gpt-5-mini", api_base=server.url, reply_format="json", **settings
            ),
            QUIET,
        )
        _check, *calls = server.traffic.bodies
    assert calls
    assert all("json_schema" in body["response_format"] for body in calls)
    assert not any("temperature" in body or body.get("max_completion_tokens") == 4096 for body in calls)


def test_native_calls_cannot_be_recorded(tmp_path):
    config = TrajectoriesConfig(
        model="openai/test", dataset=talks_file(tmp_path), reply_format="tools", output_dir=tmp_path / "out"
    )
    with pytest.raises(ConfigError, match="reply_format=tools: trajectories record the text"):
        collect_trajectories(config, QUIET, expert=dspy.LM("test/expert", engine=Expert(), cache=False))


def test_prompts_over_the_memory_budget_are_taught_without_a_model(taught):
    program = MemoryProgram(MemoryWriter(memory_budget=1, checks_grounding=False))
    lines = read_trajectories(taught)
    assert writer_examples(program, lines) == sft_examples(lines)


def test_trajectories_of_several_prompts_are_not_taught_together(model, tmp_path):
    record_trajectories(expert(Expert()), [talk("a"), talk("b")], tmp_path, threads=1)
    path = session_file(tmp_path, "b")
    lines = [json.loads(line) | {"prompts": "others"} for line in path.read_text().splitlines()]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    config = FineTuneConfig(model=f"local:{model}", trajectories=tmp_path, output_dir=tmp_path / "sft")
    with pytest.raises(ConfigError, match="recorded with several sets of prompts"):
        fine_tune_parts(config, QUIET)


def test_lengths_of_other_conversations_than_those_of_the_training_are_refused(taught, tmp_path):
    config = TrainConfig(
        dataset=talks_file(tmp_path), split="train", reward_rule="dense",
        expert_trajectories=other_trajectories(tmp_path), output_dir=tmp_path / "run", dry_run=True,
    )  # fmt: skip
    with pytest.raises(ConfigError, match="has z, and none of the conversations to train on"):
        train(config, console=QUIET)


def other_trajectories(folder: Path) -> Path:
    record_trajectories(expert(Expert()), [talk("z")], folder / "others", threads=1)
    return folder / "others"


def strong(prompt: Prompt, seen: int) -> str:
    """Write one question about the session of ``talk``, and know its answer."""
    if "[[ ## questions ## ]]" in prompt.user:
        draft = {"question": "Which city did Mara move to?", "answer": "Oslo", "evidence": ["D1:1"]}
        return chat_format({"questions": json.dumps([draft])})
    return chat_format({"answer": "Oslo"})


def test_questions_are_synthesized_into_a_dataset(tmp_path):
    path = tmp_path / "own.json"
    path.write_text(json.dumps(as_locomo_json([talk(name) for name in "abcd"])), encoding="utf-8")
    console = Console(width=200)
    with ModelServer(reply=strong) as server, console.capture() as captured:
        config = SynthesizeConfig(
            model="openai/strong", api_base=server.url, dataset=str(path), output_dir=tmp_path / "questions"
        )
        synthesize_questions(config, console)
    written = read_dataset(tmp_path / "questions" / "conversations.json")
    assert [c.conversation_id for c in written.conversations] == ["a", "b", "c", "d"]
    assert {q.text for c in written.conversations for q in c.questions} == {"Which city did Mara move to?"}
    assert "4 questions of 4 conversations" in captured.get()
    assert "rejected: none" in captured.get()
