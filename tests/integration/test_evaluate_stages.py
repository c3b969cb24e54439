"""The stages of a run over real files and a real database, with systems that need no model."""

import hashlib
import io
import json
import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from locomo.judge.judge import Judgement
from locomo.judge.rubrics import Rubric, Verdict
from locomo.locomo import read_conversations
from locomo.types import Question
from memory_program.agents.program import MemoryProgram, MemorySystem
from memory_program.agents.writer import MemoryWriter, Proposal
from memory_program.bank.bank import MemoryBank
from memory_program.bank.outcomes import CallFailure, Outcome
from memory_program.bank.record_json import session_to_json
from memory_program.bank.store import BankStore
from memory_program.configs.evaluate_config import EvaluateConfig
from memory_program.core.errors import (
    BudgetExceededError,
    ConfigError,
    ModelError,
    RecordError,
    RunInUseError,
    StoreError,
)
from memory_program.core.journal import Journal
from memory_program.core.json_files import Json
from memory_program.evaluation.evaluation_run import evaluate
from memory_program.evaluation.item_records import JudgeRecord
from memory_program.evaluation.oracle_eval import oracle_run
from memory_program.evaluation.question_selection import load_selection
from memory_program.evaluation.report.results_json import EVALUATION_RESULTS_FILE
from memory_program.evaluation.report.score_tables import results_tables
from memory_program.evaluation.report.write_reports import load_system_records
from memory_program.evaluation.scoring.score_signature import identify_judge, read_run, write_run
from memory_program.evaluation.seen_data import SFT_CONVERSATIONS_FILE, sft_conversation_key
from memory_program.evaluation.stages.judge_stage import AnswerToJudge, judge_cases, list_answers_to_judge
from memory_program.evaluation.stages.limits import RunLimits
from memory_program.evaluation.stages.workers import Workers
from memory_program.models.usage import CallRecord, Usage, record_call
from tests.competent_model import Prompt
from tests.evaluation_samples import (
    Failing,
    FailingNotes,
    NoteTaking,
    Paid,
    Quoting,
    maker,
    write_conversations,
)
from tests.model_server import ModelServer
from tests.weights import write_model

pytestmark = pytest.mark.usefixtures("plots_are_not_drawn")

SESSIONS, QUESTIONS = 4, 9  # of each conversation


def no_model(name: str, temperature: float) -> Any:
    raise AssertionError(f"nothing here needs the model {name!r}")


def any_model(name: str, temperature: float) -> Any:
    return None  # the systems of these tests have no part that takes one


class Bench:
    """A data file, a folder, and runs of one system over them."""

    def __init__(self, folder: Path, conversations: int = 3) -> None:
        self.folder = folder
        self.data = write_conversations(folder / "talks.json", conversations, SESSIONS)
        self.output = ""

    def config(self, **settings: Any) -> EvaluateConfig:
        defaults = {
            "dataset": str(self.data),
            "systems": "extractive",
            "mlflow": False,
            "output_dir": self.folder / "run",
        }
        return EvaluateConfig(**{**defaults, **settings})

    def run(
        self, system: MemorySystem, models: Callable[[str, float], Any] = no_model, **settings: Any
    ) -> Json | None:
        console = Console(file=io.StringIO(), width=120)
        try:
            return evaluate(
                self.config(**settings), console=console, system_factory=maker(system), models=models
            )
        finally:
            self.output = console.file.getvalue()

    def run_memory(self, system: MemorySystem, **settings: Any) -> Json | None:
        models = {"writer_model": "openai/writer", "reader_model": "openai/reader"}
        return self.run(system, any_model, **{"systems": "memory", **models, **settings})


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def numbers(results: Json | None) -> Json:
    """The results without what differs from one process to the next."""
    assert results is not None
    kept = {name: value for name, value in results.items() if name not in ("git_commit", "config")}
    return json.loads(json.dumps(kept), object_hook=_untimed)


def without_commit(results: Json | None) -> Json:
    """The results without the commit, which may move while tests run."""
    assert results is not None
    return {name: value for name, value in results.items() if name != "git_commit"}


def _untimed(found: Json) -> Json:
    return {name: value for name, value in found.items() if name != "seconds"}


@pytest.mark.parametrize(
    "refused", [{"mode": "judge"}, {"systems": "rag", "reader_model": "openai/typo"}, {"seed": 4}]
)
def test_a_refused_model_leaves_the_folder_unchanged(bench, refused):
    def typo(name: str, temperature: float) -> Any:
        raise ModelError(f"{name} needs a key")

    bench.run(Quoting())
    before = {path: path.read_bytes() for path in (bench.folder / "run").rglob("*") if path.is_file()}
    with pytest.raises(ModelError, match="openai/typo needs a key"):
        bench.run(Quoting(), typo, **{"judge_model": "openai/typo", **refused})
    assert {path: path.read_bytes() for path in before} == before
    assert bench.run(Quoting(), mode="report") is not None


