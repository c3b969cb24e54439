"""The embedded model as it is shipped: its size, its answers, and the default run of evaluate.py."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from locomo.metrics import locomo_f1
from memory_program.agents.systems import make_system
from memory_program.bank.space import MemorySpace
from memory_program.configs.evaluate_config import SystemSettings
from memory_program.models.factory import language_model
from memory_program.worlds import sample_worlds
from memory_program.worlds.oracle import oracle_lm
from tests.browser import Opened

MAX_LINES = 40

pytestmark = pytest.mark.timeout(900)  # three minutes on an idle machine
CHECKOUT = Path(__file__).parents[2]
POCKET = CHECKOUT / "memory_program" / "pocket"
MODELS = {"pocket": POCKET / "weights", "pocket-base": POCKET / "weights-base"}


@pytest.mark.parametrize("folder", MODELS.values(), ids=MODELS)
def test_the_weights_are_few_and_in_half_precision(folder):
    assert sum(file.stat().st_size for file in folder.iterdir()) < 16e6
    with safe_open(folder / "model.safetensors", "pt") as weights:
        tensors = [weights.get_tensor(name) for name in weights.keys()]  # noqa: SIM118  # no mapping
    assert {tensor.dtype for tensor in tensors} == {torch.float16}
    assert sum(tensor.numel() for tensor in tensors) < 8e6


def test_it_answers_questions_about_worlds_that_it_never_saw():
    world = sample_worlds()[0]
    space = MemorySpace("sample")
    lms = {"writer_lm": oracle_lm([world]), "reader_lm": language_model("pocket")}
    program = make_system("memory", SystemSettings(), **lms)
    for session in world.conversation.sessions:
        program.remember(space, session)
    scores = [
        locomo_f1(program.ask(space, question.text).text, question.answer or "", question.category)
        for question in world.conversation.questions
    ]
    assert sum(scores) / len(scores) > 0.3


@pytest.fixture(scope="module")
def default_run(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """Run ``python evaluate.py`` on a machine that reaches no network."""
    folder = tmp_path_factory.mktemp("run")
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    done = subprocess.run(
        [sys.executable, str(CHECKOUT / "evaluate.py")],
        cwd=folder,
        env={**os.environ, **nowhere},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    results = json.loads((folder / "runs" / "evaluate" / "results.json").read_text())
    return {**results, "printed": done.stdout, "report": folder / "runs" / "evaluate" / "report.html"}


def test_by_default_memory_is_compared_on_the_sample_with_the_embedded_model(default_run):
    assert list(default_run["systems"]) == ["memory", "rag", "full-context", "no-memory"]
    assert {system["run"]["system"]["reader"] for system in default_run["systems"].values()} == {"pocket"}
    assert default_run["dataset"]["name"] == "sample"
    assert [system["judge"] for system in default_run["systems"].values()] == [None] * 4


def test_a_default_run_prints_at_most_40_lines(default_run):
    printed = default_run["printed"]
    lines = [line for line in printed.splitlines() if " done, " not in line]  # progress, once a minute
    assert len(lines) <= MAX_LINES, printed
    for title in ("official F1", "Evidence recall and cost", "Error breakdown by pipeline stage"):
        assert title in printed
    for place in ("results.json", "report.html", "mlflow ui"):
        assert place in printed
    for noise in ("WARNING", "deprecated", "$0.0000", "Prompt cache"):
        assert noise not in printed


@pytest.mark.parametrize("other", ["full-context", "no-memory"])
def test_memory_is_better_by_more_than_chance(default_run, other):
    memory, than = (default_run["systems"][name]["locomo_f1"]["all"] for name in ("memory", other))
    assert memory["low"] > than["high"]


def test_memory_shows_the_reader_a_quarter_of_the_tokens(default_run):
    memory, whole = (
        default_run["systems"][name]["tokens_per_question"] for name in ("memory", "full-context")
    )
    assert memory * 4 <= whole


def test_the_oracle_ceiling_is_printed_beside_the_scores(default_run):
    assert default_run["ceiling"]["locomo_f1"]["all"]["value"] > 0.95
    assert "oracle (upper bound)" in default_run["printed"]


def test_the_report_opens_offline_and_leads_from_a_question_to_its_evidence(default_run, browser):
    window = Opened(browser, default_run["report"])
    page = window.page
    score = default_run["systems"]["memory"]["locomo_f1"]["all"]["value"]
    assert page.get_by_text(f"{score:.3f}").first.is_visible()
    question = next(q for q in sample_worlds()[0].conversation.questions if q.evidence)
    page.locator("#filters [name=words]").fill(question.text)
    page.locator("#list button").first.click()
    assert page.locator("#question h3").inner_text() == question.text
    assert page.locator(f"#evidence [data-turn='{question.evidence[0]}']").is_visible()
    asked, complaints = window.requests, window.complaints
    window.close()
    assert asked == [default_run["report"].as_uri()]
    assert complaints == []
