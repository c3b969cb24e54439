"""MLflow's own pages in a browser, while ``train.py`` runs: the curves have points before the run ends."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import mlflow
import pytest
from playwright.sync_api import Browser

from memory_program.core.checkpoints import read_log
from memory_program.core.json_files import read_json_file
from tests.conftest import CHECKOUT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]  # a server, a browser and a training at once
_PATIENCE_MS = 120_000


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The address of an MLflow server on the database of a run."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable, "-m", "mlflow", "server", "--port", str(port), "--workers", "1",
        "--backend-store-uri", f"sqlite:///{tmp_path / 'runs/mlflow.db'}",
    ]  # fmt: skip
    (tmp_path / "runs").mkdir()
    with (tmp_path / "server.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        until = time.monotonic() + 300
        while time.monotonic() < until:
            try:
                if httpx.get(f"http://127.0.0.1:{port}/health").is_success:
                    break
            except httpx.HTTPError:
                time.sleep(0.5)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def test_the_curves_of_a_running_training_have_points(browser: Browser, server: str, tmp_path: Path):
    folder = tmp_path / "runs" / "train"
    command = [
        sys.executable, str(CHECKOUT / "train.py"), "--output-dir", str(folder), "--num-train", "8",
        "--num-val", "2", "--examples-per-step", "1", "--group-size", "4", "--num-train-steps", "100",
        "--val-every", "100", "--tracking-uri", server,
    ]  # fmt: skip
    with (tmp_path / "train.log").open("w") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
    try:
        # MLflow's page shows charts of the metrics that were there when it was opened
        while not (folder / "tracking.json").exists() or len(read_log(folder)) < 5:
            assert process.poll() is None, (tmp_path / "train.log").read_text()
            time.sleep(0.5)
        receipt, page = read_json_file(folder / "tracking.json"), browser.new_page()
        address = f"{server}/#/experiments/1/runs/{receipt['run_id']}"
        page.goto(address)
        page.get_by_text("Running").first.wait_for(timeout=_PATIENCE_MS)
        assert page.get_by_text("train.py").first.is_visible()
        assert page.get_by_text("sample (").first.is_visible()
        page.goto(f"{address}/model-metrics")
        page.get_by_placeholder("Search metric charts").fill("^reward$", timeout=_PATIENCE_MS)
        points = page.locator("path.point")
        points.nth(2).wait_for(state="attached", timeout=_PATIENCE_MS)
        assert process.poll() is None, "the training still runs"
    finally:
        process.kill()
        process.wait()
    until, client = time.monotonic() + _PATIENCE_MS / 1000, mlflow.MlflowClient(tracking_uri=server)
    while client.get_run(receipt["run_id"]).info.status != "KILLED":
        assert time.monotonic() < until, "the killed run still has the status RUNNING"
        time.sleep(0.5)
    page.goto(f"{server}/#/experiments/1/runs")
    page.get_by_text("train pocket-base on sample").first.wait_for(timeout=_PATIENCE_MS)
