"""Every training command of the README has flags that its mode knows."""

import re
import shlex

import pytest

from memory_program.configs.arbor_config import train_config_type
from memory_program.configs.train_config import TrainConfig
from memory_program.core.command_line import parse_flags, parse_mode
from tests.conftest import CHECKOUT
from train import MODES, main

README = (CHECKOUT / "README.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^python train\.py.*$", README, re.MULTILINE)


def test_the_readme_shows_every_training_mode():
    modes = {parse_mode(MODES, "train", shlex.split(command)[2:]) for command in COMMANDS}
    assert {"train", "evaluate", "trajectories", "synthesize", "sft", "export"} <= modes


@pytest.mark.parametrize("command", COMMANDS)
def test_training_commands_of_the_readme_have_valid_flags(command):
    arguments = shlex.split(command)[2:]
    config_type, place = MODES[parse_mode(MODES, "train", arguments)]
    if config_type is TrainConfig:
        config_type = train_config_type(arguments)
    assert isinstance(parse_flags(config_type, arguments), config_type)
    assert place.startswith("memory_program.")


@pytest.mark.parametrize("arguments", [[], ["--backend", "arbor"], ["--mode", "sft"]])
def test_help_lists_every_mode(arguments, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["train.py", *arguments, "--help"])
    with pytest.raises(SystemExit):
        main()
    shown = capsys.readouterr().out
    assert "--mode NAME --help" in shown
    assert re.findall(r"^- (\w+): \w+", shown, re.MULTILINE) == list(MODES)


def test_the_readme_shows_both_backends():
    assert any("--backend arbor" in command for command in COMMANDS)
    assert "python -m memory_program.rl.backends.arbor serve --config arbor.yaml" in README
    commands = re.findall(r"^sky (\w+)", README, re.MULTILINE)
    assert {"launch", "status", "start", "down"} <= set(commands)
