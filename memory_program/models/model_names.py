"""Names and addresses of models, and weights and fingerprints of those that run in this process."""

import hashlib
import os
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlsplit

from memory_program.core.adapter_config import ADAPTER_FOLDER, adapter_base, rounded_adapter
from memory_program.core.errors import ConfigError
from memory_program.core.settings import is_server_address

POCKET = "pocket"
"""The embedded model."""

POCKET_BASE = "pocket-base"
"""The embedded model, trained to overlook most minor facts: a start for training to improve on."""

OBSERVATIONS = "observations"
"""LoCoMo's own notes, in place of a model that writes memories."""

OPENAI_URL = "https://api.openai.com/v1"
"""The address of OpenAI."""

_LOCAL = "local:"
_VLLM = "vllm:"
_API_PROVIDERS = ("openai", "anthropic", "gemini", "together_ai", "ollama", "hosted_vllm", "openrouter")
_BATCH_PROVIDERS = ("openai/", "anthropic/")
_POCKET = Path(__file__).parents[1] / "pocket"
_BUNDLED = {POCKET: _POCKET / "weights", POCKET_BASE: _POCKET / "weights-base"}
_HASHED_FILE_PATTERNS = ("*.safetensors", "tokenizer.json")


def is_bundled(model: str) -> bool:
    """Tell if a name is that of a model that comes with the program."""
    return model in _BUNDLED


def is_local(model: str) -> bool:
    """Tell if a name is that of a model that runs in this process.

    Example:
        >>> is_local("pocket"), is_local("local:weights/tiny"), is_local("openai/gpt-4.1-mini")
        (True, True, False)
    """
    return is_bundled(model) or model.startswith(_LOCAL)


def is_vllm(model: str) -> bool:
    """Tell if a name is that of a model for which a vLLM server is started on this machine.

    Example:
        >>> is_vllm("vllm:Qwen/Qwen2.5-3B-Instruct"), is_vllm("local:weights/tiny")
        (True, False)
    """
    return model.startswith(_VLLM)


def openai_url() -> str:
    """Give the address of OpenAI, or the one that the environment has in its place."""
    return os.environ.get("OPENAI_BASE_URL") or os.environ.get("OPENAI_API_BASE") or OPENAI_URL


def own_server(model: str, api_base: str | None) -> str | None:
    """Return the address of a server that is not the provider's: ``api_base``, or that of OPENAI_BASE_URL.

    OpenAI also has addresses for regions, such as eu.api.openai.com.
    """
    if api_base is not None or not model.startswith("openai/"):
        return api_base
    if not is_server_address(openai_url()):  # whoever calls the model says so
        return openai_url()
    host, of_openai = (urlsplit(url).hostname or "" for url in (openai_url(), OPENAI_URL))
    return None if f".{host}".endswith(f".{of_openai}") else openai_url()


def has_batch_api(model: str) -> bool:
    """Tell if a model is called through an API that takes batches.

    Example:
        >>> has_batch_api("anthropic/claude-sonnet-4-5"), has_batch_api("gemini/gemini-2.5-flash")
        (True, False)
    """
    return model.startswith(_BATCH_PROVIDERS)


def runs_here(model: str) -> bool:
    """Tell if a model computes on this machine: in this process, or in a vLLM server that it starts."""
    return is_local(model) or is_vllm(model) or model == OBSERVATIONS


def trainable_model(name: str) -> str:
    """Return the whole name of a model to train: an id on the Hugging Face hub may lack its ``local:``.

    Raises:
        ConfigError: it is the name of a model behind an API, or of none.

    Example:
        >>> trainable_model("Qwen/Qwen2.5-3B"), trainable_model("pocket-base")
        ('local:Qwen/Qwen2.5-3B', 'pocket-base')
    """
    if is_local(name) or not name.strip():  # a blank name is an error of its own
        return name
    owner, slash, rest = name.partition("/")
    if not slash or not rest or "/" in rest or ":" in name or owner in _API_PROVIDERS:
        raise ConfigError(
            f"model={name!r} cannot be trained: name a folder after 'local:', or an id on the Hugging Face "
            "hub such as Qwen/Qwen2.5-3B-Instruct"
        )
    return f"{_LOCAL}{name}"


def model_source(model: str) -> str:
    """Return the folder, the GGUF file or the id on the hub of a model that runs on this machine.

    Example:
        >>> model_source("local:weights/tiny")
        'weights/tiny'
    """
    return str(_BUNDLED.get(model, model.removeprefix(_VLLM).removeprefix(_LOCAL).strip()))


def model_program(model: str) -> Path | None:
    """Find the program (prompts, as JSON) that a model was trained in; None if there is none.

    It lies in the folder of the model, or beside a GGUF file. A model of the hub is known by its name alone:
    its program is found once it lies in a folder.
    """
    if not runs_here(model) or model == OBSERVATIONS:
        return None
    source = _POCKET if is_bundled(model) else Path(model_source(model)).expanduser()
    folder = source.parent if source.suffix == ".gguf" else source
    # a training saves its program with the merged weights, and their adapter in a folder below
    places = [folder, folder.parent] if folder.name == ADAPTER_FOLDER else [folder]
    return next((place / "program.json" for place in places if (place / "program.json").is_file()), None)


def embedder_fingerprint(name: str) -> str:
    """Return an id for the vectors of an embedding model, as ``model_fingerprint`` does.

    The modules of a sentence-transformers model lie in folders of their own, and its settings count too.
    """
    return model_fingerprint(name, ("**/*.safetensors", "**/*.bin", "**/*.json"))


def model_fingerprint(model: str, hashed_files: tuple[str, ...] = _HASHED_FILE_PATTERNS) -> str:
    """Return an id for the records of a model, so that other weights never pass for these.

    It is the name of a remote model or of one on the hub. For a model in a folder it is the name and a hash
    of its weights and tokenizer, since training writes other weights under the same name. For a GGUF file it
    is the name and a hash of the file. An adapter's also has the fingerprint of its base model.
    """
    source = model_source(model) if runs_here(model) else ""
    path = Path(source).expanduser()
    if not source or not path.exists():
        return model
    exact = rounded_adapter(path) if path.is_dir() else None  # what is loaded in place of the weights
    folders = [path] if exact is None else [path, exact]
    found = (file for folder in folders for pattern in hashed_files for file in folder.glob(pattern))
    files = sorted(found) if path.is_dir() else [path]
    versions = tuple((file, file.stat().st_size, file.stat().st_mtime_ns) for file in files)
    base = adapter_base(source)
    over = "" if base is None else f"+{model_fingerprint(f'{_LOCAL}{base}', hashed_files)}"
    return f"{model}@{_hash_files(versions)}{over}"


@lru_cache
def _hash_files(files: tuple[tuple[Path, int, int], ...]) -> str:
    """Hash files; their sizes and times of change are part of the cache key."""
    found = hashlib.sha256()
    for path, _, _ in files:
        with path.open("rb") as file:
            found.update(hashlib.file_digest(file, "sha256").digest())
    return found.hexdigest()[:16]