def test_a_full_run_scores_every_question_and_writes_the_results(bench):
    results = bench.run(Quoting())
    assert results is not None
    system = results["systems"]["extractive"]
    assert system["locomo_f1"]["all"]["n"] == 3 * (QUESTIONS - 1)
    assert system["abstention"]["n"] == 3
    assert system["recall"]["5"] == 1.0
    assert system["calls"] == 0
    assert system["tokens_per_question"] == 20
    assert system["failures"]["all"] == 0
    assert system["memory"]["sessions"] == 3 * SESSIONS
    assert json.loads((bench.folder / "run" / EVALUATION_RESULTS_FILE).read_text()) == results
    lines = (bench.folder / "run/extractive/questions.jsonl").read_text().splitlines()
    assert len(lines) == 3 * QUESTIONS
    assert json.loads(lines[0])["gold"] == "photographed a dolphin"


def test_results_name_their_data_settings_and_versions(bench):
    results = bench.run(Quoting(), seed=7, top_k=3)
    assert results is not None
    assert results["dataset"]["conversations"] == ["talk-1", "talk-2", "talk-3"]
    assert len(results["dataset"]["sha256"]) == len(results["lock_hash"]) == 64
    assert (results["seed"], results["config"]["top_k"], results["lm_cache"]) == (7, 3, "off")
    signature = results["systems"]["extractive"]["signature"]
    version = results["dataset"]["sha256"][:8]
    assert signature.startswith(f"locomo_f1|cat:1-4|n:24|judge:none|data:{version}|v:")
    assert "|system:extractive|top_k:3|" in signature


def test_a_signature_includes_the_weights_of_a_local_model(bench):
    model = write_model(bench.folder / "model", b"first")
    settings = {"writer_model": model, "reader_model": model}
    first, again, other = (
        results["systems"]["memory"]
        for weights in (b"first", b"first", b"other")
        if write_model(bench.folder / "model", weights)
        and (results := bench.run_memory(NoteTaking(), **settings))
    )
    assert first["signature"] == again["signature"] != other["signature"]
    for name in ("writer", "reader"):
        assert f"|{name}:{model}@" in first["signature"]
    report = bench.run_memory(NoteTaking(), mode="report", **settings)
    assert report is not None
    assert report["systems"]["memory"]["signature"] == other["signature"]
    write_model(bench.folder / "model", b"third")  # what is there now wrote nothing of the run
    report = bench.run_memory(NoteTaking(), mode="report", **settings)
    assert report is not None
    assert report["systems"]["memory"]["signature"] == other["signature"]


@pytest.mark.parametrize("system", [Quoting, NoteTaking])
def test_a_second_run_does_no_work_and_gives_identical_numbers(bench, system):
    run = bench.run_memory if system is NoteTaking else bench.run
    first = run(system())
    again = system()
    second = run(again)
    assert again.asked == again.remembered == []
    assert without_commit(second) == without_commit(first)
    assert bench.output.count(f": 0 of {3 * SESSIONS} to do") == 1
    assert bench.output.count(f": 0 of {3 * QUESTIONS} to do") == 1


def test_concurrency_does_not_change_results(bench, tmp_path):
    one = bench.run_memory(NoteTaking(), concurrency=1)
    eight = bench.run_memory(NoteTaking(), concurrency=8, output_dir=tmp_path / "other")
    assert numbers(one) == numbers(eight)


def test_a_bank_is_built_once_and_equals_its_replayed_log(bench):
    system = NoteTaking()
    bench.run_memory(system)
    assert len(system.remembered) == len(set(system.remembered)) == 3 * SESSIONS
    with BankStore(f"sqlite:///{bench.folder / 'run/banks.sqlite'}") as store:
        assert [name.partition("/")[2] for name in sorted(store.namespaces())]
        for namespace in store.namespaces():
            bank = store.load(namespace).bank
            assert bank.version == SESSIONS * 3
            replayed = MemoryBank.replay(namespace, bank.operations())
            assert replayed.live() == bank.live()


def test_another_reader_answers_again_from_the_same_banks(bench):
    bench.run_memory(NoteTaking())
    other = NoteTaking()
    bench.run_memory(other, reader_model="openai/another")
    assert other.remembered == []
    assert len(other.asked) == 3 * QUESTIONS


@pytest.mark.parametrize(
    "change", [{"writer_model": "openai/other"}, {"memory_budget": 99}, {"max_turns": 2}]
)
def test_another_writer_builds_again(bench, change):
    bench.run_memory(NoteTaking())
    other = NoteTaking()
    bench.run_memory(other, **change)
    assert len(other.remembered) == 3 * SESSIONS


