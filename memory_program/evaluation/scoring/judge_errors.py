"""How often a judge errs where the verdict is known: the records of ``--mode calibrate``, to be cited."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from locomo.judge.calibration import AnswerKind, CalibrationAnswer, calibration_answers
from locomo.judge.rubrics import Rubric, Verdict
from locomo.statistics import clustered_interval
from locomo.types import Benchmark
from memory_program.configs.evaluate_config import EvaluateConfig
from memory_program.core.journal import Journal
from memory_program.core.json_files import Json
from memory_program.evaluation.item_records import JudgeRecord
from memory_program.evaluation.scoring.question_scores import BootstrapSampler
from memory_program.evaluation.scoring.score_signature import JudgeIdentity
from memory_program.evaluation.stages.judge_stage import AnswerToJudge


@dataclass(frozen=True, slots=True)
class JudgedKnownAnswer:
    """An answer whose verdict is known, and what a judge said of it by a rubric; None if the call failed."""

    answer: CalibrationAnswer
    rubric: Rubric
    verdict: Verdict | None

    @property
    def expected_verdict(self) -> Verdict:
        """The verdict that is right."""
        return self.answer.verdicts[self.rubric]

    @property
    def error(self) -> float | None:
        """1 where the verdict is the other one, 0 where it is right; None where there is none."""
        found = self.verdict
        return None if found in (None, Verdict.UNPARSED) else float(found is not self.expected_verdict)


def calibration_folder(config: EvaluateConfig) -> Path:
    """Give the folder of the verdicts on known answers: beside those of the runs, which share it."""
    return config.output_dir.parent / "calibration"


def calibration_journal(config: EvaluateConfig) -> Journal[JudgeRecord]:
    """Read the verdicts on known answers, whosever judge gave them.

    Raises:
        RecordError: the file is damaged.
    """
    return Journal(calibration_folder(config) / "judgements.jsonl", JudgeRecord)


def load_judge_error_rates(
    config: EvaluateConfig, judge: JudgeIdentity | None, benchmark: Benchmark, resampling: BootstrapSampler
) -> Json | None:
    """Give the quality of a judge as it was measured beside the run of a config; None without a judge.

    Raises:
        RecordError: the records are damaged.
    """
    if judge is None:
        return None
    return compute_judge_error_rates(judge, benchmark, calibration_journal(config).records, resampling)


def compute_judge_error_rates(
    judge: JudgeIdentity,
    benchmark: Benchmark,
    records: Mapping[str, JudgeRecord],
    resampling: BootstrapSampler,
) -> Json:
    """Compute how often a judge errs, by rubric; of a rubric that was not tried on every answer, nothing.

    Returns:
        for each rubric: what ``mean_error_rates`` gives; ``kinds``: for each kind and known verdict, n, the share
        of wrong verdicts, and how many replies were unparsed; and, where its prompts were optimised on some
        of the questions, ``untouched``: how many ``questions`` are left, and ``mean_error_rates`` on those alone,
        since those on the others flatter.
    """
    quality: Json = {}
    for rubric, cases in calibration_cases(judge, benchmark).items():
        found = [records.get(case.key) for case in cases]
        tried = [
            JudgedKnownAnswer(answer, rubric, record.verdict)
            for answer, record in zip(_known_answers(benchmark, rubric), found, strict=True)
            if record is not None
        ]
        if len(tried) == len(cases):
            quality[rubric.value] = {
                **mean_error_rates(tried, resampling),
                "kinds": _error_rates_by_kind(tried),
            }
            seen = judge.questions_seen(rubric)
            if seen:
                left = [one for one in tried if one.answer.question.text not in seen]
                quality[rubric.value]["untouched"] = {
                    "questions": len({one.answer.question for one in left}),
                    **mean_error_rates(left, resampling),
                }
    return quality


def mean_error_rates(tried: Sequence[JudgedKnownAnswer], resampling: BootstrapSampler) -> Json:
    """Compute how often a judge errs on answers, all by the same rubric.

    False accept = the share of CORRECT among the verdicts on answers known to be wrong; false reject = the
    share of WRONG among those on answers known to be right. Each is the mean over the kinds of answers, so
    that many easy ones of one kind cannot hide the rest; its interval is clustered by question. Replies
    without a verdict are counted apart, and so are calls that failed.

    Returns:
        ``false_accept`` and ``false_reject`` (value, low, high, n), ``unparsed`` and ``failed``.
    """
    accepts, rejects = (
        [one for one in tried if one.expected_verdict is known] for known in (Verdict.WRONG, Verdict.CORRECT)
    )
    return {
        "false_accept": _mean_error_over_kinds(accepts, resampling, "false_accept"),
        "false_reject": _mean_error_over_kinds(rejects, resampling, "false_reject"),
        "unparsed": sum(one.verdict is Verdict.UNPARSED for one in tried),
        "failed": sum(one.verdict is None for one in tried),
    }


def format_judge_error_rates(quality: Json) -> str:
    """Write a judge's quality as a signature has it: ``lenient=0.31/0.02+strict=0.04/0.08``.

    The numbers are false accepts and false rejects; ``none`` says that nothing was measured. Of prompts that
    were optimised they are those on the untouched questions: ``strict(untouched)=0.04/0.08``.
    """
    cited: list[str] = []
    for rubric, of_rubric in quality.items():
        name, rates = rubric, of_rubric
        if "untouched" in of_rubric:
            name, rates = f"{rubric}(untouched)", of_rubric["untouched"]
        errors = "/".join(_rate(rates[error]["value"]) for error in ("false_accept", "false_reject"))
        cited.append(f"{name}={errors}")
    return "+".join(cited) or "none"


def _rate(value: float | None) -> str:
    return "unparsed" if value is None else f"{value:.2f}"


def _known_answers(benchmark: Benchmark, rubric: Rubric) -> list[CalibrationAnswer]:
    return [answer for answer in calibration_answers(benchmark) if rubric in answer.verdicts]


def calibration_cases(judge: JudgeIdentity, benchmark: Benchmark) -> dict[Rubric, list[AnswerToJudge]]:
    """List what a judge is tried on, for each of its rubrics."""
    return {
        rubric: [
            AnswerToJudge(
                judge.key(rubric, answer.question, answer.text), rubric, answer.question, answer.text
            )
            for answer in _known_answers(benchmark, rubric)
        ]
        for rubric in map(Rubric, judge.rubrics)
    }


def _mean_error_over_kinds(
    tried: Sequence[JudgedKnownAnswer], resampling: BootstrapSampler, name: str
) -> Json:
    judged = [(one, error) for one in tried if (error := one.error) is not None]
    if not judged:
        return {"value": None, "low": None, "high": None, "n": 0}
    kinds = [one.answer.kind for one, _ in judged]
    interval = clustered_interval(
        [error for _, error in judged],
        [one.answer.question.question_id for one, _ in judged],
        weights=[1 / kinds.count(kind) for kind in kinds],
        rng=resampling.rng("calibration", f"{judged[0][0].rubric}/{name}"),
    )
    return asdict(interval)


def _error_rates_by_kind(tried: Sequence[JudgedKnownAnswer]) -> list[Json]:
    rows: list[Json] = []
    for known in (Verdict.CORRECT, Verdict.WRONG):
        for kind in AnswerKind:
            of_kind = [one for one in tried if one.expected_verdict is known and one.answer.kind is kind]
            errors = [error for one in of_kind if (error := one.error) is not None]
            if of_kind:
                rows.append(
                    {
                        "kind": kind.value,
                        "known": known.value,
                        "n": len(errors),
                        "errors": sum(errors) / len(errors) if errors else None,
                        "unparsed": sum(one.verdict is Verdict.UNPARSED for one in of_kind),
                    }
                )
    return rows
