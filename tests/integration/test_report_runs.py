"""Reports of runs without a browser: content and place of the page, and refused settings."""

import base64
import gzip
import html
import io
import json
import re
import shutil
from collections import Counter
from dataclasses import replace
from datetime import datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from locomo.judge.rubrics import Verdict
from locomo.types import BeamAbility, Conversation, Question, Session, Turn
from memory_program.bank.outcomes import Answer, Outcome, SessionRecord
from memory_program.bank.space import MemorySpace
from memory_program.bank.store import BankStore
from memory_program.configs.evaluate_config import EvaluateConfig
from memory_program.core.command_line import parse_flags
from memory_program.core.errors import ConfigError, RecordError
from memory_program.core.json_files import Json
from memory_program.core.mlflow_address import import_mlflow
from memory_program.evaluation.evaluation_run import evaluate, evaluate_oracle
from memory_program.evaluation.item_records import AnswerRecord, JudgeRecord
from memory_program.evaluation.question_selection import load_selection
from memory_program.evaluation.report.answer_browser import SizeBudget, build_browser_data
from memory_program.evaluation.report.report_page import write_html_report
from memory_program.evaluation.report.write_reports import (
    load_run_config,
    load_system_records,
    score_and_publish,
)
from memory_program.evaluation.scoring.question_scores import score_question
from memory_program.evaluation.scoring.score_signature import (
    SystemIdentity,
    SystemRun,
    identify_judge,
    write_run,
)
from memory_program.evaluation.scoring.system_records import ScoredSystem
from memory_program.evaluation.stages.judge_stage import list_answers_to_judge
from memory_program.models.usage import Usage
from memory_program.tracking import EXPERIMENT
from tests.evaluation_samples import write_conversations
from tests.report_samples import Tidying, evaluated, make


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The parent of two finished runs on the same data; ``two`` has seen one conversation of it."""
    folder = tmp_path_factory.mktemp("runs")
    evaluated(folder / "one")
    evaluated(folder / "two", folder / "talks.json", systems="extractive", conversations="talk-2")
    return folder


def reported(*folders: Path, **settings: Any) -> tuple[Json | None, str]:
    console = Console(file=io.StringIO(), width=200)
    config = EvaluateConfig(mode="report", runs=folders, **{"mlflow": False, **settings})
    return evaluate(config, console=console), console.file.getvalue()


def records(page: Path) -> list[Json]:
    (packed,) = re.findall(r'id="records">([^<]*)<', page.read_text(encoding="utf-8"))
    return json.loads(gzip.decompress(base64.b64decode(packed)))


def test_the_plots_of_a_run_are_pictures_beside_its_results(runs):
    for plot in ("score_by_category.png", "tokens_against_score.png"):
        assert (runs / "one" / plot).read_bytes().startswith(b"\x89PNG")


class Markup(HTMLParser):
    """The ids of a page, and every address that it names."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.ids: Counter[str] = Counter()
        self.addresses: list[str] = []
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id":
                self.ids[value or ""] += 1
            elif name in ("href", "src", "srcset", "action", "data", "xlink:href"):
                self.addresses.append(value or "")


def test_the_page_refers_to_no_other_address(runs):
    markup = Markup(runs / "one/report.html")
    assert [address for address in markup.addresses if not address.startswith("#")] == []
    assert len(markup.addresses) > 10
    named = {address[1:] for address in markup.addresses if not address.startswith("#question=")}
    assert named <= set(markup.ids)
    clips = re.compile("[mp][0-9a-f]{10}")  # drawn by matplotlib, and named by what they are
    assert {
        name: count for name, count in markup.ids.items() if count > 1 and not clips.fullmatch(name)
    } == {}


def test_the_page_holds_all_turns_banks_and_results(runs):
    (board,) = records(runs / "one/report.html")
    assert board["systems"] == ["memory", "extractive"]
    talk = board["conversations"]["talk-1"]
    assert talk["turns"]["D2:1"] == {
        "session": 1,
        "speaker": "Ana",
        "text": "Yesterday I photographed a ermine!",
    }
    assert talk["sessions"][1] == {"id": "session_2", "date": "2023-05-02 14:30"}
    assert list(talk["banks"]) == ["memory"]
    with BankStore.open_existing(f"sqlite:///{runs / 'one/banks.sqlite'}") as store:
        (namespace,) = (name for name in store.namespaces() if name.endswith("/talk-1"))
        versions = [operation.version for operation in store.load(namespace).bank.operations()]
    assert [operation["version"] for operation in talk["banks"]["memory"]] == versions
    question = board["questions"][0]
    assert (question["id"], question["evidence"], question["gold"]) == (
        "talk-1:q0",
        ["D1:1"],
        "photographed a dolphin",
    )
    memory, extractive = question["results"]
    assert (memory["state"], memory["fault"], memory["lost"]) == ("wrong", "stored but superseded", ["D1:1"])
    assert (extractive["state"], extractive["fault"], extractive["ranks"]) == ("right", None, [1])
    assert board["shown"][memory["shown"]] == ["m11"]