def test_a_changed_conversation_rebuilds_only_itself(bench):
    bench.run_memory(NoteTaking())
    talks = json.loads(bench.data.read_text())
    talks[1]["conversation"]["session_2"][0]["text"] = "Yesterday I photographed a comet!"
    bench.data.write_text(json.dumps(talks))
    other = NoteTaking()
    bench.run_memory(other)
    assert sorted(other.remembered) == [f"talk-2:session_{number}" for number in range(1, SESSIONS + 1)]
    assert len(other.asked) == QUESTIONS


def test_each_stage_uses_the_records_of_the_earlier_one(bench):
    builder, answerer = NoteTaking(), NoteTaking()
    assert bench.run_memory(builder, mode="build") is None
    assert builder.asked == []
    assert bench.run_memory(answerer, mode="answer") is None
    assert answerer.remembered == []
    assert len(answerer.asked) == 3 * QUESTIONS
    reported = bench.run(NoteTaking(), mode="report", systems="memory")
    assert numbers(reported) == numbers(bench.run_memory(NoteTaking()))


def test_answering_without_banks_is_refused(bench):
    with pytest.raises(RecordError, match=r"12 sessions of system 'memory' are not built .*--mode build"):
        bench.run_memory(NoteTaking(), mode="answer")


@pytest.mark.parametrize("mode", ["report", "judge"])
def test_report_and_judge_need_records(bench, mode):
    with pytest.raises(RecordError, match=r"no run is recorded in .*extractive.*--mode full"):
        bench.run(Quoting(), mode=mode, judge_model="openai/judge")


def test_judging_with_flags_of_other_data_is_refused(bench):
    bench.run(Quoting())
    kept = {path: path.read_bytes() for path in (bench.folder / "run").rglob("*.json")}
    other = write_conversations(bench.folder / "other.json", 5, sessions=2)
    with pytest.raises(RecordError, match=r"no answer of system 'extractive' .*: use the flags .*--dataset"):
        bench.run(Quoting(), mode="judge", judge_model="openai/judge", dataset=str(other))
    assert {path: path.read_bytes() for path in (bench.folder / "run").rglob("*.json")} == kept


def test_a_damaged_program_of_a_run_is_written_again(bench):
    bench.run_memory(NoteTaking())
    path = bench.folder / "run" / "memory" / "program.json"
    whole = path.read_text()
    for damage in ("", "[]", "null"):
        path.write_text(damage)
        bench.run_memory(NoteTaking())
        assert path.read_text() == whole


def test_judging_names_damaged_settings(bench):
    bench.run(Quoting())
    (bench.folder / "run" / "config.json").write_text("")
    complaint = r"config.json' is damaged \(.*\): run the command that made the answers again"
    with pytest.raises(RecordError, match=complaint):
        bench.run(Quoting(), any_model, mode="judge", judge_model="openai/judge")


def test_optimisation_data_is_known_without_the_program_file(bench):
    program = bench.folder / "program.json"
    NoteTaking().save(str(program))
    sha256 = hashlib.sha256(bench.data.read_bytes()).hexdigest()
    seen = {"train": ["talk-1"], "val": ["talk-3"], "sha256": sha256}
    saved = json.loads(program.read_text())
    saved["metadata"]["optimization"] = {"dataset": seen}
    program.write_text(json.dumps(saved))
    bench.run_memory(NoteTaking(), systems="optimized", program=program)
    warning = "optimized: it was optimised or trained on 2 of these conversations: quote --split test"
    assert warning in bench.output
    program.unlink()
    results = bench.run(NoteTaking(), mode="report", systems="optimized", program=program)
    assert results is not None
    assert results["systems"]["optimized"]["chosen_on"] == ["talk-1", "talk-3"]
    assert warning in bench.output


def test_conversations_that_weights_were_trained_on_are_named(bench):
    model = write_model(bench.folder / "model", b"weights")
    program, listed = bench.folder / "model" / "program.json", bench.folder / "model" / SFT_CONVERSATIONS_FILE
    sha256 = hashlib.sha256(bench.data.read_bytes()).hexdigest()
    rewarded = {"train": ["talk-1"], "val": [], "sha256": sha256}
    program.write_text(json.dumps({"metadata": {"optimization": {"dataset": rewarded}}}))
    (conversation,) = (one for one in read_conversations(bench.data) if one.conversation_id == "talk-3")
    first = json.loads(session_to_json(conversation.sessions[0]))
    listed.write_text(json.dumps({"conversations": [sft_conversation_key("talk-3", first)]}))
    results = bench.run_memory(NoteTaking(), reader_model=model)
    assert results is not None
    assert results["systems"]["memory"]["chosen_on"] == ["talk-1", "talk-3"]
    assert "memory: it was optimised or trained on 2 of these conversations" in bench.output


