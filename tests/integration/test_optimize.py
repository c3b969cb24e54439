"""Every optimiser on every part, over real HTTP, with the model of ``tests/optimization_samples.py``."""

import json
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import dspy
import pytest
from rich.console import Console

from memory_program.agents.systems import make_system
from memory_program.configs.evaluate_config import EvaluateConfig
from memory_program.configs.groups import SystemSettings
from memory_program.configs.optimize_config import Target
from memory_program.core.errors import ConfigError, RunInUseError
from memory_program.core.json_files import Json, read_json_file, write_json
from memory_program.core.run_folder import lock_run_folder
from memory_program.evaluation.evaluation_run import evaluate
from memory_program.evaluation.seen_data import read_optimization_data
from memory_program.models.reply_settings import ReplyFormat
from memory_program.optimization.call_journal import ReplyCache
from memory_program.optimization.memory_target import MemoryOptimizationTarget
from memory_program.optimization.optimization_run import optimize
from tests.model_server import ModelServer
from tests.optimization_samples import (
    BAD_ADVICE,
    READER_CURE,
    WRITER_CURE,
    Steerable,
    held_out,
    held_out_f1,
    impatient,
    quick,
    run,
    write_conversations,
)

pytestmark = pytest.mark.usefixtures("plots_are_not_drawn")

TRIALS = {"simba": 2, "mipro": 5, "gepa": 3, "bootstrap": 2}
CURES = {"reader": READER_CURE, "writer": WRITER_CURE}


def is_cured(prompts: Json, cure: str) -> bool:
    """True if a prompt has the cure, or demos."""
    return any(cure in prompt["instructions"] or prompt["demos"] for prompt in prompts.values())


def asked_about(model: Steerable, codes: set[str]) -> set[str]:
    """The codes of a set that were ever sent to the model."""
    sent = " ".join(f"{prompt.system} {prompt.user} {prompt.shown}" for prompt in model.asked)
    return {code for code in codes if code in sent}


@pytest.mark.parametrize("target", ["reader", "writer"])
@pytest.mark.parametrize("optimizer", TRIALS)
def test_each_optimiser_finds_a_better_prompt_that_gains_on_the_test_split(
    optimizer: str, target: str, tmp_path: Path
) -> None:
    model = Steerable([target])
    config = quick(tmp_path, optimizer=optimizer, target=target, trials=TRIALS[optimizer])
    with ModelServer(reply=model) as server:
        results, output = run(config, server)
        untouched = {str(q.answer) for conversation in held_out(config) for q in conversation.questions}
        assert len(untouched) == 12
        assert not asked_about(model, untouched)
        before = held_out_f1(config, server)
        after = held_out_f1(config, server, config.output)
    (stage,) = results["stages"]
    assert not stage["winner"]["is_baseline"]
    winner = next(c for c in stage["candidates"] if c["number"] == stage["winner"]["number"])
    assert is_cured(winner["prompts"], CURES[target])
    assert stage["comparison"]["difference"] > 0
    assert stage["comparison"]["low"] >= 0
    assert stage["winner"]["score"]["value"] == 1.0
    assert after == 1.0 > before + 0.2
    assert f"{target}: {stage['baseline']['score']['value']:.3f} -> 1.000 on validation, +" in output
    assert stage["winner"]["signature"] in output


def test_the_reader_is_improved_before_the_writer_and_both_are_saved(tmp_path: Path) -> None:
    config = quick(tmp_path, optimizer="simba", target="both", trials=2, writer_mode="specialists")
    with ModelServer(reply=Steerable()) as server:
        results, _ = run(config, server)
        gain = held_out_f1(config, server, config.output)
        gain -= held_out_f1(config, server)
    assert [stage["target"] for stage in results["stages"]] == ["reader", "writer"]
    assert gain > 0.4
    saved, fresh = json.loads(config.output.read_text()), make_system("memory", SystemSettings()).dump_state()
    changed = {name.partition(".")[0] for name in fresh if saved[name] != fresh[name]}
    assert changed == {"reader", "writer"}
    reader, writer = (signature_parts(stage["winner"]["signature"]) for stage in results["stages"])
    assert writer["other_prompts"] == reader["prompts"]
    assert reader["other_prompts"] not in {writer["prompts"], reader["prompts"]}  # the writer's, before


