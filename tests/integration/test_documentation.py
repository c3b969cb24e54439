"""The documentation is true: commands parse or run, Python runs, links work, the example is real."""

import csv
import io
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import pytest
from rich.console import Console

from locomo.split_data import main as split_data
from memory_program.bank.__main__ import main as bank_command
from memory_program.cli import train_mode_config
from memory_program.configs.evaluate_config import EvaluateConfig, SystemName
from memory_program.configs.optimize_config import OptimizeConfig
from memory_program.configs.score_config import ScoreConfig
from memory_program.configs.serve_config import ServeConfig
from memory_program.core.command_line import parse_flags, parse_mode
from memory_program.forget.__main__ import main as forget_command
from memory_program.optimization.optimization_run import optimize
from memory_program.rl.backends.arbor.__main__ import main as arbor_command
from memory_program.rl.rollout_files import main as rollouts_command
from memory_program.serving.reward_server import RewardServerConfig
from memory_program.serving.service.token_command import main as token_command
from memory_program.worlds.__main__ import main as world_command
from tests.conftest import CHECKOUT
from tests.memory_services import served
from tests.model_server import ModelServer
from tests.optimization_samples import Steerable, impatient, quick

PAGES = [CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").glob("*.md"))]
CARDS = sorted(CHECKOUT.glob("adapters/*/README.md"))


@dataclass(frozen=True)
class Block:
    page: str
    language: str
    text: str


def _blocks(path: Path) -> list[Block]:
    found = re.findall(
        r"^```(\w*)\n(.*?)^```", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    )
    return [Block(path.relative_to(CHECKOUT).as_posix(), language, text) for language, text in found]


BLOCKS = [block for path in (*PAGES, *CARDS) for block in _blocks(path)]
COMMANDS = sorted(
    {
        " ".join(part.split())
        for block in BLOCKS
        if not block.language and block.page != "docs/cli.md"  # generated from the code itself
        for line in block.text.replace("\\\n", " ").splitlines()
        for part in line.split("&&")
        if part.strip()
    }
)
SERVER_PAGE = "docs/serve.md"
SERVED = [b for b in BLOCKS if b.language == "python" and (b.page == SERVER_PAGE or "MemoryClient" in b.text)]
"""Blocks that talk to a memory server."""
EXTRAS = {"bench", "dev", "gpu", "local", "postgres", "ray", "serve", "train"}
OTHER_PROGRAMS = (
    *("RAY_USAGE_STATS_ENABLED=0 ray ", "cp ", "export ", "llama-quantize ", "llama-server ", "mlflow ui "),
    *("rsync ", "sky ", "vllm "),
)
"""Programs of others, whose flags are not checked here."""


def _prints_help(command, arguments):
    """Parse the arguments of a subcommand without running it: help is shown only for what exists."""
    names = [argument for argument in arguments[:1] if not argument.startswith("-")]
    with pytest.raises(SystemExit) as exit_info:
        raise SystemExit(command([*names, "--help"]))
    assert not exit_info.value.code


def _check(command, capsys):
    """Parse one command as its program does; nothing runs."""
    words = shlex.split(command)
    if words[0] in ("torchrun", "accelerate"):  # they start the same program once per GPU
        words = ["python", *words[words.index("train.py") :]]
    if words[0] == "memory-program":
        words = ["python", "-m", f"memory-program {words[1]}", *words[2:]]
    if words[0] == "pip":
        wanted = re.fullmatch(r"\.(?:\[([\w,]+)\])?", words[-1])
        assert "skypilot" in command or (wanted and set((wanted[1] or "dev").split(",")) <= EXTRAS)
        return
    assert words[0] == "python"
    program, arguments = (words[2], words[3:]) if words[1] == "-m" else (words[1], words[2:])
    match program:
        case "evaluate.py":
            parse_flags(EvaluateConfig, arguments)
        case "optimize.py":
            parse_flags(OptimizeConfig, arguments)
        case "train.py":
            mode = parse_mode(
                ["train", "evaluate", "trajectories", "synthesize", "sft", "export"], "train", arguments
            )
            parse_flags(train_mode_config(mode, arguments), arguments)
        case "memory-program score":
            parse_flags(ScoreConfig, arguments)
        case "memory-program serve":
            parse_flags(ServeConfig, arguments)
        case "memory-program token":
            _prints_help(token_command, arguments)
        case "memory-program reward-server":
            parse_flags(RewardServerConfig, arguments)
        case "memory_program.bank" | "memory-program bank":
            _prints_help(bank_command, arguments)
        case "memory_program.worlds":
            _prints_help(world_command, [])
        case "memory-program forget":
            _prints_help(forget_command, [])
        case "memory-program rollouts":  # the folder is empty, and the flags are read before it
            assert rollouts_command(arguments)
            assert "no rollouts" in capsys.readouterr().err
        case "memory-program arbor":
            _prints_help(arbor_command, arguments)
        case "locomo.split_data":
            _prints_help(split_data, [])
        case "pytest" | "tests.fuzz":
            pass
        case _:
            path = CHECKOUT / program.replace(".", "/").removesuffix("/py")
            source = (path if path.is_file() else path.with_suffix(".py")).read_text(encoding="utf-8")
            for flag in (word for word in arguments if word.startswith("--")):
                assert flag in source or flag[2:].replace("-", "_") in source, f"{program} has no {flag}"


@pytest.mark.parametrize("command", [c for c in COMMANDS if not c.startswith(OTHER_PROGRAMS)])
def test_every_command_is_valid(command, monkeypatch, tmp_path, capsys):
    for saved in ("optimized_memory_program.json", "optimized_judge.json", "optimized_retrieval.json"):
        (tmp_path / saved).write_text("{}")
    monkeypatch.chdir(tmp_path)
    _check(command, capsys)


def test_the_readme_begins_with_the_main_job_and_then_the_tests():
    first, second, *_ = [b.text for b in BLOCKS if b.page == "README.md" and not b.language]
    assert first == 'pip install -e ".[local]" && python evaluate.py\n'  # .ci/run and test_pocket.py run it
    assert second == 'pip install -e ".[dev]" && python -m pytest\n'


def test_every_link_leads_to_a_file():
    missing = [
        f"{path.name}: {target}"
        for path in (*PAGES, *CARDS)
        for target in re.findall(r"\]\(([^)#:]+)(?:#[\w-]*)?\)", path.read_text(encoding="utf-8"))
        if not (path.parent / target).exists()
    ]
    assert not missing


def test_every_page_is_in_the_index_of_the_readme():
    readme = PAGES[0].read_text(encoding="utf-8")
    assert not [path.name for path in PAGES[1:] if f"(docs/{path.name})" not in readme]


def test_the_table_of_systems_names_each_of_them():
    text = (CHECKOUT / "docs/concepts.md").read_text(encoding="utf-8")
    table = text.partition("## The systems\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE)) == set(SystemName)


def test_the_tables_of_the_results_are_those_of_their_files():
    tables = runpy.run_path(str(CHECKOUT / "docs/results_table.py"))
    page = (CHECKOUT / "docs/results.md").read_text(encoding="utf-8")
    made = [name for name in tables if name.endswith("_table")]
    assert len(made) == 9
    for table in made:
        assert tables[table]() in page, "run python docs/results_table.py"
    assert tables["headline_table"]() in (CHECKOUT / "README.md").read_text(encoding="utf-8")
    for path in (CHECKOUT / "docs/results").glob("*.json"):
        assert not re.search(r'"([^"]*:)?(/|~)[^"/]+/', path.read_text()), "no path of a machine"


def test_the_scores_of_questions_have_the_means_of_their_results():
    found = sorted((CHECKOUT / "docs/results").glob("*.csv"))
    assert len(found) >= 6
    for path in found:
        with path.open(encoding="utf-8", newline="") as file:
            rows = [row for row in csv.DictReader(file) if row["category"] != "adversarial"]
        systems = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))["systems"]
        for name, system in systems.items():
            scores = [float(row[name]) for row in rows if row[name]]
            mean = system["locomo_f1"]["all"]
            assert len(scores) == mean["n"]
            assert fmean(scores) == pytest.approx(mean["value"], abs=1e-6)