def test_a_report_of_some_conversations_scores_only_those(bench):
    whole = bench.run(Quoting())
    part = bench.run(Quoting(), mode="report", conversations="talk-2")
    assert whole is not None
    assert part is not None
    assert part["systems"]["extractive"]["locomo_f1"]["all"]["n"] == QUESTIONS - 1
    assert "|conversations:talk-2" in part["systems"]["extractive"]["signature"]


def test_a_report_warns_of_missing_results(bench):
    bench.run(Quoting(), conversations="talk-1")
    results = bench.run(Quoting(), mode="report")
    assert results is not None
    failures = results["systems"]["extractive"]["failures"]
    assert failures["answer"]["missing"] == 2 * QUESTIONS
    assert failures["build"]["missing"] == 2 * SESSIONS
    assert f"extractive: {2 * QUESTIONS} missing in answer: run the same with --mode full" in bench.output


def test_the_first_questions_build_only_their_conversation(bench):
    system = Quoting()
    results = bench.run(system, num_test=4)
    assert len(system.asked) == len(system.remembered) == 4
    assert results is not None
    assert results["dataset"]["conversations"] == ["talk-1"]


def test_an_unknown_conversation_is_refused(bench):
    with pytest.raises(
        ConfigError, match=r"unknown conversation 'talk-9' .*choose from talk-1, talk-2, talk-3"
    ):
        bench.run(Quoting(), conversations="talk-9")


# -- failures ------------------------------------------------------------------------------------


def about_moving(question: str) -> bool:
    return "Who is moving" in question


def test_a_failed_answer_is_counted_and_never_scored(bench):
    results = bench.run(Failing(about_moving))
    assert results is not None
    system = results["systems"]["extractive"]
    assert system["failures"]["answer"]["error"] == system["failures"]["all"] == 3 * SESSIONS
    assert system["locomo_f1"]["all"]["n"] == 3 * (QUESTIONS - 1) - 3 * SESSIONS
    assert "12 failed in answer (12 error), counted but not scored; --retry-errors" in bench.output


def test_failed_answers_stay_until_they_are_retried(bench):
    failed = bench.run(Failing(about_moving))
    again = Quoting()
    assert without_commit(bench.run(again)) == without_commit(failed)
    assert again.asked == []
    retried = Quoting()
    results = bench.run(retried, retry_errors=True)
    assert len(retried.asked) == 3 * SESSIONS
    assert results is not None
    assert results["systems"]["extractive"]["failures"]["all"] == 0


def test_too_many_errors_end_the_run_and_keep_finished_work(bench):
    with pytest.raises(BudgetExceededError, match=r"3 calls failed, more than max_errors=2; .*no route"):
        bench.run(Failing(about_moving), max_errors=2, concurrency=1)
    kept = (bench.folder / "run/extractive/answers.jsonl").read_text().splitlines()
    assert 3 <= len(kept) < 3 * QUESTIONS
    rest = Quoting()
    bench.run(rest)
    assert len(rest.asked) == 3 * QUESTIONS - len(kept)


def test_a_system_that_never_works_is_stopped(bench):
    system = Failing(lambda question: True)
    with pytest.raises(
        BudgetExceededError, match=r"the first 20 items all failed; first failure: .*no route"
    ):
        bench.run(system, concurrency=1)
    assert len(system.asked) == 20


@pytest.mark.parametrize("lost", ["session_1", "session_2", "session_4"])
def test_failed_sessions_are_rebuilt_with_those_after_them(bench, tmp_path, lost):
    results = bench.run_memory(FailingNotes(lambda session_id: session_id == lost))
    assert results is not None
    system = results["systems"]["memory"]
    assert system["failures"]["build"] == {"error": 3, "unparsed": 0, "truncated": 0, "missing": 0}
    assert system["memory"]["operations"] == 3 * 3 * (SESSIONS - 1)
    again = NoteTaking()
    retried = bench.run_memory(again, retry_errors=True)
    after = [f"session_{number}" for number in range(int(lost[-1]), SESSIONS + 1)]
    assert sorted(again.remembered) == [f"talk-{talk}:{name}" for talk in (1, 2, 3) for name in after]
    assert len(again.asked) == 3 * QUESTIONS  # from other banks than before
    assert numbers(retried) == numbers(bench.run_memory(NoteTaking(), output_dir=tmp_path / "untroubled"))


