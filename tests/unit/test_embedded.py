"""Models in this process: other weights under the same name are another model."""

import os
from itertools import count
from pathlib import Path

import pytest

from memory_program.embedded import POCKET, POCKET_BASE, is_embedded, known_as, source_of

_clock = count(1_000_000_000, 1_000_000_000)


def write_model(folder: Path, weights: bytes, tokenizer: bytes = b"{}") -> str:
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors").write_bytes(weights)
    written_ns = next(_clock)  # a file system's clock may stand still between two writes
    os.utime(folder / "model.safetensors", ns=(written_ns, written_ns))
    (folder / "tokenizer.json").write_bytes(tokenizer)
    return f"local:{folder}"


def test_the_models_that_come_with_the_program_have_weights_of_their_own() -> None:
    for name in (POCKET, POCKET_BASE):
        assert (Path(source_of(name)) / "model.safetensors").is_file()
    assert known_as(POCKET).split("@")[1] != known_as(POCKET_BASE).split("@")[1]


@pytest.mark.parametrize("name", ["openai/gpt-4.1-mini", "local:owner/name", "local:"])
def test_what_is_not_in_a_folder_is_known_by_its_name(name: str) -> None:
    assert known_as(name) == name


def test_an_address_is_not_in_this_process() -> None:
    assert [is_embedded(name) for name in ("pocket", "local:x", "openai/pocket")] == [True, True, False]


def test_other_weights_or_another_tokenizer_under_one_name_are_another_model(tmp_path: Path) -> None:
    name = write_model(tmp_path / "model", b"first")
    first = known_as(name)
    assert known_as(name) == first
    write_model(tmp_path / "model", b"other")  # of the same size
    other = known_as(name)
    write_model(tmp_path / "model", b"other", b"[]")
    assert len({first, other, known_as(name)}) == 3
    write_model(tmp_path / "model", b"first")
    assert known_as(name) == first