def test_every_part_of_a_signature_is_explained():
    source = (CHECKOUT / "memory_program/evaluation/report/results_json.py").read_text(encoding="utf-8")
    body = source.partition("def score_signature(")[2].partition("\ndef ")[0]
    parts = {*re.findall(r'"(\w+)": ', body), *re.findall(r'parts\["(\w+)"\]', body)}
    assert {"judge", "calibration", "top_k", "subset"} <= parts
    text = (CHECKOUT / "docs/comparability.md").read_text(encoding="utf-8")
    table = text.partition("## LoCoMo")[0]
    assert not [part for part in parts if f"`{part}" not in table]


def test_the_generated_dataset_of_the_readme_is_evaluated(tmp_path):
    wanted = [c for c in COMMANDS if c.startswith(("python -m memory_program.worlds", "python evaluate.py"))]
    wanted = [c for c in wanted if "own.json" in c and "--program" not in c]
    assert len(wanted) == 2
    for command in sorted(wanted, reverse=True, key=lambda c: "worlds" in c):
        python, *arguments = shlex.split(command.replace("evaluate.py", str(CHECKOUT / "evaluate.py")))
        assert python == "python"
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "evaluate" / "results.json").is_file()


def test_the_python_of_the_pages_runs(tmp_path, monkeypatch, capsys):
    """The README's example, the bank commands about it, and what the other pages add to it."""
    pages = [block for block in BLOCKS if block.language == "python" and block not in SERVED]
    readme, *more = [block.text for block in pages]
    monkeypatch.chdir(tmp_path)
    with ModelServer() as server:
        here = readme.replace(
            'language_model("openai/gpt-4.1-mini")', f'language_model("openai/test", api_base="{server.url}")'
        )
        assert here != readme
        exec(compile(here, "README.md", "exec"), {})
    assert "m1" in capsys.readouterr().out
    looks = [shlex.split(c)[3:] for c in COMMANDS if "-m memory_program.bank" in c and "alice" in c]
    assert {look[0] for look in looks} == {"list", "search", "history", "diff"}
    for look in looks:
        assert bank_command(look) == 0
        assert "m1" in capsys.readouterr().out
    for code in more:
        exec(compile(code, "docs", "exec"), {})
    assert "openai/test" not in Path("program.json").read_text(encoding="utf-8")
    forget = ["forget", "--db", "sqlite:///memories.sqlite", "--namespace", "alice"]
    assert bank_command(forget) == 0
    assert bank_command(looks[0]) == 2  # there is no alice any more