def test_sessions_whose_retry_fails_are_still_answered(bench):
    bench.run_memory(FailingNotes(lambda session_id: session_id == "session_2"))
    again = FailingNotes(lambda session_id: session_id == "session_2")
    results = bench.run_memory(again, retry_errors=True)
    assert len(again.remembered) == 3 * (SESSIONS - 1)  # each failed session and those after it, once
    assert results is not None
    assert results["systems"]["memory"]["failures"]["build"]["error"] == 3
    assert results["systems"]["memory"]["failures"]["answer"]["missing"] == 0


def test_banks_that_another_run_built_again_are_asked_again(bench):
    database = f"sqlite:///{bench.folder / 'banks.sqlite'}"
    bench.run_memory(FailingNotes(lambda session_id: session_id == "session_2"), db_url=database)
    retry = {"db_url": database, "output_dir": bench.folder / "other", "mode": "build", "retry_errors": True}
    bench.run_memory(NoteTaking(), **retry)
    bench.output, again = "", NoteTaking()
    bench.run_memory(again, db_url=database)
    assert len(again.asked) == 3 * QUESTIONS
    assert f"memory answer: {3 * QUESTIONS} calls" in bench.output


def test_systems_that_share_banks_retry_their_sessions_once(bench):
    program = bench.folder / "program.json"
    Quoting().save(str(program))
    settings = {"systems": "memory,optimized", "program": program}
    bench.run_memory(FailingNotes(lambda session_id: session_id == "session_2"), **settings)
    again = FailingNotes(lambda session_id: session_id == "session_2")
    bench.run_memory(again, **settings, mode="build", retry_errors=True)
    assert len(again.remembered) == len(set(again.remembered)) == 3 * (SESSIONS - 1)


# -- cost ----------------------------------------------------------------------------------------

PRICED = {"systems": "rag", "reader_model": "openai/gpt-4.1-mini"}


def test_estimated_and_real_cost_are_reported(bench):
    results = bench.run(Paid(), any_model, **PRICED)
    assert "estimated cost: about $0.0" in bench.output.partition("rag: answer: ")[0]
    assert "  rag answer: 27 calls to openai/gpt-4.1-mini, about " in bench.output
    assert results is not None
    system = results["systems"]["rag"]
    assert (system["calls"], system["cost_usd"]) == (27, pytest.approx(2.7))
    assert system["tokens_per_question"] == 1020


def test_a_run_estimated_over_the_limit_does_not_start(bench):
    system = Paid()
    with pytest.raises(BudgetExceededError, match=r"would cost about \$0.0.*; no session was written"):
        bench.run(system, no_model, **PRICED, max_cost=0.0001)
    assert system.asked == system.remembered == []


def test_a_run_over_its_cost_limit_stops_and_can_continue(bench):
    with pytest.raises(BudgetExceededError, match=r"has cost \$0.5.*max_cost=0.45: raise --max-cost"):
        bench.run(Paid(), any_model, **PRICED, max_cost=0.45, concurrency=1)
    with pytest.raises(BudgetExceededError, match=r"would cost about \$0.5"):
        bench.run(Paid(), any_model, **PRICED, max_cost=0.45)  # what was spent counts
    rest = Paid()
    bench.run(rest, any_model, **PRICED, max_cost=5)
    assert len(rest.asked) == 27 - 5


def test_a_retry_adds_to_the_cost_of_the_first_try(bench):
    class Cut(Paid):
        def ask(self, space, question):
            answer = super().ask(space, question)
            return replace(answer, outcome=Outcome.TRUNCATED) if about_moving(question) else answer

    settings = {**PRICED, "conversations": "talk-1"}
    bench.run(Cut(), any_model, **settings)
    results = bench.run(Cut(), any_model, **settings, retry_errors=True)
    assert results is not None
    system = results["systems"]["rag"]
    assert (system["calls"], system["cost_usd"]) == (13, pytest.approx(1.3))  # 9, and 4 once more
    with pytest.raises(BudgetExceededError, match=r"has cost \$1.4.*max_cost=1.35"):
        bench.run(Cut(), any_model, **settings, retry_errors=True, max_cost=1.35, concurrency=1)


def test_answers_from_a_replaced_bank_count_as_cost(bench):
    class Noted(FailingNotes):
        def ask(self, space, question):
            record_call(CallRecord("openai/gpt-4.1-mini", Usage(calls=1, cost_usd=0.1)))
            return super().ask(space, question)

    settings = {"conversations": "talk-1", "reader_model": "openai/gpt-4.1-mini"}
    bench.run_memory(Noted(lambda session_id: session_id == "session_4"), **settings)
    results = bench.run_memory(Noted(lambda session_id: False), **settings, retry_errors=True)
    assert results is not None
    assert results["systems"]["memory"]["cost_usd"] == pytest.approx(2 * QUESTIONS * 0.1)


