"""Pushing a result: to a hub on loopback, with a token, and never without being asked."""

import pytest

from memory_program.configs.train_config import TrainConfig
from memory_program.core.errors import ConfigError, ModelError
from memory_program.rl.hub_upload import check_hub_access, upload_to_hub
from tests.model_hub import hub_of


@pytest.fixture(autouse=True)
def _token(monkeypatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_of_the_test")


def test_nothing_is_pushed_unless_it_is_asked_for():
    assert TrainConfig().push_to_hub is None
    check_hub_access(None)


def test_weights_program_and_card_arrive_in_a_private_repository(tmp_path):
    written = {"model.safetensors": b"\x00\x01", "program.json": b"{}", "README.md": b"# card\n"}
    for name, content in written.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "weights.draft").write_bytes(b"half")
    with hub_of(tmp_path) as hub:
        address = upload_to_hub(tmp_path, "owner/tiny", endpoint=hub.address)
    assert hub.pushed == written
    assert (hub.made["name"], hub.made["organization"]) == ("tiny", "owner")
    assert hub.made.get("private", hub.made.get("visibility")) in (True, "private")
    assert hub.tokens == {"hf_of_the_test"}
    assert address.endswith("/owner/tiny/commit/0123456789abcdef0123456789abcdef01234567")


def test_a_hub_that_refuses_is_an_error_that_says_why_and_what_is_kept(tmp_path):
    with hub_of(tmp_path) as hub:
        hub.refuses = True
        with pytest.raises(ModelError, match=r"could not be pushed to 'owner/tiny': .*rights.*it is kept"):
            upload_to_hub(tmp_path, "owner/tiny", endpoint=hub.address)


def test_a_hub_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(ModelError, match="could not be pushed to 'owner/tiny'"):
        upload_to_hub(tmp_path, "owner/tiny", endpoint="http://127.0.0.1:1")


@pytest.mark.parametrize("name", ["tiny", "a/b/c", "owner/", "own er/tiny"])
def test_what_is_no_repository_is_refused_before_a_training(name):
    with pytest.raises(ConfigError, match="one looks like 'owner/model'"):
        check_hub_access(name)


def test_without_a_token_nothing_begins(monkeypatch, tmp_path):
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr("memory_program.rl.hub_upload.get_token", lambda: None)
    with pytest.raises(ConfigError, match="run 'hf auth login', or set HF_TOKEN"):
        check_hub_access("owner/tiny")
