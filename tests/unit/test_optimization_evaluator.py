"""Attempts are scored and counted, a run ends when nothing works, and the best candidate wins."""

from collections.abc import Callable, Sequence
from pathlib import Path

import dspy
import pytest

from locomo.types import Category, Conversation, Question
from memory_program.bank.outcomes import Answer, Outcome
from memory_program.bank.space import MemorySpace
from memory_program.core.errors import ModelError
from memory_program.optimization.call_journal import ReplyCache, RunStopped, StopReason
from memory_program.optimization.candidate_evaluator import (
    MAX_CONSECUTIVE_FAILURES,
    CandidateEvaluator,
    PromptCandidate,
)
from memory_program.optimization.candidate_metric import MemoryAttempt
from memory_program.optimization.candidate_selection import (
    MAX_FINALISTS,
    CandidateChoice,
    choose_candidate,
    choose_finalists,
    compare_with_baseline,
    compared_mean,
    val_interval,
)
from memory_program.optimization.dev_examples import MemoryCase, OptimizationCase
from memory_program.optimization.failure_count import SuccessCounter
from memory_program.optimization.prompt_text import Prompt
from memory_program.optimization.students import AttemptPrediction
from memory_program.rl.rewards import AnswerMetric
from tests.conversations import session

LOST = "lost"


def cases(*talks: str, each: int = 2) -> list[MemoryCase]:
    made: list[MemoryCase] = []
    for name in talks:
        talk = Conversation(name, ("Ana", "Ben"), (session(1, "Ana: Hi."),), ())
        for number in range(each):
            question = Question(name, number, f"{number}?", Category.SINGLE_HOP, "yes", ("D1:1",))
            made.append(MemoryCase(question.question_id, talk, MemorySpace(name), (question,)))
    return made


def worth(question: Question, answer: Answer) -> float | None:
    return float(answer.text)


class Board:
    """An evaluator, and attempts of candidates that are named by their instruction."""

    def __init__(
        self,
        folder: Path,
        score: AnswerMetric = worth,
        probe: Callable[[], None] = lambda: None,
        *,
        each: int = 2,
    ) -> None:
        self.calls, self.score = ReplyCache(folder / "calls.jsonl"), score
        self.complete: list[int] = []
        self.evaluator = CandidateEvaluator(
            train=cases("a", "b", each=each),
            val=cases("c", "d", each=each),
            calls=self.calls,
            probe=probe,
            on_attempt=lambda evaluator, candidate, done: self.complete.extend([candidate.number] * done),
            test_groups=["e"],
        )
        self.candidate("baseline")

    def candidate(self, instruction: str) -> PromptCandidate:
        return self.evaluator.register({"reader.answer": Prompt(instruction)})

    def attempt(self, instruction: str, case: OptimizationCase, worth: float | str) -> float:
        answer = Answer("", Outcome.ERROR, "no route") if worth == LOST else Answer(str(worth))
        assert isinstance(case, MemoryCase)
        attempt = MemoryAttempt(case, self.candidate(instruction).name, (answer,), case.memories, self.score)
        return self.evaluator.metric(dspy.Example(), AttemptPrediction(attempt, answer=answer.text))

    def val(self, instruction: str, *worths: float | str) -> PromptCandidate:
        return self._try(instruction, self.evaluator.val, worths)

    def train(self, instruction: str, *worths: float | str) -> PromptCandidate:
        return self._try(instruction, self.evaluator.train, worths)

    def _try(
        self, instruction: str, cases: Sequence[OptimizationCase], worths: Sequence[float | str]
    ) -> PromptCandidate:
        for case, worth in zip(cases, worths, strict=False):
            self.attempt(instruction, case, worth)
        return self.candidate(instruction)

    def choice(self) -> CandidateChoice:
        return choose_candidate(self.evaluator, seed=0)


@pytest.fixture
def board(tmp_path: Path) -> Board:
    return Board(tmp_path)


