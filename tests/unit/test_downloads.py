"""What is fetched over a real connection: checked, kept, and not fetched twice."""

import hashlib

import pytest
from file_server import served

from locomo.benchmark_errors import DatasetError
from locomo.downloads import download, file_sha256

CONTENT = b"[1, 2, 3]"
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "numbers.json").write_bytes(CONTENT)
    return tmp_path / "web"


def test_a_pinned_file_is_fetched_once(folder, tmp_path):
    cache = tmp_path / "cache"
    with served(folder) as address:
        path = download(f"{address}/numbers.json", SHA256, cache, alternative="Wait")
    assert path.read_bytes() == CONTENT
    assert (
        download(f"{address}/numbers.json", SHA256, cache, alternative="Wait") == path
    )  # nobody serves any more


def test_the_hash_of_a_first_download_is_kept_and_holds_later(folder, tmp_path):
    cache = tmp_path / "cache"
    with served(folder) as address:
        path = download(f"{address}/numbers.json", None, cache, alternative="Wait")
        assert (cache / "numbers.json.sha256").read_text().strip() == SHA256 == file_sha256(path)
        path.unlink()
        (folder / "numbers.json").write_bytes(b"[1, 2, 4]")
        with pytest.raises(DatasetError, match="hash"):
            download(f"{address}/numbers.json", None, cache, alternative="Wait")
    assert not path.exists()


def test_without_a_known_hash_a_copy_in_the_cache_is_taken_and_recorded(folder, tmp_path):
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "numbers.json").write_bytes(CONTENT)
    path = download("http://127.0.0.1:9/numbers.json", None, cache, alternative="Wait")
    assert path.read_bytes() == CONTENT
    assert (cache / "numbers.json.sha256").read_text().strip() == SHA256


def test_an_empty_note_of_the_hash_is_written_again(folder, tmp_path):
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "numbers.json.sha256").write_text("")
    with served(folder) as address:
        path = download(f"{address}/numbers.json", None, cache, alternative="Wait")
    assert path.read_bytes() == CONTENT
    assert (cache / "numbers.json.sha256").read_text().strip() == SHA256


def test_without_a_network_the_error_says_both_ways_out(folder, tmp_path):
    with served(folder) as address:
        pass  # the port was real, and nobody listens there any more
    with pytest.raises(DatasetError) as caught:
        download(
            f"{address}/numbers.json", SHA256, tmp_path / "cache", alternative="Name a copy with --data PATH"
        )
    message = str(caught.value)
    assert "Name a copy with --data PATH, or download that URL by hand to" in message
    assert f"cannot get {address}/numbers.json" in message
    assert SHA256 in message