def signature_parts(signature: str) -> dict[str, str]:
    """The parts of a signature by their names."""
    return dict(part.split(":", 1) for part in signature.split("|")[1:])


def test_a_signature_has_the_reply_format_that_an_endpoint_was_given(tmp_path: Path) -> None:
    subject = MemoryOptimizationTarget(quick(tmp_path))
    assert "reply_format" not in subject.fixed_settings(Target.READER)
    subject.choose_reply_formats(lambda part, model: ReplyFormat.JSON)
    assert subject.fixed_settings(Target.READER)["reply_format"] == "json"


def test_where_nothing_is_better_the_baseline_is_saved_and_reported(tmp_path: Path) -> None:
    config = quick(tmp_path, optimizer="gepa", trials=2)
    with ModelServer(reply=Steerable([])) as server:
        results, output = run(config, server)
    (stage,) = results["stages"]
    assert stage["winner"]["is_baseline"]
    assert "the baseline stays" in output
    fresh, loaded = (make_system("memory", config.system) for _ in range(2))
    loaded.load(str(config.output))
    assert loaded.dump_state() == fresh.dump_state()


def test_every_set_of_demonstrations_of_bootstrap_is_compared(tmp_path: Path) -> None:
    config = quick(tmp_path, optimizer="bootstrap", trials=8, max_demos=2, num_val=2)
    with ModelServer(reply=Steerable(["reader"])) as server:
        results, _ = run(config, server)
    candidates = results["stages"][0]["candidates"]
    assert len(candidates) > 5
    assert not [c["number"] for c in candidates if c["val"] is None]


def test_each_round_reserves_the_calls_of_its_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserved, reserve_calls = list[int](), ReplyCache.reserve_calls

    def reserve(calls: ReplyCache, count: int) -> AbstractContextManager[None]:
        reserved.append(count)
        return reserve_calls(calls, count)

    monkeypatch.setattr(ReplyCache, "reserve_calls", reserve)
    config = quick(tmp_path, optimizer="bootstrap", rounds=2, trials=3, num_examples=2, num_val=2)
    with ModelServer(reply=Steerable([])) as server:
        run(config, server)
    assert reserved == [6, 6]  # three sets of demonstrations on two questions


def test_bad_advice_never_wins(tmp_path: Path) -> None:
    def advises_badly(prompt: Any, seen: int) -> str:
        return str(Steerable(["reader"])(prompt, seen)).replace(READER_CURE, BAD_ADVICE[0])

    config = quick(tmp_path, optimizer="mipro", max_demos=0, trials=3)
    with ModelServer(reply=advises_badly) as server:
        results, output = run(config, server)
    assert results["stages"][0]["winner"]["is_baseline"]
    assert "nothing beats the baseline, 0.675 on validation; the best candidate has +0.000" in output


def test_the_saved_file_lists_data_models_and_settings_and_no_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    config = quick(tmp_path, optimizer="bootstrap", trials=1, answer_metric="mix", judge_model="openai/judge")
    with ModelServer(reply=Steerable(["reader"])) as server:
        results, _ = run(config, server)
        assert server.traffic.keys == {"sk-secret"}
        models = {body["model"] for body in server.traffic.bodies}
    assert models == {"task", "judge"}  # bootstrap writes no instructions
    content = config.output.read_text()
    assert "sk-secret" not in content
    assert str(tmp_path) not in content
    told = json.loads(content)["metadata"]["optimization"]
    assert told["models"] == {"task": "openai/task", "prompts": "openai/prompts", "judge": "openai/judge"}
    assert told["dataset"]["sha256"] == results["dataset"]["sha256"]
    assert told["dataset"]["test"] == ["codes-7", "codes-8"]
    assert (told["settings"]["optimizer"], told["settings"]["trials"]) == ("bootstrap", 1)
    signature = told["stages"][0]["winner"]["signature"]
    assert signature.startswith("mean(locomo_f1,judge)|cat:1-5|n:8|judge:openai/judge/strict|data:")
    assert (
        "|split:val|max_sessions:2|examples:questions|model:openai/task|temperature:0|prompts:" in signature
    )