class CentWriter(MemoryWriter):
    """Proposes nothing, for a cent; ``loses`` names the session whose episodic agent fails."""

    asked = 0
    loses = ""

    def propose(self, name, space, session):
        self.asked += 1
        record_call(CallRecord("openai/writer", Usage(calls=1, cost_usd=0.01)))
        fails = name == "episodic" and session.session_id == self.loses
        failure = CallFailure("writer.episodic", Outcome.ERROR, "no route")
        return Proposal(name, failures=[failure] if fails else [])


def test_a_retry_in_two_phases_counts_every_proposal_once(bench):
    writer = CentWriter()
    writer.loses = "session_2"
    settings = {"mode": "build", "build": "two-phase", "conversations": "talk-1", "concurrency": 1}
    bench.run_memory(MemoryProgram(writer), **settings)
    writer.loses = ""
    bench.run_memory(MemoryProgram(writer), **settings, retry_errors=True)
    results = bench.run_memory(Quoting(), **{**settings, "mode": "report"})
    assert results is not None
    system = results["systems"]["memory"]
    assert system["failures"]["build"]["error"] == 0
    assert system["calls"] == writer.asked == 4 * SESSIONS + 1
    assert system["cost_usd"] == pytest.approx(0.01 * writer.asked)


def test_uncommitted_proposals_count_as_cost(bench):
    writer = CentWriter()
    settings = {
        "mode": "build",
        "build": "two-phase",
        "concurrency": 1,
        "writer_model": "openai/gpt-4.1-mini",
    }
    with pytest.raises(BudgetExceededError, match=r"has cost \$0.1600, more than max_cost=0.155"):
        bench.run_memory(MemoryProgram(writer), **settings, max_cost=0.155)
    with pytest.raises(BudgetExceededError, match=r"would cost about \$0.28"):
        bench.run_memory(MemoryProgram(writer), **settings, max_cost=0.155)
    assert writer.asked == 16


# -- damage --------------------------------------------------------------------------------------


def test_the_item_of_a_torn_last_line_is_done_again(bench):
    first = bench.run(Quoting())
    path = bench.folder / "run/extractive/answers.jsonl"
    path.write_bytes(path.read_bytes()[:-40])
    again = Quoting()
    assert numbers(bench.run(again)) == numbers(first)
    assert len(again.asked) == 1
    assert "an incomplete last line of" in bench.output


def test_a_lost_build_journal_is_restored_from_the_database(bench):
    first = numbers(bench.run_memory(NoteTaking()))
    (bench.folder / "run/memory/build.jsonl").unlink()
    again = NoteTaking()
    second = numbers(bench.run_memory(again))
    assert again.remembered == again.asked == []
    system = second["systems"]["memory"]
    assert system["memory"] == first["systems"]["memory"]["memory"]
    assert system["locomo_f1"] == first["systems"]["memory"]["locomo_f1"]
    assert system["cost_usd"] is None  # what the sessions took was only in the journal


def test_a_session_only_in_the_journal_is_built_again(bench):
    first = numbers(bench.run_memory(NoteTaking(), mode="full"))
    for path in (bench.folder / "run").glob("banks.sqlite*"):
        path.unlink()
    again = NoteTaking()
    assert numbers(bench.run_memory(again)) == first
    assert len(again.remembered) == 3 * SESSIONS
    assert again.asked == []  # the banks are the same, so are the answers


def test_a_moved_folder_continues(bench, tmp_path):
    first = numbers(bench.run_memory(NoteTaking()))
    shutil.move(tmp_path / "run", tmp_path / "moved")
    again = NoteTaking()
    assert numbers(bench.run_memory(again, output_dir=tmp_path / "moved")) == first
    assert again.remembered == again.asked == []


def test_a_path_in_brackets_is_printed_whole(bench, tmp_path):
    folder = tmp_path / "paper [b]" / "run [final]"
    bench.run(Quoting(), output_dir=folder)
    assert f"results: {folder / EVALUATION_RESULTS_FILE}" in bench.output
    path = folder / "extractive/answers.jsonl"
    path.write_bytes(path.read_bytes()[:-40])
    bench.run(Quoting(), output_dir=folder)
    assert f"{path}: an incomplete last line of" in bench.output
    again = shutil.copytree(folder, folder.with_name("again [final]"))
    console = Console(file=io.StringIO(), width=120)
    evaluate(EvaluateConfig(mode="report", runs=(folder, again), mlflow=False), console=console)
    assert f"{folder}: talks: 3 conversations" in console.file.getvalue()
    assert f"report of 2 runs: {folder.parent / 'report.html'}" in console.file.getvalue()


