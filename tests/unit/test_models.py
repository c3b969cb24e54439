"""What is refused before LiteLLM is asked; what needs LiteLLM is in tests/integration/test_models.py."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from memory_program.configs.endpoints import Role
from memory_program.configs.evaluate_config import EvaluateConfig
from memory_program.core.errors import ConfigError, ModelError
from memory_program.evaluation.role_models import check_template_arguments
from memory_program.models.factory import language_model, takes_chat_template
from memory_program.models.http_engine import trusted_certificates
from memory_program.models.model_names import OBSERVATIONS


@pytest.mark.parametrize("name", ["local:", "local:/", "local: "])
def test_a_local_model_needs_a_folder(name: str) -> None:
    with pytest.raises(ModelError, match=r"names no model: .*'local:' and its folder"):
        language_model(name)


def test_a_missing_local_model_is_refused_by_its_path(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=f"{tmp_path}/nothing' is not a folder"):
        language_model(f"local:{tmp_path}/nothing")


@pytest.mark.parametrize("name", ["", "  ", "openai/", "/gpt-4.1-mini", "/"])
def test_an_invalid_name_is_refused_with_an_example(name: str) -> None:
    with pytest.raises(ModelError, match=r"is not the name of a model: .*'openai/gpt-4\.1-mini'"):
        language_model(name)


@pytest.mark.parametrize(
    "address",
    [
        *(
            "localhost:8000",
            "127.0.0.1",
            "ftp://host/v1",
            "http://",
            "v1",
            "http://[::1/v1",
            " http://host/v1",
        ),
        *("http://host:80OO/v1", "http://host:99999/v1", "http://host/v1?version=2"),
    ],
)
def test_an_invalid_address_is_refused_with_an_example(address: str) -> None:
    with pytest.raises(ModelError, match=r"is not an address: .*'http://127\.0\.0\.1:8000/v1'"):
        language_model("openai/test", api_base=address)


def test_a_password_in_an_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(ModelError, match="holds a password") as caught:
        language_model("openai/test", api_base="http://me:hunter22@example.org/v1")
    assert "hunter22" not in str(caught.value)


@pytest.mark.parametrize("key", ["\u201chunter22-of-mine\u201d", "hunter22\nof-mine"])
def test_a_key_that_no_header_can_hold_is_refused_and_not_shown(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with pytest.raises(ModelError, match="OPENAI_API_KEY holds a character that no key has") as caught:
        language_model("openai/test", api_base="http://127.0.0.1:1/v1")
    assert "hunter22" not in str(caught.value)


def test_a_proxy_that_is_no_address_is_refused_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://me:hunter/22@proxy.example:8080")
    monkeypatch.setenv("no_proxy", "")
    with pytest.raises(ModelError, match="proxy is no address: set HTTP_PROXY to") as caught:
        language_model("openai/test", api_base="http://example.org/v1")
    assert "hunter" not in str(caught.value)


def test_an_address_of_the_environment_is_checked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none-of-yours")
    for url, complaint in (
        ("http://me:hunter22@example.org/v1", "OPENAI_BASE_URL at 'example.org' holds a password"),
        ("127.0.0.1:8000/v1", "OPENAI_BASE_URL='127.0.0.1:8000/v1' is not an address"),
        ("http://[::1/v1", r"OPENAI_BASE_URL='http://\[::1/v1' is not an address"),
        (
            "http://example.org/v1?api_key=hunter22",
            "OPENAI_BASE_URL at 'example.org' holds a password or a key",
        ),
    ):
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        with pytest.raises(ModelError, match=complaint) as caught:
            language_model("openai/test")
        assert "hunter22" not in str(caught.value)


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:1080", "https://me:hunter22@proxy.example:8080"])
def test_a_proxy_that_does_not_speak_http_is_refused(proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", proxy)
    monkeypatch.setenv("no_proxy", "")
    with pytest.raises(
        ModelError, match=r"proxy at .* is one for '.*', expected 'http': .*NO_PROXY"
    ) as caught:
        language_model("openai/test", api_base="https://models.invalid/v1")
    assert "hunter22" not in str(caught.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": -0.1},
        {"temperature": 2.1},
        {"max_tokens": 0},
        {"timeout_s": 0},
        {"max_retries": -1},
        {"first_wait_s": -1.0},
    ],
)
def test_a_number_out_of_range_is_refused_by_its_name(settings: dict[str, Any]) -> None:
    (name,) = settings
    with pytest.raises(ConfigError, match=name):
        language_model("openai/test", api_base="http://127.0.0.1:9/v1", **settings)


def test_neither_litellm_nor_torch_is_imported_before_a_model_is_made() -> None:
    check = (
        "import sys, memory_program.models.factory; sys.exit(bool({'litellm', 'torch'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def test_importing_the_modules_does_not_start_jax(tmp_path: Path) -> None:
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / "__init__.py").touch()
    (tmp_path / "jax" / "lax.py").touch()
    check = (
        "import importlib, pkgutil, sys, locomo, memory_program, recipes\n"
        "for root in (locomo, memory_program, recipes):\n"
        "    for module in pkgutil.walk_packages(root.__path__, root.__name__ + '.'):\n"
        "        if not module.name.endswith('__main__'):\n"
        "            importlib.import_module(module.name)\n"
        "assert 'recipes.pocket.pretraining' in sys.modules\n"
        "assert 'jax' not in sys.modules"
    )
    paths = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])
    subprocess.run([sys.executable, "-c", check], check=True, env={**os.environ, "PYTHONPATH": paths})


def test_the_certificates_of_certifi_are_trusted_beside_those_of_ssl_cert_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = tmp_path / "own.pem"
    own.touch()
    monkeypatch.setenv("SSL_CERT_FILE", str(own))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    assert trusted_certificates().cert_store_stats()["x509_ca"] > 100


@pytest.mark.parametrize(
    ("name", "api_base", "base_url", "expected"),
    [
        ("local:folder", None, "", True),
        ("vllm:folder", None, "", True),
        ("openai/qwen", "http://127.0.0.1:8000/v1", "", True),
        ("openai/qwen", None, "http://127.0.0.1:8000/v1", True),
        ("together_ai/Qwen/Qwen3-8B", None, "", True),
        ("openai/gpt-4.1", None, "", False),
        ("anthropic/claude-haiku-4-5", None, "http://127.0.0.1:8000/v1", False),
    ],
)
def test_arguments_of_the_chat_template_go_to_servers_that_know_them(
    name, api_base, base_url, expected, monkeypatch
):
    monkeypatch.delenv("OPENAI_API_BASE", raising=False)
    monkeypatch.setenv("OPENAI_BASE_URL", base_url)
    assert takes_chat_template(name, api_base) is expected


def test_arguments_of_the_chat_template_that_reach_no_model_are_refused(monkeypatch):
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.delenv("OPENAI_API_BASE", raising=False)
    given = {"chat_template_kwargs": '{"enable_thinking": false}'}
    hosted = [(Role.WRITER, "openai/gpt-4.1"), (Role.READER, "openai/gpt-4.1"), (Role.JUDGE, None)]
    with pytest.raises(ConfigError, match=r"chat_template_kwargs=.* would not reach openai/gpt-4\.1, since"):
        check_template_arguments(EvaluateConfig(**given), [*hosted, (Role.WRITER, OBSERVATIONS)])
    check_template_arguments(EvaluateConfig(), hosted)
    check_template_arguments(EvaluateConfig(**given), [])  # no model is asked
    check_template_arguments(EvaluateConfig(**given), [*hosted, (Role.READER, "pocket")])
    own = EvaluateConfig(writer_api_base="http://127.0.0.1:8000/v1", **given)
    check_template_arguments(own, hosted)
