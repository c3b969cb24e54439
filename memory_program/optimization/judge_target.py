"""The judge of a rubric as the target of an optimisation, tried on answers whose verdict is known."""

import random
from contextlib import ExitStack

from locomo.judge.calibration import split_calibration_answers
from locomo.judge.judge import Judges
from locomo.judge.rubrics import Rubric, Verdict, list_gradings
from memory_program import __version__
from memory_program.configs.endpoints import server_address
from memory_program.configs.optimize_config import OptimizeConfig, Target
from memory_program.core.hashing import content_hash
from memory_program.core.json_files import Json
from memory_program.evaluation.datasets import benchmark_for_config
from memory_program.evaluation.judge_program import read_judge_program, verdict_tokens
from memory_program.evaluation.scoring.judge_errors import JudgedKnownAnswer, mean_error_rates
from memory_program.evaluation.scoring.question_scores import BootstrapSampler
from memory_program.evaluation.scoring.score_signature import judge_reply_settings
from memory_program.evaluation.stages.cost_estimate import StageEstimate
from memory_program.models.model_names import model_fingerprint
from memory_program.optimization.budget_estimate import estimate_judging
from memory_program.optimization.call_journal import ReplyCache
from memory_program.optimization.candidate_evaluator import CandidateEvaluator, PromptCandidate
from memory_program.optimization.dev_examples import CaseSplits, JudgeCase, answer_cases
from memory_program.optimization.students import JudgeStudent, Student
from memory_program.rl.rewards import AnswerMetric


class JudgeOptimizationTarget:
    """The judge of a rubric, with all its prompts for a benchmark, tried on answers whose verdict is known.

    It has the methods of ``MemoryOptimizationTarget``.
    """

    lost_sessions = 0
    """There are no memories to write here."""

    def __init__(self, config: OptimizeConfig) -> None:
        """Make the judge, or read a saved one.

        Raises:
            ConfigError: the saved judge is for another benchmark or rubric.
        """
        self._config = config
        self._rubric, self._benchmark = Rubric(config.grading.rubric), benchmark_for_config(config.source)
        limit = verdict_tokens(config.model, config.system.replies.settings())
        self.program = Judges(self._rubric, gradings=list_gradings(self._benchmark), limit_tokens=limit)
        if config.program is not None:
            saved = read_judge_program(config.program)
            saved.check(self._benchmark, [self._rubric])
            self.program = saved.judges(limit_tokens=limit)
        self._answers = {
            split: [answer for answer in answers if self._rubric in answer.verdicts]
            for split, answers in split_calibration_answers(self._benchmark).items()
        }
        self._questions = {
            split: list(dict.fromkeys(answer.question.text for answer in answers))
            for split, answers in self._answers.items()
        }

    @property
    def summary(self) -> str:
        """The rubric and the number of questions by split, as a line of progress."""
        train, val, test = (len(questions) for questions in self._questions.values())
        return (
            f"{self.dataset['name']}, {self._rubric.value} rubric: {train} questions for training, {val} for "
            f"validation, {test} left for the test"
        )

    @property
    def dataset(self) -> Json:
        """The questions by split, and a hash of the known answers, for ``results.json``."""
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
        """Estimate the calls for judgements and proposals."""
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

    def student(self, target: Target, score: AnswerMetric, evaluator: CandidateEvaluator) -> Student:
        """Make a student of the current judge; its verdicts are compared with the known ones."""
        return JudgeStudent(evaluator, self.program)

    def fixed_settings(self, target: Target) -> Json:
        """Return the settings of replies, which a stage does not change and its scores depend on."""
        config = self._config
        address = server_address(config, config.task_role)
        return judge_reply_settings(config.system.replies, config.model, address)

    def signature(self, target: Target, candidate: PromptCandidate, n: int, fixed_settings: Json) -> str:
        """Write the signature of a score on ``n`` validation cases: all that it depends on, in one line."""
        parts = {
            "bench": self._benchmark.value,
            "rubric": self._rubric.value,
            "n": n,
            "answers": self.dataset["sha256"][:8],
            "v": __version__,
            "split": "val",
            "model": model_fingerprint(self._config.model),
            "prompts": candidate.name[:8],
            "seed": self._config.seed,
            **fixed_settings,
        }
        return "|".join(["known_verdicts", *(f"{name}:{value}" for name, value in parts.items())])

    def errors(self, evaluator: CandidateEvaluator, candidate: PromptCandidate) -> Json:
        """Return the rates of false accepts and false rejects on validation, as a calibration does."""
        judged: list[JudgedKnownAnswer] = []
        for case in evaluator.val:
            assert isinstance(case, JudgeCase)
            score, known = candidate.val[case.case_id], case.known
            verdict = None if score is None else known  # the score tells which verdict was given
            if case.case_id in candidate.unparsed_cases:
                verdict = Verdict.UNPARSED
            elif score == 0:
                verdict = Verdict.WRONG if known is Verdict.CORRECT else Verdict.CORRECT
            judged.append(JudgedKnownAnswer(case.answer, self._rubric, verdict))
        return mean_error_rates(judged, BootstrapSampler(self._config.seed))
