import io
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace

import dspy
import pytest
from dspy import lm15
from rich.console import Console

from memory_program.agents.predict_call import predict
from memory_program.agents.two_phase import ProposalRequest
from memory_program.agents.writer import Proposal
from memory_program.bank.outcomes import CallFailure, Outcome
from memory_program.core.errors import BudgetExceededError, RunEndingError
from memory_program.core.parallel import run_parallel
from memory_program.evaluation.stages.limits import RunLimits
from memory_program.evaluation.stages.propose_stage import Proposer, open_proposal_journal
from memory_program.evaluation.stages.workers import Workers
from memory_program.models.rate_limit import AdaptiveLimiter, RateLimitedEngine, RetryPolicy
from memory_program.models.reply_settings import ReplySettings
from memory_program.models.usage import CallRecord, Usage, record_call
from tests.scripted_lm import ScriptedLM, fields


def workers(concurrency: int = 2, *, terminal: bool = False) -> tuple[Workers, io.StringIO]:
    output = io.StringIO()
    console = Console(file=output, width=100, force_terminal=terminal)
    return Workers(console, RunLimits(), concurrency), output


@pytest.mark.parametrize("terminal", [False, True])
def test_every_task_runs_and_progress_is_shown(terminal):
    crew, output = workers(terminal=terminal)
    done: list[int] = []

    def task(number: int) -> None:
        done.append(number)
        crew.report_item(Usage(), [CallFailure("x", Outcome.ERROR, "y")] if number == 3 else [])

    crew.run("rag: answer", [lambda n=n: task(n) for n in range(5)], to_do=5, total=9)
    assert sorted(done) == [0, 1, 2, 3, 4]
    assert "rag: answer: 5 of 9 to do" in output.getvalue()
    assert ("5/5" if terminal else "rag: answer: 5 of 5 done, 1 failed,") in output.getvalue()


@pytest.mark.parametrize("terminal", [False, True])
def test_progress_moves_with_the_calls_of_an_item_and_tells_speed_and_time_left(terminal):
    output = io.StringIO()
    console = Console(file=output, width=140, force_terminal=terminal)
    crew = Workers(console, RunLimits(), 1, line_every_s=0.15)

    def session() -> None:
        for _ in range(4):
            time.sleep(0.1)
            record_call(CallRecord("openai/m", Usage(calls=1, output_tokens=50)))
        crew.report_item(Usage(calls=4))

    crew.run("memory: build", [session, session], to_do=2, total=2, calls_per_item=4)
    shown = output.getvalue()
    assert re.search(r"[1-3] calls, \d+ tokens/s, \d+ s left", shown)
    if not terminal:
        assert re.search(r"memory: build: 0 of 2 done, 0 s, 1 call, \d+ tokens/s, \d+ s left\n", shown)
        assert re.search(r"memory: build: 2 of 2 done, \d\.\d s, \d+ tokens/s\n$", shown)
        assert len(shown.splitlines()) <= 4


def test_a_log_has_a_line_while_one_long_call_runs():
    output = io.StringIO()
    crew = Workers(Console(file=output, width=100), RunLimits(), 1, line_every_s=0.1)

    def long() -> None:
        time.sleep(0.3)
        crew.report_item(Usage())

    crew.run("rag: answer", [long], to_do=1, total=1)
    assert output.getvalue().startswith("rag: answer: 0 of 1 done, 0 s\n")


def test_dspy_keeps_no_history_of_the_tasks():
    crew, _ = workers()
    program = dspy.Predict("question -> answer")
    with ScriptedLM([fields(answer="x")] * 3) as lm:
        program.lm = lm
        call = partial(predict, "reader", program, ReplySettings(), 9, question="q")
        crew.run("rag: answer", [call] * 3, to_do=3, total=3)
    assert (len(lm.requests), lm.history, program.history, dspy.settings.trace) == (3, [], [], [])


def test_a_stage_without_work_prints_one_line():
    crew, output = workers()
    crew.run("rag: answer", [], to_do=0, total=9)
    assert output.getvalue() == "rag: answer: 0 of 9 to do\n"


def test_no_more_tasks_than_allowed_run_at_once():
    crew, _ = workers(concurrency=3)
    barrier = threading.Barrier(3, timeout=20)
    running = threading.Semaphore(3)

    def task() -> None:
        assert running.acquire(blocking=False)
        barrier.wait()  # three do run at once, else this breaks
        running.release()

    crew.run("x", [task] * 9, to_do=0, total=9)


