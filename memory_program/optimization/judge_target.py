"""The judge of a rubric, to be improved on answers whose verdict is known."""

import random
from contextlib import ExitStack

from locomo.judge.calibration import CalibrationAnswer, split_calibration_answers
from locomo.judge.judge import Judges
from locomo.judge.rubrics import Rubric, Verdict, list_gradings
from memory_program import __version__
from memory_program.configs.optimize_config import OptimizeConfig, Target
from memory_program.core.hashing import content_hash
from memory_program.core.json_files import Json
from memory_program.evaluation.datasets import benchmark_for_config
from memory_program.evaluation.judge_program import read_judge_program
from memory_program.evaluation.scoring.judge_errors import JudgedKnownAnswer, mean_error_rates
from memory_program.evaluation.scoring.question_scores import BootstrapSampler
from memory_program.evaluation.stages.cost_estimate import StageEstimate
from memory_program.models.model_names import model_fingerprint
from memory_program.optimization.budget_estimate import estimate_judging
from memory_program.optimization.call_journal import ReplyCache
from memory_program.optimization.candidate_evaluator import CandidateEvaluator, PromptCandidate
from memory_program.optimization.dev_examples import CaseSplits, JudgeCase, answer_cases
from memory_program.optimization.students import JudgeStudent, Student
from memory_program.rl.rewards import AnswerMetric


class JudgeOptimizationTarget:
    """The judge of a rubric, with all its prompts for a benchmark, on answers whose verdict is known."""

    lost_sessions = 0
    """Nothing is remembered here."""

    def __init__(self, config: OptimizeConfig) -> None:
        """Make the judge, or read a saved one."""
        self._config = config
        self._rubric, self._benchmark = Rubric(config.grading.rubric), benchmark_for_config(config.source)
        self.program = Judges(self._rubric, gradings=list_gradings(self._benchmark))
        if config.program is not None:
            saved = read_judge_program(config.program)
            saved.check(self._benchmark, [self._rubric])
            self.program = saved.judges()
        answers = split_calibration_answers(self._benchmark)
        self._answers = {
            split: [answer for answer in of_split if self._rubric in answer.verdicts]
            for split, of_split in answers.items()
        }

    @property
    def summary(self) -> str:
        """How many questions there are by split."""
        train, val, test = (len(groups) for groups in self._questions.values())
        return (
            f"{self.dataset['name']}, {self._rubric.value} rubric: {train} questions to learn from, {val} to "
            f"choose on, {test} left untouched"
        )

    @property
    def _questions(self) -> dict[str, list[str]]:
        return {split: _unique_questions(answers) for split, answers in self._answers.items()}

    @property
    def dataset(self) -> Json:
        """The questions by split, and a hash of all that is known of their answers."""
        known = [
            [a.question.text, a.question.answer, a.text, a.kind.value, a.verdicts[self._rubric].value]
            for answers in self._answers.values()
            for a in answers
        ]
        return {
            "name": f"known answers of {self._benchmark.value}",
            "sha256": content_hash("known answers", known),
            "is_modified": False,
            "benchmark": self._benchmark.value,
            "rubric": self._rubric.value,
            **self._questions,
        }

    def begin(self, calls: ReplyCache, stack: ExitStack) -> None:
        """Open nothing."""

    def estimates(self) -> list[StageEstimate]:
        """Estimate judging and proposing."""
        cases = self.cases(Target.JUDGE)
        predictors = len(self.program.named_predictors())
        return estimate_judging(self._config, len(cases.train), len(cases.val), predictors)

    def cases(self, target: Target) -> CaseSplits:
        """Draw answers, the same ones each time."""
        counts = {"train": self._config.num_examples, "val": self._config.num_val}
        train, val = (
            answer_cases(
                self._answers[split],
                self._rubric,
                count,
                random.Random(f"{self._config.seed}:{target.value}:{split}"),
            )
            for split, count in counts.items()
        )
        return CaseSplits(train, val, self._questions["test"])

    def student(self, target: Target, score: AnswerMetric, bench: CandidateEvaluator) -> Student:
        """Make a student of the judge, whose verdicts need no other score."""
        return JudgeStudent(bench, self.program)

    def signature(self, target: Target, candidate: PromptCandidate, n: int) -> str:
        """Write rubric, answers, version, model and prompts."""
        dataset = self.dataset
        parts = {
            "bench": self._benchmark.value,
            "rubric": self._rubric.value,
            "n": n,
            "answers": dataset["sha256"][:8],
            "v": __version__,
            "split": "val",
            "model": model_fingerprint(self._config.model),
            "prompts": candidate.name[:8],
            "seed": self._config.seed,
        }
        return "|".join(["known_verdicts", *(f"{name}:{value}" for name, value in parts.items())])

    def errors(self, bench: CandidateEvaluator, candidate: PromptCandidate) -> Json:
        """Give false accepts and false rejects, as ``judge_quality`` does."""
        tried = [
            JudgedKnownAnswer(case.answer, self._rubric, _given_verdict(candidate, case))
            for case in bench.val
            if isinstance(case, JudgeCase)
        ]
        return mean_error_rates(tried, BootstrapSampler(self._config.seed))


def _unique_questions(answers: list[CalibrationAnswer]) -> list[str]:
    return list(dict.fromkeys(answer.question.text for answer in answers))


def _given_verdict(candidate: PromptCandidate, case: JudgeCase) -> Verdict | None:
    """Tell by what an attempt was worth which verdict it gave."""
    value = candidate.val[case.case_id]
    if value is None:
        return None
    if case.case_id in candidate.unparsed_cases:
        return Verdict.UNPARSED
    other = Verdict.WRONG if case.known is Verdict.CORRECT else Verdict.CORRECT
    return case.known if value else other
