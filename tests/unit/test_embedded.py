"""Models in this process: other weights under the same name are another model."""

from pathlib import Path

import pytest

from memory_program.configs.evaluate_config import EvaluateConfig
from memory_program.evaluation.scoring.score_signature import identify_judge
from memory_program.models.model_names import POCKET, POCKET_BASE, is_local, model_fingerprint, model_source
from tests.weights import write_model


def test_each_bundled_model_has_its_own_weights() -> None:
    for name in (POCKET, POCKET_BASE):
        assert (Path(model_source(name)) / "model.safetensors").is_file()
    assert model_fingerprint(POCKET).split("@")[1] != model_fingerprint(POCKET_BASE).split("@")[1]


@pytest.mark.parametrize("name", ["openai/gpt-4.1-mini", "local:owner/name", "local:"])
def test_a_model_outside_a_folder_has_its_name_as_fingerprint(name: str) -> None:
    assert model_fingerprint(name) == name


def test_a_remote_model_is_not_local() -> None:
    assert [is_local(name) for name in ("pocket", "local:x", "openai/pocket")] == [True, True, False]


def test_other_weights_or_another_tokenizer_change_the_fingerprint(tmp_path: Path) -> None:
    name = write_model(tmp_path / "model", b"first")
    first = model_fingerprint(name)
    assert model_fingerprint(name) == first
    write_model(tmp_path / "model", b"other")  # of the same size
    other = model_fingerprint(name)
    write_model(tmp_path / "model", b"other", b"[]")
    assert len({first, other, model_fingerprint(name)}) == 3
    write_model(tmp_path / "model", b"first")
    assert model_fingerprint(name) == first


def test_the_adapter_of_rounded_weights_counts_in_their_fingerprint(tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    fingerprints = set[str]()
    for config, weights in (("{}", b"one"), ('{"rounded_adapter": "adapter"}', b"one"), (None, b"another")):
        if config is not None:
            (tmp_path / "config.json").write_text(config)
        (adapter / "adapter_model.safetensors").write_bytes(weights)
        fingerprints.add(model_fingerprint(f"local:{tmp_path}"))
    assert len(fingerprints) == 3


def test_a_judges_fingerprint_has_its_weights(tmp_path: Path) -> None:
    name = write_model(tmp_path / "model", b"first")
    judge = identify_judge(EvaluateConfig(judge_model=name))
    assert judge is not None
    assert judge.name == model_fingerprint(name) != name
    write_model(tmp_path / "model", b"other")
    other = identify_judge(EvaluateConfig(judge_model=name))
    assert other is not None
    assert judge.name != other.name == model_fingerprint(name)
    assert not judge.is_same_judge(other, "lenient")


def test_the_fingerprint_of_a_gguf_file_is_that_of_the_file(tmp_path):
    file = tmp_path / "tiny.gguf"
    file.write_bytes(b"first")
    first = model_fingerprint(f"local:{file}")
    file.write_bytes(b"other weights")
    assert first.startswith(f"local:{file}@")
    assert model_fingerprint(f"local:{file}") != first