def test_two_processes_cannot_work_in_one_folder(bench):
    class Intruding(Quoting):
        def ask(self, space, question):
            with pytest.raises(RunInUseError, match="another process is working in"):
                bench.run(Quoting())
            return super().ask(space, question)

    bench.run(Intruding(), num_test=1)


def test_an_unwritable_folder_is_refused_at_once(bench, tmp_path):
    (tmp_path / "file").write_text("")
    system = Quoting()
    with pytest.raises(ConfigError, match=r"output_dir=.*file/run' cannot be written .*--output-dir"):
        bench.run(system, output_dir=tmp_path / "file/run")
    assert system.remembered == []


@pytest.mark.parametrize(
    ("changed", "are_remembered"),
    [
        ({"temperature": 0.7}, True),
        ({"writer_temperature": 0.7}, True),
        ({"top_k": 3}, False),
        ({"reader_budget": 77}, False),
    ],
)
def test_changed_settings_answer_again(bench, changed, are_remembered):
    bench.run_memory(NoteTaking())
    other = NoteTaking()
    bench.run_memory(other, **changed)
    assert len(other.asked) == 3 * QUESTIONS
    assert len(other.remembered) == (3 * SESSIONS if are_remembered else 0)


def test_the_writer_may_have_a_temperature_of_its_own(bench):
    made = []

    def models(name: str, temperature: float) -> Any:
        made.append((name, temperature))

    named = {"systems": "memory", "writer_model": "openai/writer", "reader_model": "openai/reader"}
    results = bench.run(NoteTaking(), models, writer_temperature=0.7, **named)
    assert made == [("openai/writer", 0.7), ("openai/reader", 0.0)]
    signature = results["systems"]["memory"]["signature"]
    assert "|temperature:0|" in signature
    assert "|writer_temperature:0.7" in signature
    with pytest.raises(ConfigError, match=r"writer_temperature=0\.7 only applies to systems"):
        bench.config(systems="rag", reader_model="openai/reader", writer_temperature=0.7)


def test_a_signature_names_the_settings_of_its_score(bench):
    def signature(results: Json | None) -> str:
        assert results is not None
        ((_, system),) = results["systems"].items()
        return system["signature"]

    assert "|first:4|" in signature(bench.run(Quoting(), num_test=4))
    assert "|min_relative_score:0.25" in signature(bench.run(Quoting(), relevance_floor=0.25))
    told = signature(bench.run_memory(NoteTaking(), temperature=0.7, max_turns=2))
    assert "|temperature:0.7|" in told
    assert "|writer_mode:specialists|writer_max_turns:2" in told
    subset, subsets = bench.folder / "subset", set()
    for ids in ("talk-1", "talk-2"):
        subset.write_text(ids)
        subsets.add(signature(bench.run(Quoting(), subset_file=subset)).split("|subset:")[1])
    assert len(subsets) == 2


def test_each_question_records_its_outcome(bench):
    bench.run(Failing(lambda question: "Who is moving" in question))
    lines = (bench.folder / "run/extractive/questions.jsonl").read_text().splitlines()
    assert sum(json.loads(line)["outcome"] == "error" for line in lines) == 3 * SESSIONS


@pytest.mark.parametrize(
    "changed", [{"max_reply_tokens": 40}, {"chat_template_kwargs": '{"enable_thinking": false}'}]
)
def test_a_verdict_is_kept_apart_by_the_settings_of_its_judge(bench, changed):
    settings = {"judge_model": "openai/j", "api_base": "http://127.0.0.1:9/v1"}
    plain, other = (identify_judge(bench.config(**settings, **more)) for more in ({}, changed))
    (question, *_) = load_selection(bench.config()).questions
    assert plain.key("strict", question, "Rome") != other.key("strict", question, "Rome")
    assert not plain.is_same_judge(other, "strict")
    hosted = identify_judge(bench.config(judge_model="openai/gpt-4.1", chat_template_kwargs='{"a": 1}'))
    assert hosted.settings == {}


def test_a_run_of_one_stage_keeps_the_judge_of_the_folder(bench):
    bench.run(Quoting())
    folder = bench.folder / "run/extractive"
    judge = identify_judge(bench.config(judge_model="openai/j"))
    write_run(folder, replace(read_run(folder), judge=judge))
    bench.run(Quoting(), mode="answer")
    assert read_run(folder).judge == judge


def test_paid_calls_are_recorded_before_the_database_is_written(bench, monkeypatch):
    class Billed(NoteTaking):
        def remember(self, space, session):
            record_call(CallRecord("openai/writer", Usage(calls=1, cost_usd=0.1)))
            return super().remember(space, session)

    def fails(store: BankStore, space: object) -> None:
        raise StoreError("disk full")

    settings = {"conversations": "talk-1", "concurrency": 1}
    with monkeypatch.context() as full:
        full.setattr(BankStore, "save", fails)
        with pytest.raises(StoreError):
            bench.run_memory(Billed(), **settings)
    results = bench.run_memory(Billed(), **settings)
    assert results["systems"]["memory"]["usage"]["build"]["calls"] == SESSIONS + 1