def test_the_first_exception_ends_the_stage_and_no_new_task_begins():
    crew, _ = workers(concurrency=1)
    begun: list[int] = []

    def task(number: int) -> None:
        begun.append(number)
        if number == 2:
            raise ValueError("two")

    with pytest.raises(ValueError, match="two"):
        crew.run("x", [lambda n=n: task(n) for n in range(50)], to_do=50, total=50)
    assert begun == [0, 1, 2]


def test_a_long_task_sees_that_the_stage_is_ending():
    crew, _ = workers(concurrency=2)
    failed = threading.Event()
    seen: list[bool] = []

    def failing() -> None:
        failed.set()
        raise ValueError("no")

    def long() -> None:
        failed.wait(20)
        while not crew.should_stop:
            pass
        seen.append(True)

    with pytest.raises(ValueError, match="no"):
        crew.run("x", [long, failing], to_do=2, total=2)
    assert seen == [True]


def test_a_failed_call_is_not_repeated_once_the_stage_is_ending():
    asked, ended = threading.Event(), list[str]()

    class Overloaded:
        requests = 0

        def complete(self, request: lm15.Request) -> lm15.Response:
            self.requests += 1
            asked.set()
            raise lm15.ServerError("overloaded", retry_after=100.0)

    engine = Overloaded()
    limited = RateLimitedEngine(engine, AdaptiveLimiter(2), RetryPolicy())

    def call() -> None:
        try:
            limited.complete(lm15.Request(model="m", messages=(lm15.Message.user("Where?"),)))
        except RunEndingError as error:
            ended.append(str(error))
            raise

    def interrupt() -> None:
        assert asked.wait(60)
        raise KeyboardInterrupt

    running, _ = workers()
    with pytest.raises(KeyboardInterrupt):
        running.run("answer", [call, interrupt], to_do=2, total=2)
    assert ended == ["the run is ending, so a failed call is not repeated"]
    assert engine.requests == 1


def test_a_stage_runs_after_a_failed_one():
    crew, _ = workers()

    def failing() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        crew.run("x", [failing], to_do=1, total=1)
    done: list[int] = []
    crew.run("x", [lambda: done.append(1)], to_do=1, total=1)
    assert done == [1]


def test_no_proposal_is_asked_for_once_a_limit_is_passed(tmp_path):
    class Writer:
        asked = 0

        def agent_inputs(self, agent: str, view: object, session: object) -> dict[str, str]:
            return {"agent": agent, "session": session.session_id}

        def propose(self, agent: str, view: object, session: object) -> Proposal:
            Writer.asked += 1
            record_call(CallRecord("m", Usage(calls=1, cost_usd=0.01)))
            time.sleep(0.5 if session.session_id == "0" else 0.005)  # the first one is waited for
            return Proposal(agent)

    crew = Workers(Console(file=io.StringIO()), RunLimits(max_cost_usd=0.05), 4)
    asks = [ProposalRequest("core", None, SimpleNamespace(session_id=str(n))) for n in range(200)]
    with ThreadPoolExecutor(4) as threads:
        proposer = Proposer(Writer(), open_proposal_journal(tmp_path), "talk", str, crew, threads)
        with pytest.raises(BudgetExceededError):
            crew.run("build", [lambda: proposer(asks)], to_do=200, total=200)
    assert 6 <= Writer.asked <= 6 + 4


def test_after_an_error_no_other_task_starts_and_on_error_is_called_while_others_run():
    ended, started = threading.Event(), list[int]()
    errors = list[str]()

    def slow() -> None:
        assert ended.wait(5)
        raise RuntimeError("ended early")

    def fail() -> None:
        raise ValueError("a bug")

    def end_early(error: BaseException) -> None:
        errors.append(str(error))
        ended.set()

    rest = [partial(started.append, number) for number in range(20)]
    with pytest.raises(ValueError, match="a bug"):
        run_parallel([slow, fail, *rest], 2, on_error=end_early)
    assert (errors, started) == (["a bug"], [])


def test_results_of_parallel_tasks_are_in_their_order():
    def answer(number: int) -> int:
        time.sleep(0.02 * (number == 0))
        return number

    assert run_parallel([partial(answer, number) for number in range(9)], 3) == list(range(9))