@pytest.mark.parametrize(
    ("train", "val", "message"),
    [
        ("ac", "c", "train and val share no group"),
        ("e", "c", "the test split is never used"),
        ("a", "e", "the test split is never used"),
    ],
)
def test_no_group_is_in_two_splits(tmp_path: Path, train: str, val: str, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        CandidateEvaluator(
            train=cases(*train), val=cases(*val), calls=ReplyCache(tmp_path / "calls.jsonl"),
            probe=lambda: None, on_attempt=lambda *_: None, test_groups=["e"],
        )  # fmt: skip


def test_scores_are_stored_by_split_and_candidate(board: Board) -> None:
    assert board.attempt("baseline", board.evaluator.train[0], 0.5) == 0.5
    board.train("better", 0.75, 0.25)
    board.val("better", 1, 0, 1, 1)
    better = board.candidate("better")
    assert (better.number, better.train_score, better.val_score) == (1, 0.5, 0.75)
    assert board.evaluator.is_fully_validated(better)
    assert board.complete == [1]
    assert not board.evaluator.is_fully_validated(board.evaluator.baseline)


def test_a_lost_attempt_counts_as_failed_and_scores_0_for_optimisers_only(board: Board) -> None:
    assert board.attempt("baseline", board.evaluator.val[0], LOST) == 0.0
    board.val("baseline", LOST, 1, 0.5, LOST)
    assert board.evaluator.baseline.val_score == 0.75
    assert board.evaluator.tally == SuccessCounter(succeeded=2, failed=3, first_failure="no route")


def test_the_curve_has_an_entry_each_time_the_best_score_rises(board: Board) -> None:
    board.val("baseline", 0, 1, 0, 1)
    board.val("worse", 0, 0, 0, 1)
    board.train("better", 1, 1, 0, 1)
    board.val("better", 1, 1, 0, 1)
    curve = [(best.train, best.val) for best in board.evaluator.curve]
    assert curve == [(None, 0.5), (0.75, 0.5), (0.75, 0.75)]


def test_the_best_score_on_train_is_a_current_mean_and_depends_on_no_order(tmp_path: Path) -> None:
    worths = [1] * 10 + [0] * 10
    for order in (worths, worths[::-1]):
        board = Board(tmp_path, each=10)
        board.train("better", *order)
        assert board.evaluator.best.train == board.candidate("better").train_score == 0.5


def test_a_metric_that_raises_ends_the_run_by_no_exception(tmp_path: Path) -> None:
    def broken(question: Question, answer: Answer) -> float:
        raise KeyError("gold")

    board = Board(tmp_path, broken)
    with pytest.raises(RunStopped, match="KeyError: 'gold'") as caught:
        board.attempt("baseline", board.evaluator.train[0], 1)
    assert caught.value.reason is StopReason.PROGRAM_ERROR
    assert board.calls.stopped is caught.value


def test_a_program_that_raises_ends_the_run(board: Board) -> None:
    with pytest.raises(RunStopped, match="ZeroDivisionError"), board.evaluator.stop_run_on_error():
        _ = 1 / 0


@pytest.mark.parametrize("is_alive", [True, False])
def test_after_many_lost_attempts_in_a_row_the_models_are_probed(tmp_path: Path, is_alive: bool) -> None:
    asked: list[int] = []

    def probe() -> None:
        asked.append(1)
        if not is_alive:
            raise ModelError("'openai/m' does not answer")

    board = Board(tmp_path, probe=probe, each=MAX_CONSECUTIVE_FAILURES)
    board.train(
        "baseline", *[LOST] * (MAX_CONSECUTIVE_FAILURES - 1), 1, *[LOST] * (MAX_CONSECUTIVE_FAILURES - 1)
    )
    assert not asked
    if is_alive:
        board.attempt("baseline", board.evaluator.train[0], LOST)
        board.attempt("baseline", board.evaluator.train[0], LOST)
    else:
        with pytest.raises(RunStopped, match="does not answer") as caught:
            board.attempt("baseline", board.evaluator.train[0], LOST)
        assert caught.value.reason is StopReason.NO_SCORES
    assert asked == [1]


def test_the_best_candidate_on_validation_wins_with_a_paired_interval(board: Board) -> None:
    board.val("baseline", 0, 1, 0, 1)
    board.val("better", 1, 1, 0, 1)
    best = board.val("best", 1, 1, 1, 1)
    board.val("worse", 0, 0, 0, 0)
    choice = board.choice()
    assert choice.winner is best
    assert choice.comparison is not None
    assert (choice.comparison.difference, choice.comparison.n) == (0.5, 4)
    assert (choice.comparison.low, choice.comparison.high) == (0.5, 0.5)  # both conversations gain as much
    assert choice.comparison.p_value == 0.5  # the least that two conversations can show


@pytest.mark.parametrize("other", [(0, 1, 0, 1), (0, 0, 0, 1)])
def test_the_baseline_stays_where_nothing_is_better(board: Board, other: tuple[float, ...]) -> None:
    board.val("baseline", 0, 1, 0, 1)
    board.val("other", *other)
    choice = board.choice()
    assert choice.winner is board.evaluator.baseline
    assert choice.comparison is not None
    assert choice.comparison.difference <= 0


def test_a_candidate_without_all_validation_cases_cannot_win(board: Board) -> None:
    board.val("baseline", 0, 0, 0, 0)
    board.val("half", 1, 1)
    assert board.choice().winner is board.evaluator.baseline
    assert board.choice().comparison is None


def test_without_all_cases_of_the_baseline_nothing_is_compared(board: Board) -> None:
    board.val("baseline", 0)
    board.val("better", 1, 1, 1, 1)
    choice = board.choice()
    assert (choice.winner, choice.comparison) == (board.evaluator.baseline, None)


def test_a_candidate_that_lost_many_cases_cannot_win_on_the_others(tmp_path: Path) -> None:
    board = Board(tmp_path, each=5)
    board.val("baseline", *[0.5] * 10)
    board.val("flaky", *[1] * 8, LOST, LOST)
    assert board.choice().winner is board.evaluator.baseline
    mostly = board.val("mostly there", *[0.75] * 9, LOST)
    choice = board.choice()
    assert choice.winner is mostly
    assert choice.comparison is not None
    assert (choice.comparison.difference, choice.comparison.n) == (0.25, 9)


def test_the_means_that_are_compared_are_those_on_the_cases_of_both(tmp_path: Path) -> None:
    board = Board(tmp_path, each=5)
    board.val("baseline", 1, *[0.5] * 9)
    better = board.val("better", LOST, *[0.75] * 9)
    choice = board.choice()
    assert choice.comparison is not None
    assert (choice.winner, choice.comparison.difference) == (better, 0.25)
    assert compared_mean(board.evaluator, better) == 0.75


def test_a_difference_of_rounding_is_none(board: Board) -> None:
    board.val("baseline", 2 / 7, 1.0, 1.0, 1 / 3)
    board.val("the same scores of other questions", 1 / 3, 1.0, 2 / 7, 1.0)
    choice = board.choice()
    assert choice.comparison is not None
    assert choice.comparison.difference > 0  # 1.4e-17
    assert choice.winner is board.evaluator.baseline


def test_of_equally_good_candidates_the_shorter_wins(board: Board) -> None:
    board.val("baseline", 0, 0, 0, 0)
    board.val("a long instruction", 1, 1, 1, 1)
    short = board.val("short", 1, 1, 1, 1)
    assert board.choice().winner is short


def test_finalists_are_the_proposals_and_then_the_best_on_train(board: Board) -> None:
    board.val("baseline", 0, 0, 0, 0)
    good = board.train("good", 1, 1, 1, 0)
    fair = board.train("fair", 1, 0, 1, 0)
    once = board.train("tried once", 1)
    proposed = board.candidate("proposed")
    done = board.val("validated already", 1, 1, 1, 1)
    found = choose_finalists(board.evaluator, [proposed.name, done.name, good.name])
    assert found == [proposed, good, fair]
    assert once not in found
    assert (
        len(choose_finalists(board.evaluator, [board.candidate(f"{n}").name for n in range(9)]))
        == MAX_FINALISTS
    )


def test_the_best_on_parts_of_validation_are_finalists(board: Board) -> None:
    board.val("baseline", 0, 0, 0, 0)
    fair, good = board.val("fair", 1, 0), board.val("good", 1, 1, 1)
    assert choose_finalists(board.evaluator, []) == [good, fair]


def test_scores_have_intervals_clustered_by_conversation(board: Board) -> None:
    board.val("baseline", 0, 0, 1, 1)
    found = val_interval(board.evaluator, board.evaluator.baseline, seed=0)
    assert found == {"value": 0.5, "low": 0.0, "high": 1.0, "n": 4}
    assert val_interval(board.evaluator, board.candidate("untried"), seed=0) is None
    assert compare_with_baseline(board.evaluator, board.candidate("untried"), seed=0) is None