def test_a_report_of_a_run_writes_the_same_results_again(runs):
    kept = {name: (runs / "one" / name).read_bytes() for name in ("results.json", "report.html")}
    results, output = reported(runs / "one")
    assert results is not None
    assert list(results["systems"]) == ["memory", "extractive"]
    assert f"report: {runs / 'one/report.html'}" in output
    before, after = (
        json.loads(text) for text in (kept["results.json"], (runs / "one/results.json").read_bytes())
    )
    assert {**before, "config": None} == {**after, "config": None}
    assert (runs / "one/report.html").read_bytes() == kept["report.html"]


def test_a_report_tells_which_banks_are_not_as_recorded_and_blames_no_stage_for_their_answers(runs, tmp_path):
    shutil.copytree(runs / "one", tmp_path / "one")
    with BankStore.open_existing(f"sqlite:///{tmp_path / 'one/banks.sqlite'}") as store:
        (namespace,) = (name for name in store.namespaces() if name.endswith("/talk-1"))
        store.rewind_session(namespace, "session_3")
    results, output = reported(tmp_path / "one")
    assert results is not None
    memory = results["systems"]["memory"]
    assert memory["lost_banks"] == ["talk-1"]
    assert "not in the database as recorded: 1 (talk-1)" in " ".join(output.split())
    lines = (tmp_path / "one/memory/questions.jsonl").read_text(encoding="utf-8").splitlines()
    faults = {question["question_id"]: question["fault"] for question in map(json.loads, lines)}
    assert {fault for name, fault in faults.items() if name.startswith("talk-1")} == {None}
    assert memory["diagnosis"]["all"]["faults"]["stored but superseded"] == 1  # of talk-2
    assert [point["conversations"] for point in memory["growth"]] == [1, 1, 1]


def test_a_report_keeps_the_oracle_results_of_the_run(runs, tmp_path):
    shutil.copytree(runs / "one", tmp_path / "one")
    path = tmp_path / "one/results.json"
    results = json.loads(path.read_text())
    ceiling = results["ceiling"] = results["systems"]["memory"]
    path.write_text(json.dumps(results))
    again, _ = reported(tmp_path / "one")
    assert again is not None
    assert again["ceiling"] == ceiling
    assert '<th scope="row">oracle (upper bound)</th>' in (tmp_path / "one/report.html").read_text(
        encoding="utf-8"
    )
    assert evaluate_oracle(EvaluateConfig(mode="report", runs=(tmp_path / "one",))) is None


def test_a_moved_run_can_be_reported(runs, tmp_path):
    shutil.copytree(runs / "one", tmp_path / "moved")
    reported(tmp_path / "moved", report_file=tmp_path / "page.html")
    assert records(tmp_path / "page.html") == records(runs / "one/report.html")


def test_several_runs_share_a_page_and_are_compared_on_common_questions(runs):
    results, output = reported(runs / "one", runs / "two")
    assert results is None
    assert f"report of 2 runs: {runs / 'report.html'}" in output
    (board,) = records(runs / "report.html")
    assert board["systems"] == ["one: memory", "one: extractive", "two: extractive"]
    answered = [sum(result is not None for result in question["results"]) for question in board["questions"]]
    assert answered == [2] * 7 + [3] * 7
    page = (runs / "report.html").read_text(encoding="utf-8")
    cells = [re.findall(r"<t[hd](?: [^>]*)?>([^<]*)", row) for row in page.split("<tr>")]
    (compared,) = (row for row in cells if row[:2] == ["one: extractive", "two: extractive"])
    assert (compared[3], compared[-1]) == ("+0.000", "6")  # the six questions about talk-2 that have answers
    (within,) = (row for row in cells if row[:2] == ["one: memory", "one: extractive"])
    (pair,) = json.loads((runs / "one/results.json").read_text())["comparisons"]
    assert within[4] == f"{pair['low']:+.3f}..{pair['high']:+.3f}"


def test_the_page_of_several_runs_is_beside_the_first_one_named_by_a_dot(runs, monkeypatch):
    own = (runs / "one/report.html").read_bytes()
    monkeypatch.chdir(runs / "one")
    _, output = reported(Path(), Path("../two"))
    assert f"report of 2 runs: {runs.resolve() / 'report.html'}" in output
    assert (runs / "one/report.html").read_bytes() == own
    (board,) = records(runs / "report.html")
    assert board["systems"] == ["one: memory", "one: extractive", "two: extractive"]


