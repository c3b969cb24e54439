"""Error rates of a judge on answers whose right verdict is known, from ``--mode calibrate``."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from locomo.judge.calibration import (
    AnswerKind,
    CalibrationAnswer,
    calibration_answers,
    nugget_calibration_answers,
)
from locomo.judge.rubrics import NUGGETS, Rubric, RubricName, Verdict
from locomo.statistics import clustered_interval
from locomo.types import Benchmark
from memory_program.bank.outcomes import Outcome
from memory_program.configs.evaluate_config import EvaluateConfig
from memory_program.core.journal import Journal
from memory_program.core.json_files import Json
from memory_program.evaluation.item_records import JudgeRecord
from memory_program.evaluation.scoring.question_scores import BootstrapSampler
from memory_program.evaluation.scoring.score_signature import JudgeIdentity
from memory_program.evaluation.stages.judge_stage import AnswerToJudge


@dataclass(frozen=True, slots=True)
class JudgedKnownAnswer:
    """An answer whose right verdict is known, and a judge's verdict by a rubric; None if the call failed.

    Of a nugget the judge has a ``value``; 1 is as CORRECT, and any other right value as WRONG.
    """

    answer: CalibrationAnswer
    rubric: RubricName
    verdict: Verdict | None
    value: float | None = None

    @property
    def expected_verdict(self) -> Verdict:
        """The right verdict."""
        if isinstance(self.rubric, Rubric):
            return self.answer.verdicts[self.rubric]
        return Verdict.CORRECT if self.answer.value == 1 else Verdict.WRONG

    @property
    def accept_error(self) -> float | None:
        """1 if the judge found more than is right, 0 if not; None where it could not, or has no verdict."""
        if isinstance(self.rubric, Rubric):
            return self.error if self.expected_verdict is Verdict.WRONG else None
        known = self.answer.value
        return None if self.value is None or known is None or known == 1 else float(self.value > known)

    @property
    def reject_error(self) -> float | None:
        """1 if the judge found less than is right, 0 if not; None where it could not, or has no verdict."""
        if isinstance(self.rubric, Rubric):
            return self.error if self.expected_verdict is Verdict.CORRECT else None
        known = self.answer.value
        return None if self.value is None or not known else float(self.value < known)

    @property
    def error(self) -> float | None:
        """1 if the verdict or the value is wrong, 0 if it is right; None without any."""
        if not isinstance(self.rubric, Rubric):
            return None if self.value is None else float(self.value != self.answer.value)
        found = self.verdict
        return None if found in (None, Verdict.UNPARSED) else float(found is not self.expected_verdict)


def calibration_folder(config: EvaluateConfig) -> Path:
    """Return the folder of calibration verdicts: beside the run folders, which share it."""
    return config.output_dir.parent / "calibration"


def calibration_journal(config: EvaluateConfig) -> Journal[JudgeRecord]:
    """Read the calibration verdicts of all judges.

    Raises:
        RecordError: the file is damaged.
    """
    return Journal(calibration_folder(config) / "judgements.jsonl", JudgeRecord)


def compute_judge_error_rates(
    judge: JudgeIdentity,
    benchmark: Benchmark,
    records: Mapping[str, JudgeRecord],
    resampling: BootstrapSampler,
) -> Json:
    """Compute the error rates of a judge by rubric; a rubric that was not tried on every answer is left out.

    Returns:
        For each rubric: the result of ``mean_error_rates``; ``kinds``: for each kind and right verdict, n,
        the share of wrong verdicts, and the number of unparsed replies; and, if its prompts were optimised on
        some of the questions, ``untouched``: the number of other ``questions``, and ``mean_error_rates`` on
        those alone, since the rates on optimised questions are too good.
    """
    quality: Json = {}
    for rubric, cases in calibration_cases(judge, benchmark).items():
        found = [records.get(case.key) for case in cases]
        tried: list[JudgedKnownAnswer] = []
        for answer, record in zip(_known_answers(benchmark, rubric), found, strict=True):
            if record is not None:
                verdict = Verdict.UNPARSED if record.outcome is Outcome.UNPARSED else record.verdict
                tried.append(JudgedKnownAnswer(answer, rubric, verdict, record.value))
        if not cases or len(tried) < len(cases):
            continue
        kinds: list[Json] = []
        for known in (Verdict.CORRECT, Verdict.WRONG):
            for kind in AnswerKind:
                of_kind = [one for one in tried if one.expected_verdict is known and one.answer.kind is kind]
                errors = [error for one in of_kind if (error := one.error) is not None]
                if of_kind:
                    row = {
                        "kind": kind.value,
                        "known": known.value,
                        "n": len(errors),
                        "errors": sum(errors) / len(errors) if errors else None,
                        "unparsed": sum(one.verdict is Verdict.UNPARSED for one in of_kind),
                    }
                    kinds.append(row)
        quality[str(rubric)] = {**mean_error_rates(tried, resampling), "kinds": kinds}
        seen = judge.questions_seen(rubric)
        if seen:
            untouched = [one for one in tried if one.answer.question.text not in seen]
            quality[str(rubric)]["untouched"] = {
                "questions": len({one.answer.question for one in untouched}),
                **mean_error_rates(untouched, resampling),
            }
    return quality


def mean_error_rates(tried: Sequence[JudgedKnownAnswer], resampling: BootstrapSampler) -> Json:
    """Compute the error rates of a judge on answers that it judged by one rubric.

    False accept = the share of CORRECT among the verdicts on wrong answers; false reject = the share of WRONG
    among those on right answers. Of a nugget, whose right value may be 0.5, they are the share of values that
    are higher, and lower, than the right one. Each is the mean over the kinds of answers, so that many easy
    answers of one kind cannot hide the others; its interval is clustered by question. Replies without a
    verdict and failed calls are counted separately.

    Returns:
        ``false_accept`` and ``false_reject`` (value, low, high, n), ``unparsed`` and ``failed``.
    """
    rates: Json = {}
    errors = {
        "false_accept": [one.accept_error for one in tried],
        "false_reject": [one.reject_error for one in tried],
    }
    for name, of_name in errors.items():
        judged = [(one, error) for one, error in zip(tried, of_name, strict=True) if error is not None]
        kinds = [one.answer.kind for one, _ in judged]
        rates[name] = {"value": None, "low": None, "high": None, "n": 0}
        if judged:
            interval = clustered_interval(
                [error for _, error in judged],
                [one.answer.question.question_id for one, _ in judged],
                weights=[1 / kinds.count(kind) for kind in kinds],
                rng=resampling.rng("calibration", f"{judged[0][0].rubric}/{name}"),
            )
            rates[name] = asdict(interval)
    unparsed = sum(one.verdict is Verdict.UNPARSED for one in tried)
    failed = sum(one.verdict is None and one.value is None for one in tried)
    return {**rates, "unparsed": unparsed, "failed": failed}


def format_judge_error_rates(quality: Json) -> str:
    """Write the error rates of a judge as signatures have them: ``lenient=0.31/0.02+strict=0.04/0.08``.

    The numbers are false accepts and false rejects; ``none`` if nothing was measured. For optimised prompts
    they are those on the untouched questions: ``strict(untouched)=0.04/0.08``.
    """
    cited: list[str] = []
    for rubric, of_rubric in quality.items():
        name, rates = rubric, of_rubric
        if "untouched" in of_rubric:
            name, rates = f"{rubric}(untouched)", of_rubric["untouched"]
        values = [rates[error]["value"] for error in ("false_accept", "false_reject")]
        cited.append(f"{name}={'/'.join('unparsed' if v is None else f'{v:.2f}' for v in values)}")
    return "+".join(cited) or "none"


def calibration_cases(judge: JudgeIdentity, benchmark: Benchmark) -> dict[RubricName, list[AnswerToJudge]]:
    """List the calibration answers of a judge by rubric."""
    cases: dict[RubricName, list[AnswerToJudge]] = {}
    for name in judge.rubrics:
        rubric: RubricName = NUGGETS if name == NUGGETS else Rubric(name)
        nugget = 0 if rubric == NUGGETS else None
        cases[rubric] = [
            AnswerToJudge(
                judge.key(rubric, answer.question, answer.text, nugget),
                rubric,
                answer.question,
                answer.text,
                nugget,
            )
            for answer in _known_answers(benchmark, rubric)
        ]
    return cases


def _known_answers(benchmark: Benchmark, rubric: RubricName) -> list[CalibrationAnswer]:
    if benchmark is Benchmark.BEAM:
        return nugget_calibration_answers()
    return [answer for answer in calibration_answers(benchmark) if rubric in answer.verdicts]
