"""Every training command of the docs has flags that its mode knows."""

import re
import shlex

import pytest

from memory_program.cli import TRAIN_MODES, run_train, train_mode_config
from memory_program.core.command_line import parse_flags, parse_mode
from tests.conftest import CHECKOUT

PAGES = [path.read_text(encoding="utf-8") for path in sorted((CHECKOUT / "docs").glob("*.md"))]
DOCS = "\n".join(PAGES).replace("\\\n", " ")
COMMANDS = re.findall(r"^python train\.py.*$", DOCS, re.MULTILINE)


def test_the_docs_show_every_training_mode():
    modes = {parse_mode(TRAIN_MODES, "train", shlex.split(command)[2:]) for command in COMMANDS}
    assert {"train", "evaluate", "trajectories", "synthesize", "sft", "export"} <= modes


@pytest.mark.parametrize("command", COMMANDS)
def test_training_commands_of_the_docs_have_valid_flags(command):
    arguments = shlex.split(command)[2:]
    config_type = train_mode_config(parse_mode(TRAIN_MODES, "train", arguments), arguments)
    assert isinstance(parse_flags(config_type, arguments), config_type)


@pytest.mark.parametrize("arguments", [[], ["--backend", "arbor"], ["--mode", "sft"]])
def test_help_lists_every_mode(arguments, capsys):
    with pytest.raises(SystemExit):
        run_train([*arguments, "--help"])
    shown = capsys.readouterr().out
    assert "--mode NAME --help" in shown
    assert re.findall(r"^- (\w+): \w+", shown, re.MULTILINE) == list(TRAIN_MODES)


def test_the_docs_show_both_backends():
    assert any("--backend arbor" in command for command in COMMANDS)
    assert "memory-program arbor serve --config arbor.yaml" in DOCS
    commands = re.findall(r"^sky (\w+)", DOCS, re.MULTILINE)
    assert {"launch", "status", "start", "down"} <= set(commands)
