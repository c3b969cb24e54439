"""Models written as GGUF files: read back, they have the same prompts and the same replies."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from dspy import lm15

from memory_program.configs.sft_config import ExportConfig
from memory_program.core.errors import ConfigError, ModelError
from memory_program.evaluation.seen_data import SFT_CONVERSATIONS_FILE, read_sft_conversations
from memory_program.inference.engine import LocalEngine, LocalSettings
from memory_program.inference.loading import load_model, read_network_shape, stacked_adapters
from memory_program.models.model_names import model_program
from memory_program.sft.sft_commands import export_to_format
from tests.tiny_model import save_tiny_model

pytest.importorskip("gguf")


def reply(source: Path) -> tuple[list[int], list[int]]:
    """The tokens of a prompt, and of the greedy reply to it."""
    engine = LocalEngine(LocalSettings(source=str(source), dtype="bfloat16", device="cpu"))
    request = lm15.Request(
        model="m",
        messages=(lm15.Message.user("Nate adopted 17 turtles in May 2023, and named one Pebble."),),
        config=lm15.Config(temperature=0.0, max_tokens=30),
    )
    written = engine.complete(request).logprobs or ()
    prompt = engine.prompt_tokens(request)
    engine.close()
    return prompt, [token.token_id or 0 for token in written]


@pytest.mark.parametrize(
    ("architecture", "settings"), [("llama", {}), ("qwen2", {}), ("llama", {"tie_word_embeddings": True})]
)
def test_a_model_that_is_exported_as_gguf_gives_the_same_greedy_replies(tmp_path, architecture, settings):
    model = save_tiny_model(tmp_path / "model", architecture, **settings)
    export_to_format(ExportConfig(format="gguf", model=model, output_dir=tmp_path / "export"))
    assert reply(tmp_path / "export/gguf/model.gguf") == reply(model)


def test_a_gguf_file_beside_an_adapter_is_not_taken_for_it(tmp_path):
    base = save_tiny_model(tmp_path / "base")
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(base)}))
    for read in (
        stacked_adapters,
        read_network_shape,
        lambda source: load_model(source, "cpu", torch.float32),
    ):
        with pytest.raises(ModelError, match=r"model.gguf' lies beside an adapter_config.json"):
            read(str(file))


def test_a_model_with_several_chat_templates_is_exported_with_its_default_one(tmp_path):
    model = save_tiny_model(tmp_path / "model")
    (model / "additional_chat_templates").mkdir()
    shutil.copy(model / "chat_template.jinja", model / "additional_chat_templates" / "tool_use.jinja")
    export_to_format(ExportConfig(format="gguf", model=model, output_dir=tmp_path))
    assert reply(tmp_path / "gguf" / "model.gguf") == reply(model)


@pytest.mark.parametrize("kind", ["gguf", "hf"])
def test_an_exported_model_is_asked_under_the_prompts_that_it_was_trained_in(tmp_path, kind):
    taught, other = (save_tiny_model(tmp_path / name) for name in ("taught", "other"))
    (taught / "program.json").write_text("{}")
    exported = tmp_path / "export" / kind
    source = exported / "model.gguf" if kind == "gguf" else exported
    for model, program in ((taught, exported / "program.json"), (other, None)):
        export_to_format(ExportConfig(format=kind, model=model, output_dir=tmp_path / "export"))
        assert model_program(f"local:{source}") == program


@pytest.mark.parametrize("kind", ["gguf", "hf"])
def test_an_exported_model_says_which_conversations_taught_it(tmp_path, kind):
    model = save_tiny_model(tmp_path / "taught")
    (model / SFT_CONVERSATIONS_FILE).write_text('{"conversations": ["conv-1@ab"]}')
    export_to_format(ExportConfig(format=kind, model=model, output_dir=tmp_path / "export"))
    source = tmp_path / "export" / kind / ("model.gguf" if kind == "gguf" else "")
    assert read_sft_conversations(f"local:{source}") == ["conv-1@ab"]


def test_a_model_is_not_exported_over_itself(tmp_path):
    model = save_tiny_model(tmp_path / "hf")
    (model / "program.json").write_text("{}")
    with pytest.raises(ConfigError, match="hf' is the model to export, and would be written over"):
        export_to_format(ExportConfig(format="hf", model=model, output_dir=tmp_path))
    assert (model / "program.json").is_file()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"by": "question"}, "--by only applies to --format verl (got --format llamafactory)"),
        ({"model": "runs/mine"}, "--model only applies to --format hf or gguf (got --format llamafactory)"),
    ],
)
def test_a_setting_of_another_format_is_refused(given, message):
    with pytest.raises(ConfigError) as caught:
        ExportConfig(**given)
    assert message in str(caught.value)


def test_another_architecture_is_refused_with_the_way_out(tmp_path):
    model = save_tiny_model(tmp_path / "model", "qwen3")
    with pytest.raises(
        ModelError, match=r"'qwen3' cannot be written .* llama, qwen2, .*convert_hf_to_gguf.py"
    ):
        export_to_format(ExportConfig(format="gguf", model=model, output_dir=tmp_path))


def test_a_training_in_verl_is_not_exported_in_a_format_that_nobody_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="format='gguf' cannot be used with --from-verl"):
        ExportConfig(format="gguf", from_verl=tmp_path)


@pytest.mark.parametrize(
    ("architecture", "settings", "complaint"),
    [
        (
            "llama",
            {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0,
                                 "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                 "original_max_position_embeddings": 256}},
            "rope_type='llama3'",
        ),
        (
            "qwen2",
            {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0,
                                 "original_max_position_embeddings": 128}},
            "rope_type='yarn'",
        ),
        ("llama", {"attention_bias": True}, "attention_bias=True"),
    ],
)  # fmt: skip
def test_positions_and_biases_that_would_be_lost_are_refused(tmp_path, architecture, settings, complaint):
    model = save_tiny_model(tmp_path / "model", architecture, **settings)
    with pytest.raises(ModelError, match=f"{complaint} cannot be written .*convert_hf_to_gguf.py"):
        export_to_format(ExportConfig(format="gguf", model=model, output_dir=tmp_path / "export"))
    assert not list((tmp_path / "export").rglob("*.gguf"))
