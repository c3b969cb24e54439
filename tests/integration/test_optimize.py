"""Every optimiser on every part, over real HTTP, with the model of ``tests/optimization_samples.py``."""

import json
from pathlib import Path
from typing import Any

import pytest

from memory_program.agents.systems import make_system
from memory_program.configs.groups import SystemSettings
from memory_program.core.errors import RunInUseError
from memory_program.core.json_files import Json
from memory_program.core.run_folder import lock_run_folder
from memory_program.optimization.optimization_run import optimize
from tests.model_server import ModelServer
from tests.optimization_samples import (
    BAD_ADVICE,
    READER_CURE,
    WRITER_CURE,
    Steerable,
    held_out,
    held_out_f1,
    quick,
    run,
)

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
    assert models == {"task", "judge", "prompts"}
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


def test_one_folder_is_for_one_process(tmp_path: Path) -> None:
    config = quick(tmp_path)
    with (
        lock_run_folder(config.output_dir),
        pytest.raises(RunInUseError, match="another process is working in"),
    ):
        optimize(config)
