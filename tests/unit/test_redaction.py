"""Keys in texts and errors."""

import traceback

import pytest

from memory_program.core.redaction import redact_error, redact_text


@pytest.mark.parametrize(
    "text",
    [
        "Incorrect API key provided: sk-proj-abcdef0123456789",
        "Authorization: Bearer abc.def.ghi",
        "headers={'authorization': 'bearer xyz123'}",
        "key gsk_0123456789abcdef was revoked",
        *(f"no access with {maker}-0123456789abcdef" for maker in ("nvapi", "pplx", "csk")),
        "api_key=AIzaSyA-0123456789_abcdefghij",
    ],
)
def test_text_in_the_shape_of_a_key_is_removed(text: str) -> None:
    assert "[key removed]" in redact_text(text)
    assert not any(part in redact_text(text) for part in ("0123456789", "abc.def", "xyz123"))


@pytest.mark.parametrize(
    "text",
    ["", "no key at all", "task-oriented sk-8", "a risk-averse-investor-2024", "hf-internal-testing/tiny"],
)
def test_ordinary_text_is_kept(text: str) -> None:
    assert redact_text(text) == text


@pytest.mark.parametrize("name", ["MY_API_KEY", "HF_TOKEN", "aws_secret_access", "DB_PASSWORD"])
def test_a_key_of_the_environment_is_removed_in_any_shape(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "correct horse battery")
    assert redact_text("sent correct horse battery along") == "sent [key removed] along"


def test_a_key_with_a_line_end_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "correct horse battery\n")
    assert redact_text("sent correct horse battery along") == "sent [key removed] along"


def test_the_password_of_an_address_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert redact_text("at https://me:pass@host:1/v1, not") == "at https://[key removed]@host:1/v1, not"
    assert redact_text("at https://host:80/a@b is no password") == "at https://host:80/a@b is no password"
    monkeypatch.setenv("HTTPS_PROXY", "http://me:pass@proxy:8080")
    assert redact_text("failed to connect to me:pass@proxy") == "failed to connect to [key removed]@proxy"


def test_a_key_that_contains_another_is_removed_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", "abcdefgh")
    monkeypatch.setenv("B_KEY", "abcdefgh-and-more")
    assert redact_text("abcdefgh-and-more") == "[key removed]"


def test_short_values_are_words_and_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    assert redact_text("that is false") == "that is false"


def test_an_error_without_a_key_keeps_its_causes() -> None:
    error = ValueError("boom")
    error.__cause__ = KeyError("why")
    redact_error(error)
    assert isinstance(error.__cause__, KeyError)
    assert error.args == ("boom",)


def test_a_key_in_a_cause_removes_the_causes() -> None:
    error = ValueError("boom", 7)
    error.__cause__ = KeyError("Bearer sk-0123456789")
    redact_error(error)
    assert "sk-0123456789" not in "".join(traceback.format_exception(error))
    assert error.args == ("boom", 7)