def test_runs_with_different_questions_are_marked_as_not_comparable(runs, tmp_path):
    evaluated(tmp_path / "first", runs / "talks.json", systems="extractive", conversations="talk-1")
    reported(tmp_path / "first", runs / "two", runs / "one", report_file=tmp_path / "page.html")
    page = html.unescape((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert (
        "The systems were asked different questions (first: extractive 7, two: extractive 7, one: memory "
        "14, one: extractive 14; 0 are common to all), so their scores cannot be compared" in page
    )
    assert "No paired difference of first: extractive and two: extractive: they share no scored" in page


def judged(folder: Path, model: str, verdict: Verdict) -> None:
    """Judge a run, without a model, always alike."""
    config = load_run_config(folder, EvaluateConfig(mode="report", mlflow=False)).model_copy(
        update={"judge_model": model, "rubrics": "strict"}
    )
    (system,) = load_system_records(config, load_selection(config))
    system = replace(system, run=replace(system.run, judge=identify_judge(config)))
    for case in list_answers_to_judge(system):
        found = (case.key, case.question.question_id, case.rubric, verdict, Outcome.OK, "", Usage(), 0.0)
        system.journals.judgements.add(JudgeRecord(*found))
    system.journals.close()
    write_run(system.folder, system.run)


@pytest.mark.parametrize(("model", "is_comparable"), [("openai/kind", True), ("openai/harsh", False)])
def test_verdicts_of_different_judges_are_not_compared(runs, tmp_path, model, is_comparable):
    folders = [tmp_path / "kind", tmp_path / "other"]
    for folder, judge in zip(folders, ("openai/kind", model), strict=True):
        shutil.copytree(runs / "two", folder)
        judged(folder, judge, Verdict.CORRECT if judge == "openai/kind" else Verdict.WRONG)
    reported(*folders)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert ("judge/strict" in page) == is_comparable
    warning = (
        "kind: extractive and other: extractive are not compared by strict: their verdicts are by different"
    )
    assert (warning in page) != is_comparable


def test_runs_with_the_same_name_are_shown_by_their_paths(runs, tmp_path):
    shutil.copytree(runs / "two", tmp_path / "two")
    reported(runs / "two", tmp_path / "two", report_file=tmp_path / "page.html")
    (board,) = records(tmp_path / "page.html")
    assert board["systems"] == [f"{path.as_posix()}: extractive" for path in (runs / "two", tmp_path / "two")]
    assert "different questions" not in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_conversations_beyond_the_size_budget_are_abridged(runs, tmp_path):
    config = load_run_config(runs / "one", EvaluateConfig(mode="report", mlflow=False))
    run = score_and_publish(config, load_selection(config), Console(file=io.StringIO()))
    whole = records(runs / "one/report.html")[0]["conversations"]
    room = SizeBudget(len(json.dumps(whole["talk-1"], separators=(",", ":"))))
    write_html_report(tmp_path / "page.html", [run], room)
    assert room.remaining_chars == 0
    (board,) = records(tmp_path / "page.html")
    assert board["conversations"]["talk-1"] == whole["talk-1"]
    abridged = board["conversations"]["talk-2"]
    assert (abridged["isWhole"], abridged["banks"]) == (False, {})
    assert sorted(abridged["turns"]) == ["D1:1", "D1:3", "D2:1", "D2:3", "D3:1", "D3:3"]
    assert "1 conversations are shown with their evidence turns only" in (tmp_path / "page.html").read_text()


def test_pages_are_logged_to_mlflow(runs):
    uri = f"sqlite:///{runs / 'mlflow.db'}"
    evaluated(runs / "two", runs / "talks.json", systems="extractive", conversations="talk-2", mlflow=True)
    reported(runs / "one", runs / "two", mlflow=True)
    client = import_mlflow().MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name(EXPERIMENT)
    parents = {
        run.info.run_name: [file.path for file in client.list_artifacts(run.info.run_id)]
        for run in client.search_runs([experiment.experiment_id])
        if "mlflow.parentRunId" not in run.data.tags
    }
    assert parents["report of one, two"] == ["report.html"]
    assert "report.html" in parents["two on talks"]
    assert "one on talks" not in parents  # was run without MLflow


def test_run_folders_are_positional_arguments():
    config = parse_flags(
        EvaluateConfig, ["--mode", "report", "runs/a", "runs/b", "--report-file", "both.html"]
    )
    assert config.runs == (Path("runs/a"), Path("runs/b"))
    assert config.report_file == Path("both.html")


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"mode": "full"}, r"runs=\['runs/a'\] are folders to report, and mode is 'full': add --mode report"),
        ({"output_dir": "elsewhere"}, "output_dir='elsewhere' cannot be changed in a report of 'runs/a'"),
        (
            {"seed": 3},
            r"seed=3 cannot be changed in a report of 'runs/a'.*: leave it out, or .* --output-dir",
        ),
    ],
)
def test_settings_that_do_not_fit_a_report_of_runs_are_refused(settings, complaint):
    with pytest.raises(ConfigError, match=complaint):
        EvaluateConfig(**{"mode": "report", "runs": (Path("runs/a"),), **settings})


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, r"no run is recorded in .*: name a folder that was an --output-dir"),
        ("{", r"config.json' does not hold the settings of a run"),
        ("[1]", r"config.json' does not hold the settings of a run"),
        ("{}", r"config.json' does not hold the settings of a run \(it lacks dataset, data, split, systems"),
    ],
)
def test_a_folder_without_a_run_is_refused(tmp_path, content, complaint):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(RecordError, match=complaint):
        reported(tmp_path)