def test_the_python_that_talks_to_a_server_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-own")
    assert [block.page for block in SERVED] == ["README.md", SERVER_PAGE, SERVER_PAGE]
    database = f"sqlite:///{tmp_path / 'memory.sqlite'}"
    with ModelServer() as server, served(database, server.url, proxy=True) as (address, _):
        for block in SERVED:
            exec(compile(block.text.replace("http://127.0.0.1:8080", address), block.page, "exec"), {})
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "I adopted a dog called Pip."
    assert shown[1] == "ready"  # the model's reply to any chat
    assert shown[2].startswith("I adopted a dog from the shelter")
    assert shown[3].startswith("m1 ")


def test_the_configuration_of_an_mcp_client_parses():
    (written,) = [b.text for b in BLOCKS if b.language == "json" and b.page == SERVER_PAGE]
    server = json.loads(written)["mcpServers"]["memory"]
    command, *arguments = server["args"]
    assert (Path(server["command"]).name, command) == ("memory-program", "serve")
    assert parse_flags(ServeConfig, arguments).doors.mcp == "stdio"


def test_the_optimised_prompt_of_the_docs_is_what_comes_out(tmp_path):
    config = quick(tmp_path, optimizer="gepa")
    with ModelServer(reply=Steerable(["reader"])) as server:
        console = Console(file=io.StringIO(), width=200)
        optimize(config, console=console, models=impatient(server.url))
    diff = (config.output_dir / "0-reader.diff").read_text(encoding="utf-8").splitlines()
    changes = [line for line in diff if line.startswith(("---", "+++", "-", "+", "#"))]
    verdict = next(line for line in console.file.getvalue().splitlines() if line.startswith("reader: "))
    text = (CHECKOUT / "docs/optimize.md").read_text(encoding="utf-8")
    example = next(block.text for block in _blocks(CHECKOUT / "docs/optimize.md") if block.language == "diff")
    assert example.splitlines() == changes
    assert f"\n{verdict.strip()}\n" in text
