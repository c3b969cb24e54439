"""``evaluate.py`` itself, in processes of its own, over a server of its own."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

from memory_program.bank.bank import MemoryBank
from memory_program.bank.store import BankStore
from memory_program.core.json_files import Json
from memory_program.core.mlflow_address import import_mlflow
from memory_program.tracking import EXPERIMENT
from tests.conftest import CHECKOUT
from tests.evaluation_samples import write_conversations
from tests.model_server import Behaviour, ModelServer, at_random


def start(arguments: list[str], server: ModelServer) -> subprocess.Popen[str]:
    command = [sys.executable, str(CHECKOUT / "evaluate.py"), *arguments, "--api-base", server.url]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> str:
    output, errors = process.communicate(timeout=250)
    assert process.returncode == 0, errors
    return output


def flags(data: Path, output_dir: Path) -> list[str]:
    fixed = "--systems memory --model openai/test --no-mlflow --rubrics lenient"
    return [*shlex.split(fixed), "--dataset", str(data), "--output-dir", str(output_dir)]


def untimed(output_dir: Path) -> Json:
    results = json.loads(
        (output_dir / "results.json").read_text(),
        object_hook=lambda found: {name: value for name, value in found.items() if name != "seconds"},
    )
    return results["systems"]


def test_the_killed_script_gives_the_same_results(tmp_path):
    data = write_conversations(tmp_path / "talks.json", 3, sessions=6)
    with ModelServer(
        at_random(0.1, seed=4, faults=(Behaviour.CUT, Behaviour.REFUSAL)), latency_s=0.1
    ) as server:
        whole = start(flags(data, tmp_path / "whole"), server)
        for journal, lines in (("build.jsonl", 7), ("answers.jsonl", 5)):
            process = start(flags(data, tmp_path / "killed"), server)
            path = tmp_path / "killed/memory" / journal
            while not (path.exists() and path.read_bytes().count(b"\n") >= lines):
                assert process.poll() is None, process.communicate()
                time.sleep(0.005)
            os.kill(process.pid, signal.SIGKILL)
            process.communicate(timeout=60)
        finish(start(flags(data, tmp_path / "killed"), server))
        finish(whole)
    killed, unbroken = (untimed(tmp_path / name)["memory"] for name in ("killed", "whole"))
    # A session that was written down but not yet saved is paid for twice, and that is told.
    assert killed.pop("calls") >= unbroken.pop("calls")
    again, once = killed["usage"].pop("build"), unbroken["usage"].pop("build")
    assert all(again[name] >= once[name] for name in ("calls", "input_tokens", "output_tokens"))
    assert killed == unbroken
    with BankStore(f"sqlite:///{tmp_path / 'killed/banks.sqlite'}") as store:
        for namespace in store.namespaces():
            space = store.load(namespace)
            assert len(space.sessions) == 6
            assert MemoryBank.replay(namespace, space.bank.operations()).live() == space.bank.live()


def test_the_script_writes_traces_when_asked(tmp_path):
    data = write_conversations(tmp_path / "talks.json", 1, sessions=1)
    arguments = [flag for flag in flags(data, tmp_path / "runs/one") if flag != "--no-mlflow"]
    with ModelServer() as server:
        finish(start([*arguments, "--traces"], server))
    client = import_mlflow().MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'runs/mlflow.db'}")
    experiment = client.get_experiment_by_name(EXPERIMENT)
    traces = client.search_traces([experiment.experiment_id])
    spans = {span.name for trace in traces for span in trace.data.spans}
    assert len(traces) >= 4
    assert any("Predict" in name for name in spans), spans
    (system,) = client.search_runs([experiment.experiment_id], "attributes.run_name = 'memory'")
    on_its_page = client.search_traces(locations=[experiment.experiment_id], run_id=system.info.run_id)
    assert {trace.info.trace_id for trace in on_its_page} == {trace.info.trace_id for trace in traces}
    labels = [trace.info.tags for trace in traces]
    assert {(of["system"], of["conversation_id"]) for of in labels} == {("memory", "talk-1")}
    assert {of["session_id"] for of in labels if "question_id" not in of} == {"session_1"}
    answers = (tmp_path / "runs/one/memory/questions.jsonl").read_text().splitlines()
    asked = {of["question_id"] for of in labels if "session_id" not in of}
    assert asked == {json.loads(line)["question_id"] for line in answers}