def test_a_run_that_was_stopped_is_reported_with_the_systems_that_it_began(tmp_path):
    class Stopping(Tidying):
        def remember(self, space: MemorySpace, session: Session) -> SessionRecord:
            if session.number == 2:
                raise KeyboardInterrupt
            return super().remember(space, session)

    data = write_conversations(tmp_path / "talks.json", 2, sessions=3)
    config = EvaluateConfig(
        dataset=str(data),
        output_dir=tmp_path / "run",
        systems="extractive,memory,no-memory",
        writer_model="openai/writer",
        reader_model="openai/reader",
        mlflow=False,
    )
    with pytest.raises(KeyboardInterrupt):
        evaluate(
            config,
            console=Console(file=io.StringIO()),
            system_factory=lambda name, settings: Stopping() if name == "memory" else make(name, settings),
            models=lambda name, temperature: None,
        )
    results, output = reported(tmp_path / "run")
    assert results is not None
    assert list(results["systems"]) == ["extractive", "memory"]
    assert results["systems"]["extractive"]["failures"]["all"] == 0
    assert "no-memory: left out, since nothing of it is recorded yet" in output


@pytest.mark.parametrize("order", [("one", "short"), ("short", "one")])
def test_the_whole_conversation_is_on_the_page_beside_a_run_of_its_first_session(runs, tmp_path, order):
    shutil.copytree(runs / "one", tmp_path / "one")
    evaluated(tmp_path / "short", runs / "talks.json", systems="extractive", sessions=1)
    reported(*(tmp_path / name for name in order), report_file=tmp_path / "both.html")
    (board,) = records(tmp_path / "both.html")
    assert len(board["conversations"]["talk-1"]["sessions"]) == 3


def test_corrected_gold_has_a_part_of_the_page_of_its_own(locomo_path, tmp_path):
    folders = []
    corrected = {"question_id": "locomo_0_qa0", "error_type": "WRONG_CITATION"}
    asked = json.loads(locomo_path.read_bytes())[0]["qa"][0]["question"].strip()
    errors = [{**corrected, "question": asked, "correct_evidence": ["D1:1", "D1:2", "D1:5"]}]
    (tmp_path / "errors.json").write_text(json.dumps(errors))
    for name, settings in (("plain", {}), ("audited", {"audited": tmp_path / "errors.json"})):
        config = EvaluateConfig(
            dataset="locomo",
            data=locomo_path,
            output_dir=tmp_path / name,
            systems="extractive",
            conversations="conv-26",
            num_test=3,
            mlflow=False,
            **settings,
        )
        evaluate(config, console=Console(file=io.StringIO()))
        folders.append(tmp_path / name)
    reported(*folders, report_file=tmp_path / "both.html")
    boards = records(tmp_path / "both.html")
    assert [len(board["questions"][0]["evidence"]) for board in boards] == [1, 3]
    assert [len(board["questions"][0]["results"][0]["ranks"]) for board in boards] == [1, 3]


def test_an_answer_without_a_score_is_neither_right_nor_wrong(tmp_path):
    asked = Question("c", 0, "?", BeamAbility.EXTRACTION, "x", nuggets=("n",))
    said = AnswerRecord("k", "c:q0", Answer("anything", Outcome.OK), Usage(), 0.0)
    settings = {"top_k": 1, "reader_budget": 1}
    run = SystemRun(SystemIdentity("rag", None, None, 0.0, settings, "p", "b", "a"))
    system = ScoredSystem(run, (score_question(asked, said, {}, [None]),), (), {}, (None,), ())
    turn = Turn("D1:1", "Ana", "Hello")
    talk = Conversation("c", ("Ana", "Ben"), (Session(1, datetime(2023, 5, 1), (turn,)),), (asked,))
    content = build_browser_data("x", {"c": talk}, [asked], {"rag": system}, SizeBudget()).content
    assert content["questions"][0]["results"][0]["state"] == "unscored"
    assert content["metric"] == "nugget score"
