"""The pages in docs are true: every command has valid flags, and every part of the signature is explained."""

import re
import shlex

import pytest

from memory_program.configs.evaluate_config import EvaluateConfig
from memory_program.core.command_line import parse_flags
from tests.conftest import CHECKOUT

PAGES = sorted((CHECKOUT / "docs").glob("*.md"))
COMMANDS = [
    line
    for page in PAGES
    for line in page.read_text(encoding="utf-8").splitlines()
    if line.startswith("python evaluate.py ")
]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_evaluation_in_the_docs_has_valid_flags(command):
    assert parse_flags(EvaluateConfig, shlex.split(command)[2:]).dataset


def test_every_part_of_a_signature_is_explained():
    source = (CHECKOUT / "memory_program/evaluation/report/results_json.py").read_text(encoding="utf-8")
    body = source.partition("def score_signature(")[2].partition("\ndef ")[0]
    parts = {*re.findall(r'"(\w+)": ', body), *re.findall(r'parts\["(\w+)"\]', body)}
    assert {"judge", "calibration", "top_k", "subset"} <= parts
    text = (CHECKOUT / "docs/comparability.md").read_text(encoding="utf-8")
    table = text.partition("## LoCoMo")[0]
    assert not [part for part in parts if f"`{part}" not in table]
