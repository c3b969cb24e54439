"""Every training command of the README has flags that its mode knows."""

import re
import shlex

import pytest

from memory_program.command_line import named_mode, parse_flags
from tests.conftest import CHECKOUT
from train import MODES

README = (CHECKOUT / "README.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^python train\.py.*$", README, re.MULTILINE)


def test_the_readme_shows_how_to_train_and_what_comes_before():
    modes = {named_mode(MODES, "train", shlex.split(command)[2:]) for command in COMMANDS}
    assert {"train", "evaluate", "trajectories", "sft", "export"} <= modes


@pytest.mark.parametrize("command", COMMANDS)
def test_every_training_in_the_readme_has_valid_flags(command):
    arguments = shlex.split(command)[2:]
    config_type, place = MODES[named_mode(MODES, "train", arguments)]
    assert isinstance(parse_flags(config_type, arguments), config_type)
    assert place.startswith("memory_program.")