def test_systems_that_share_banks_share_retried_sessions(bench):
    program = bench.folder / "program.json"
    Quoting().save(str(program))
    settings = {"systems": "memory,optimized", "program": program}
    bench.run_memory(FailingNotes(lambda session: session == "session_2"), **settings)
    results = bench.run_memory(NoteTaking(), **settings, retry_errors=True)
    memory, optimized = (results["systems"][name] for name in ("memory", "optimized"))
    assert optimized["failures"]["build"]["error"] == 0
    assert optimized["locomo_f1"] == memory["locomo_f1"]


def test_repeated_verdicts_are_paid_twice(bench):
    bench.run(Quoting())
    config = bench.config(judge_model="openai/j", rubrics="strict")
    (system,) = load_system_records(config, load_selection(config))
    system = replace(system, run=replace(system.run, judge=identify_judge(config)))
    paid = Usage(calls=1, cost_usd=0.1)
    for case in list_answers_to_judge(system):
        for verdict, outcome in ((None, Outcome.ERROR), (Verdict.CORRECT, Outcome.OK)):
            found = (case.key, case.question.question_id, case.rubric, verdict, outcome, "", paid, 0.0)
            system.journals.judgements.add(JudgeRecord(*found))
    system.journals.close()
    write_run(system.folder, system.run)
    results = bench.run(Quoting(), mode="report")
    twice = pytest.approx(2 * 0.1 * 3 * (QUESTIONS - 1))
    assert (results["systems"]["extractive"]["cost_usd"], system.spent_usd()) == (twice, twice)


def test_a_judges_reply_that_was_cut_is_no_verdict(bench):
    class Rehearsing:
        def grade(self, question: Question, answer: str) -> Judgement:
            record_call(CallRecord("openai/j", Usage(calls=1), finish_reason="length"))
            return Judgement(Verdict.CORRECT, "[[ ## verdict ## ]] CORRECT, if it is right. Let me look")

    (question, *_) = load_selection(bench.config()).questions
    workers = Workers(Console(file=io.StringIO()), RunLimits(), 1)
    with closing(Journal(bench.folder / "judgements.jsonl", JudgeRecord)) as journal:
        case = AnswerToJudge("key", Rubric.STRICT, question, "Rome")
        judge_cases("judge", [case], {Rubric.STRICT: Rehearsing()}, journal, workers, total=1)
        assert (journal.records["key"].verdict, journal.records["key"].outcome) == (None, Outcome.TRUNCATED)


def test_the_error_rates_of_a_judge_are_joined_over_the_runs_of_a_page(bench):
    results = bench.run(Quoting())
    (system,) = results["systems"].values()
    rates = {"value": 0.25, "low": 0.2, "high": 0.3, "n": 9}
    quality = {"false_accept": rates, "false_reject": rates, "unparsed": 0, "failed": 0, "kinds": []}
    results["systems"] = {
        name: {**system, "calibration": {"judge": "openai/j", "quality": {rubric: quality}}}
        for name, rubric in (("a", "lenient"), ("b", "strict"))
    }
    console = Console(file=io.StringIO(), width=200)
    for table in results_tables(results):
        console.print(table)
    lines = console.file.getvalue().splitlines()
    assert [line.split()[1] for line in lines if line.split()[:1] == ["openai/j"]] == ["lenient", "strict"]


def test_a_build_after_the_answers_keeps_the_format_that_they_were_given_in(bench):
    def reply(prompt: Prompt, seen: int) -> str:
        return json.dumps({"ready": "yes"} if "ready" in prompt.user else {"answer": "Rome"})

    with ModelServer(reply=reply) as server:
        settings = {"systems": "rag", "reader_model": "openai/test", "judge_model": "none"}
        config = bench.config(**settings, api_base=server.url)
        evaluate(config, console=Console(file=io.StringIO()))
        asked = server.traffic.requests.total()
        evaluate(config.replace(mode="build"), console=Console(file=io.StringIO()))
        evaluate(config, console=Console(file=io.StringIO()))
        assert server.traffic.requests.total() == asked


def test_the_oracle_is_given_no_arguments_of_a_chat_template(bench):
    config = EvaluateConfig(dataset="sample", chat_template_kwargs='{"enable_thinking": false}')
    run = oracle_run(config)
    assert run is not None
    assert not run[0].system.replies.chat_template_kwargs
