"""The README is true: its commands parse or run, its Python runs, its table of flags is the config's.

After a change of a flag: ``UPDATE_GOLDEN=1 python -m pytest tests/integration/test_readme.py``.
"""

import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from memory_program.bank.__main__ import main as bank_command
from memory_program.configs.evaluate_config import EvaluateConfig, SystemName
from memory_program.configs.groups import SystemSettings
from memory_program.configs.optimize_config import OptimizeConfig
from memory_program.core.command_line import parse_flags
from memory_program.core.settings import Settings
from memory_program.optimization.optimization_run import optimize
from tests.conftest import CHECKOUT
from tests.model_server import ModelServer
from tests.optimization_samples import Steerable, impatient, quick

README = CHECKOUT / "README.md"
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", README.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
COMMANDS = [
    part.strip()
    for language, block in BLOCKS
    if not language
    for line in block.splitlines()
    for part in line.split("&&")
    if part.strip().startswith(("python ", "pip "))
]
TABLES: dict[str, tuple[type[Settings], set[str]]] = {  # what makes each table, and what the others have
    "memory_program/configs/evaluate_config.py": (EvaluateConfig, set()),
    "memory_program/configs/optimize_config.py": (OptimizeConfig, set(SystemSettings.flat_fields())),
}


def flag_table(config: type[Settings], elsewhere: set[str]) -> str:
    rows = ["| flag | default | meaning |", "|---|---|---|"]
    for name, field in config.flat_fields().items():
        if name not in elsewhere:
            default = "" if field.default in (None, ()) else getattr(field.default, "value", field.default)
            shown = f"`{default}`" if default != "" else ""
            flag = "RUN ..." if name == "runs" else f"--{name.replace('_', '-')}"
            rows.append(f"| `{flag}` | {shown} | {field.description} |")
    return "\n".join(rows) + "\n"


def assert_stands_in_readme(begin: str, expected: str, end: str) -> None:
    """Compare what stands between two lines; ``UPDATE_GOLDEN`` writes it."""
    text = README.read_text(encoding="utf-8")
    before, marked, rest = text.partition(begin)
    assert marked, f"{begin!r} is not in the README"
    stands, _, after = rest.partition(end)
    if os.environ.get("UPDATE_GOLDEN"):
        README.write_text(before + begin + expected + end + after, encoding="utf-8")
        stands = expected
    assert stands == expected


@pytest.mark.parametrize("source", TABLES)
def test_the_table_of_flags_is_that_of_the_config(source):
    begin = f"<!-- flags: made from {source} -->\n"
    assert_stands_in_readme(begin, flag_table(*TABLES[source]), "<!-- end of flags -->")


def test_the_table_of_systems_names_each_of_them():
    table = README.read_text(encoding="utf-8").partition("## The systems\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE)) == set(SystemName)


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("python evaluate.py")])
def test_every_evaluation_in_the_readme_has_valid_flags(command):
    arguments = shlex.split(command)[2:]
    config = parse_flags(EvaluateConfig, arguments)
    assert config.system_names


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("python optimize.py")])
def test_every_optimisation_in_the_readme_has_valid_flags(command):
    parse_flags(OptimizeConfig, shlex.split(command)[2:])


def test_the_optimised_prompt_of_the_readme_is_what_comes_out(tmp_path):
    config = quick(tmp_path, optimizer="gepa")
    with ModelServer(reply=Steerable(["reader"])) as server:
        console = Console(file=io.StringIO(), width=120)
        results = optimize(config, console=console, models=impatient(server.url))
    diff = (config.output_dir / "0-reader.diff").read_text(encoding="utf-8").rstrip()
    verdict = next(line for line in console.file.getvalue().splitlines() if line.startswith("reader: "))
    signature = results["stages"][0]["winner"]["signature"]
    expected = f"```diff\n{diff}\n```\n\n```text\n{verdict}\n{signature}\n```\n"
    assert_stands_in_readme("to expect.\n\n", expected, "<!-- end of example -->")


def test_the_first_block_is_the_main_job_and_is_complete_in_itself():
    assert BLOCKS[0][1] == "pip install -e . && python evaluate.py\n"  # run by test_pocket.py


def test_the_tests_are_one_command():
    assert 'pip install -e ".[dev]" && python -m pytest' in README.read_text(encoding="utf-8")


def test_the_made_up_dataset_of_the_readme_is_evaluated(tmp_path):
    wanted = [c for c in COMMANDS if "memory_program.worlds" in c or "sample.json" in c]
    assert len(wanted) == 2
    for command in wanted:
        python, *arguments = shlex.split(command.replace("evaluate.py", str(CHECKOUT / "evaluate.py")))
        assert python == "python"
        done = subprocess.run(
            [sys.executable, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "evaluate" / "results.json").is_file()


def test_the_python_of_the_readme_runs(tmp_path, monkeypatch, capsys):
    (code,) = [block for language, block in BLOCKS if language == "python"]
    monkeypatch.chdir(tmp_path)
    with ModelServer() as server:
        here = code.replace(
            'language_model("openai/gpt-4.1-mini")', f'language_model("openai/test", api_base="{server.url}")'
        )
        assert here != code
        exec(compile(here, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert "m1" in printed
    assert "openai/test" not in Path("program.json").read_text(encoding="utf-8")
    looks = [shlex.split(command)[3:] for command in COMMANDS if "-m memory_program.bank" in command]
    assert [look[0] for look in looks] == ["list", "search", "diff", "forget"]
    for look in looks:
        assert bank_command(look) == 0
        assert ("alice is forgotten" if look[0] == "forget" else "m1  ") in capsys.readouterr().out
    assert bank_command(looks[0]) == 2  # there is no alice any more
