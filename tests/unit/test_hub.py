"""Uploading a result to a hub on loopback."""

import pytest

from memory_program.configs.train_config import TrainConfig
from memory_program.core.errors import ConfigError, RunFailedError
from memory_program.rl.hub_upload import check_hub_access, upload_to_hub
from tests.model_hub import hub_of


@pytest.fixture(autouse=True)
def _token(monkeypatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_of_the_test")


def test_nothing_is_uploaded_by_default():
    assert TrainConfig().push_to_hub is None
    check_hub_access(None)


def test_an_upload_goes_to_a_private_repository(tmp_path):
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


def test_a_refusal_is_an_error_with_its_reason(tmp_path):
    with hub_of(tmp_path) as hub:
        hub.refuses = True
        with pytest.raises(RunFailedError, match=r"could not be uploaded to .*': .*rights.*is kept"):
            upload_to_hub(tmp_path, "owner/tiny", endpoint=hub.address)


def test_an_unreachable_hub_is_an_error(tmp_path):
    with pytest.raises(RunFailedError, match="could not be uploaded to 'owner/tiny'"):
        upload_to_hub(tmp_path, "owner/tiny", endpoint="http://127.0.0.1:1")


@pytest.mark.parametrize("name", ["tiny", "a/b/c", "owner/", "own er/tiny"])
def test_a_wrong_repository_name_is_refused_before_training(name):
    with pytest.raises(ConfigError, match="write it as 'owner/model'"):
        check_hub_access(name)


def test_a_missing_token_is_refused_before_training(monkeypatch, tmp_path):
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr("memory_program.rl.hub_upload.get_token", lambda: None)
    with pytest.raises(ConfigError, match="run 'hf auth login', or set HF_TOKEN"):
        check_hub_access("owner/tiny")