def test_a_program_that_is_optimised_further_still_tells_its_earlier_data(tmp_path: Path) -> None:
    program = tmp_path / "program.json"
    make_system("memory", SystemSettings(writer_mode="generalist")).save(str(program))
    state = read_json_file(program)
    state["metadata"]["optimization"] = {"dataset": {"sha256": "earlier", "train": ["a"], "val": ["b"]}}
    write_json(program, state)
    config = quick(tmp_path, optimizer="bootstrap", trials=1, program=program)
    with ModelServer(reply=Steerable(["reader"])) as server:
        results, _ = run(config, server)
    own = results["dataset"]
    assert (own["train"], own["val"]) == ([f"codes-{n}" for n in range(1, 5)], ["codes-5", "codes-6"])
    for sha256, conversations in (("earlier", ("a", "b")), (own["sha256"], (*own["train"], *own["val"]))):
        data = read_optimization_data(config.output_file, sha256)
        assert data is not None
        assert data.conversations == conversations


def test_one_folder_is_for_one_process(tmp_path: Path) -> None:
    config = quick(tmp_path)
    with (
        lock_run_folder(config.output_dir),
        pytest.raises(RunInUseError, match="another process is working in"),
    ):
        optimize(config)


def write_noted_conversations(path: Path) -> Path:
    """Conversations with a note on each turn."""
    talks = json.loads(write_conversations(path).read_text())
    for talk in talks:
        for number in (1, 2, 3):
            notes = {turn["speaker"]: [] for turn in talk["conversation"][f"session_{number}"]}
            for turn in talk["conversation"][f"session_{number}"]:
                notes[turn["speaker"]].append([turn["text"], turn["dia_id"]])
            talk.setdefault("observation", {})[f"session_{number}_observation"] = notes
    path.write_text(json.dumps(talks))
    return path


def test_a_reader_is_optimised_and_evaluated_on_the_notes_of_locomo(tmp_path: Path) -> None:
    model = Steerable(["reader"])
    path = write_noted_conversations(tmp_path / "noted.json")
    config = quick(tmp_path, dataset=str(path), writer_model="observations")
    evaluation = EvaluateConfig(
        dataset=str(path),
        systems="memory,optimized",
        program=config.output,
        writer_model="observations",
        reader_model="openai/task",
        judge_model="none",
        writer_mode="generalist",
        output_dir=tmp_path / "evaluation",
        mlflow=False,
    )
    with ModelServer(reply=model) as server:
        results, _ = run(config, server)
        replaced = evaluation.replace(api_base=server.url)
        scored = evaluate(replaced, console=Console(quiet=True))
    assert not any("tool_calls" in prompt.wanted for prompt in model.asked)
    (stage,) = results["stages"]
    assert not stage["winner"]["is_baseline"]
    assert "|model:openai/task|writer:observations|" in stage["winner"]["signature"]
    assert scored is not None
    before, after = (scored["systems"][name]["locomo_f1"]["all"]["value"] for name in ("memory", "optimized"))
    assert after > before


def test_another_model_writes_the_memories_that_a_reader_is_optimised_on(tmp_path: Path) -> None:
    model, writer = Steerable(["reader"]), Steerable([])
    config = quick(tmp_path, writer_model="openai/writer", max_demos=0)
    with ModelServer(reply=model) as server, ModelServer(reply=writer) as writes:
        task, written = impatient(server.url), impatient(writes.url)

        def make(name: str, temperature: float) -> dspy.LM:
            return (written if name == "openai/writer" else task)(name, temperature)

        run(config, make)
    assert {field for prompt in writer.asked for field in prompt.wanted} == {"tool_calls"}
    assert not any("tool_calls" in prompt.wanted for prompt in model.asked)


def test_notes_that_are_not_there_are_an_error_before_any_call(tmp_path: Path) -> None:
    config = quick(tmp_path, writer_model="observations")
    with ModelServer(reply=Steerable()) as server:
        with pytest.raises(ConfigError, match="needs LoCoMo's own notes"):
            run(config, server)
        assert not server.traffic.requests


def test_a_split_of_one_conversation_is_named_in_the_singular(tmp_path: Path) -> None:
    path = write_conversations(tmp_path / "talks.json", count=3)
    with ModelServer(reply=Steerable(["reader"])) as server:
        _, output = run(quick(tmp_path, dataset=str(path)), server)
    assert "talks: 1 conversation for training, 1 for validation, 1 left for the test" in output
