"""Trainings as ``train.py`` runs them, in this process: their data, flags and output."""

import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from locomo.types import Conversation
from memory_program.configs.train_config import TrainConfig
from memory_program.core.command_line import parse_flags
from memory_program.rl.training_run import train
from memory_program.worlds import as_locomo_json
from tests.model_server import ModelServer


def save_talks(folder: Path, talks: Sequence[Conversation]) -> Path:
    """Save conversations in LoCoMo's format; the last two are the validation and the test split."""
    path = folder / "talks.json"
    path.write_text(json.dumps(as_locomo_json(talks)), encoding="utf-8")
    return path


def training_flags(model: Path, talks: Path, server: ModelServer, out: Path, *more: str) -> list[str]:
    """The flags of a short training of a tiny model; what is given last counts."""
    return [
        "--model", f"local:{model}", "--dataset", str(talks), "--api-base", server.url,
        "--output-dir", str(out), "--curriculum", "", "--learning-rate", "1e-3", "--warmup-steps", "0",
        "--max-completion-tokens", "40", "--concurrency", "6", *more,
    ]  # fmt: skip


def run_training(arguments: Sequence[str], config_type: type[TrainConfig] = TrainConfig) -> str:
    """Run a training, and return the output."""
    console = Console(width=120)
    with console.capture() as captured:
        train(parse_flags(config_type, arguments), console=console)
    return captured.get()
