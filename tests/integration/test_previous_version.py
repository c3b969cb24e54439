"""Data of version 0.1.0 (commit c575cb2) still opens: a run folder, its banks, and a saved program.

``tests/data/run-0.1.0`` is the folder of ``evaluate.py --systems memory,rag --num-test 6`` for one
conversation of the sample. ``program-0.1.0.json`` was saved by ``optimize.py --optimizer bootstrap``.
"""

import io
import json
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from memory_program.bank.__main__ import main as bank_command
from memory_program.bank.store import BankStore
from memory_program.configs.evaluate_config import EvaluateConfig
from memory_program.core.command_line import parse_flags
from memory_program.evaluation.evaluation_run import evaluate
from tests.conftest import CHECKOUT

DATA = CHECKOUT / "tests" / "data"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DATA / "run-0.1.0", tmp_path / "run"))


def config_of_the_run(folder: Path, *flags: str) -> EvaluateConfig:
    given = ["--config", str(folder / "config.json"), "--output-dir", str(folder), *flags]
    return parse_flags(EvaluateConfig, given)


def scores(results):
    return {
        name: (system["locomo_f1"]["all"], system["recall"], system["failures"])
        for name, system in results["systems"].items()
    }


def test_a_run_is_scored_again_to_the_same_digits(folder):
    before = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    results = evaluate(config_of_the_run(folder, "--mode", "report"), console=Console(file=io.StringIO()))
    assert results is not None
    assert scores(results) == scores(before)


def test_a_finished_run_continues_without_a_call(folder):
    def refuse(name: str, temperature: float):
        raise AssertionError(f"{name} is called, but every session and answer is recorded")

    records = {path: path.read_bytes() for path in folder.glob("*/*.jsonl") if path.stem != "questions"}
    assert len(records) == 4
    evaluate(config_of_the_run(folder), console=Console(file=io.StringIO()), models=refuse)
    assert {path: path.read_bytes() for path in records} == records


def test_settings_keep_their_values_under_their_new_names(folder):
    config = config_of_the_run(folder)
    assert config.system.retrieval.min_relative_score == 0.4
    assert config.system.writer.writer_max_turns == 1
    assert config.num_test == 6


def test_banks_are_listed(folder, capsys):
    url = f"sqlite:///{folder / 'banks.sqlite'}"
    assert bank_command(["list", "--db", url]) == 0
    namespace = capsys.readouterr().out.split()[0]
    assert bank_command(["list", "--db", url, "--namespace", namespace]) == 0
    assert "m1" in capsys.readouterr().out


def test_the_memories_of_old_banks_have_valid_times(folder):
    with BankStore.open_existing(f"sqlite:///{folder / 'banks.sqlite'}") as store:
        space = store.load(store.namespaces()[0])
    days = {one.session.date_time.date() for one in space.sessions.values()}
    held = space.valid_times().memories
    assert {memory.memory_id for memory in space.bank.live()} == {
        n for n, v in held.items() if not v.valid_to
    }
    assert all(v.valid_from is not None and v.valid_from <= max(days) for v in held.values())
    changed = [operation for operation in space.bank.operations() if operation.superseded]
    assert changed
    ended = changed[0].superseded[0]
    assert ended not in space.bank
    assert ended in space.at_date(held[ended].valid_from).bank
    assert len(space.at_date(max(days)).bank) == len(space.bank)


def test_a_saved_program_is_evaluated(tmp_path):
    config = EvaluateConfig(
        program=DATA / "program-0.1.0.json",
        systems="optimized",
        conversations="world-1013-3-held-out",
        num_test=1,
        mlflow=False,
        output_dir=tmp_path / "run",
    )
    results = evaluate(config, console=Console(file=io.StringIO()))
    assert results is not None
    assert not any(results["systems"]["optimized"]["failures"]["build"].values())
