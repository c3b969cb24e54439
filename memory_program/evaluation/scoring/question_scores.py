"""Scores from records: pure functions that need no model, no program and no file.

A failed call is counted and never scored: means run over the existing answers, ``n`` is their number, and
``count_failures`` counts the others.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from statistics import fmean

import numpy as np

from locomo.judge.rubrics import NUGGETS, Verdict
from locomo.memoryagentbench_metrics import memoryagentbench_score
from locomo.metrics import (
    bleu1,
    evidence_recall,
    evidence_recall_under_budget,
    locomo_f1,
    multiple_choice_score,
    set_f1,
)
from locomo.nugget_scores import nugget_score
from locomo.statistics import clustered_interval, cohen_kappa, paired_comparison
from locomo.types import (
    HEADLINE_TYPES,
    Benchmark,
    Category,
    Competency,
    MemoryAgentBenchTask,
    Question,
    QuestionType,
    WorldQuestionType,
    evidence_group,
)
from locomo.unspaced_scripts import UNSPACED_RUN, separate_characters
from memory_program.bank.outcomes import Outcome, ReplyCounts
from memory_program.core.json_files import Json
from memory_program.evaluation.item_records import AnswerRecord, BuildRecord, JudgeRecord, Record
from memory_program.evaluation.scoring.recall import RETRIEVAL_KEYS, ranks_sessions, retrieval_scores
from memory_program.evaluation.scoring.stage_failures import answer_failures, build_failures, judge_failures
from memory_program.models.usage import Usage

RECALL_CUTOFFS = (5, 10, 25, 50)
RECALL_BUDGET_TOKENS = 2000
"""Fixed, whatever the budget of the reader, so that runs can be compared."""

RECALL_KEYS = (*map(str, RECALL_CUTOFFS), f"{RECALL_BUDGET_TOKENS}tok")

MEAN_OF_TYPES = "mean of types"

METRIC_NAMES = {
    Benchmark.PERSONAMEM: "accuracy",
    Benchmark.BEAM: "nugget_score",
    Benchmark.LOCOMO_PLUS: "link_score",
    Benchmark.MEMORYAGENTBENCH: "memoryagentbench_score",
}
"""The names of the benchmarks' own scores, if they are not LoCoMo's F1."""


@dataclass(frozen=True, slots=True)
class ScoredQuestion:
    """A question with its records and scores; a score is None where there is nothing to score.

    ``locomo_f1`` (or the benchmark's own score, if it has one) and ``bleu1`` need an answer, ``set_f1`` an
    answer to a multi-hop question, ``recall`` and ``retrieval`` (see ``retrieval_scores``) a ranking and
    evidence. ``nuggets`` are the records of the nuggets of an answer that is judged by them.
    """

    question: Question
    record: AnswerRecord | None
    judgements: Mapping[str, JudgeRecord | None]
    locomo_f1: float | None
    set_f1: float | None
    bleu1: float | None
    recall: Mapping[str, float] | None
    retrieval: Mapping[str, float] | None = None
    nuggets: Sequence[JudgeRecord | None] = ()

    @property
    def is_answered(self) -> bool:
        """True if there is an answer, scored or not."""
        return self.record is not None and self.record.answer.outcome is Outcome.OK

    @property
    def needs_judge(self) -> bool:
        """True if there is an answer whose benchmark only a judge can score, and it has no score."""
        return self.is_answered and self.locomo_f1 is None and self.question.benchmark.has_own_score

    @property
    def judged_by(self) -> str | None:
        """The rubric whose verdicts are the benchmark's own score; None if the score needs no judge."""
        if self.nuggets:
            return NUGGETS
        kind = self.question.category
        if not isinstance(kind, MemoryAgentBenchTask) or self.record is None:
            return None
        text, golds, movies = self.record.answer.text, self.question.golds, self.question.movies
        if memoryagentbench_score(kind, text, golds, movies) is not None:
            return None
        return next(iter(self.judgements), None)

    @property
    def is_headline(self) -> bool:
        """True if the question counts for the headline score."""
        return self.question.is_headline

    @property
    def is_answerable(self) -> bool:
        """True if the conversation has the answer."""
        return self.question.is_answerable

    @property
    def tokens(self) -> int | None:
        """Tokens that the reader read and wrote; for a system without a model, the tokens of its context.

        None without an answer, and if the server did not report usage.
        """
        if self.record is None or self.record.answer.outcome is not Outcome.OK:
            return None
        usage = self.record.usage
        if not usage.calls:
            return self.record.answer.context_tokens
        return usage.input_tokens + usage.output_tokens or None


def score_question(
    question: Question,
    record: AnswerRecord | None,
    judgements: Mapping[str, JudgeRecord | None],
    nuggets: Sequence[JudgeRecord | None] = (),
    turn_group: Callable[[str], str] = evidence_group,
) -> ScoredQuestion:
    """Score one answer.

    Args:
        question: the question with its gold answer.
        record: the answer; None if it is missing.
        judgements: for each rubric that grades it, the judgement of this answer; None if it is missing.
        nuggets: the judgement of each nugget of this answer; None if it is missing.
        turn_group: names the session of a turn (see ``Conversation.turn_group``).
    """
    if record is None or record.answer.outcome is not Outcome.OK:
        return ScoredQuestion(question, record, judgements, None, None, None, None, nuggets=nuggets)
    text, gold, category = record.answer.text, question.answer, question.f1_category
    if isinstance(gold, str) and UNSPACED_RUN.search(gold):  # others are scored as officially
        text, gold = separate_characters(text), separate_characters(gold)
    answerable = gold if question.is_answerable else None
    evidence, ranked = question.evidence, record.answer.ranked
    recall: dict[str, float] | None = None
    if evidence and ranked is not None and not ranks_sessions(question, ranked, turn_group):
        sources, tokens = [item.sources for item in ranked], [item.tokens for item in ranked]
        recalls = [evidence_recall(evidence, sources, k) for k in RECALL_CUTOFFS]
        recalls.append(evidence_recall_under_budget(evidence, sources, tokens, RECALL_BUDGET_TOKENS))
        recall = dict(zip(RECALL_KEYS, recalls, strict=True))
    if question.benchmark.has_own_score:
        own: float | None = None  # also if a judge has to score it, and has not found everything
        prediction, kind = record.answer.text, question.category
        judged = [(one.value, one.lines) for one in nuggets if one is not None and one.value is not None]
        if question.benchmark is Benchmark.PERSONAMEM:
            own = multiple_choice_score(prediction, str(question.answer))
        elif isinstance(kind, MemoryAgentBenchTask):
            own = memoryagentbench_score(kind, prediction, question.golds, question.movies)
        is_summary = kind is MemoryAgentBenchTask.SUMMARIZATION
        if own is None and isinstance(kind, MemoryAgentBenchTask) and not is_summary:
            # of the first rubric: others are other scores
            own = _record_score(next(iter(judgements.values()), None))
        elif own is None and judged and len(judged) == len(nuggets):
            values, lines = zip(*judged, strict=True)
            own = nugget_score(question, prediction, values, lines)
        found = retrieval_scores(question, ranked, turn_group)
        return ScoredQuestion(question, record, judgements, own, None, None, recall, found, nuggets)
    return ScoredQuestion(
        question=question,
        record=record,
        judgements=judgements,
        locomo_f1=locomo_f1(text, gold, category),
        set_f1=None if gold is None or category is not Category.MULTI_HOP else set_f1(text, gold),
        bleu1=None if answerable is None else bleu1(text, answerable),
        recall=recall,
        retrieval=retrieval_scores(question, ranked, turn_group),
    )


@dataclass(frozen=True, slots=True)
class BootstrapSampler:
    """The random numbers of intervals: each interval has its own stream, whatever else is computed."""

    seed: int

    def rng(self, *labels: str) -> np.random.Generator:
        """Return the random generator of some labels; equal labels give equal streams."""
        digest = hashlib.sha256("/".join((str(self.seed), *labels)).encode()).digest()
        return np.random.default_rng(int.from_bytes(digest[:8]))

    def mean_interval(
        self,
        scored: Sequence[ScoredQuestion],
        score: Callable[[ScoredQuestion], float | None],
        label: str,
        *,
        by_type: bool = False,
    ) -> Json:
        """Compute the mean of a score over the questions that have it: value, low, high and n.

        With ``by_type`` it is the mean of the means of the question types.
        """
        present = [(item.question, value) for item in scored if (value := score(item)) is not None]
        if not present:
            return {"value": None, "low": None, "high": None, "n": 0}
        sizes = Counter(question.category for question, _ in present)
        interval = clustered_interval(
            [value for _, value in present],
            [question.cluster for question, _ in present],
            weights=[1 / sizes[question.category] for question, _ in present] if by_type else None,
            rng=self.rng(label),
        )
        return asdict(interval)


def headline_types(questions: Iterable[Question]) -> tuple[QuestionType, ...]:
    """List the question types of a benchmark's headline score; LoCoMo's, if there are no questions."""
    first = next(iter(questions), None)
    return HEADLINE_TYPES[first.benchmark if first is not None else Benchmark.LOCOMO]


def mean_by_category(
    scored: Sequence[ScoredQuestion],
    score: Callable[[ScoredQuestion], float | None],
    resampling: BootstrapSampler,
    label: str,
) -> Json:
    """Compute the mean of a score over the headline questions, together (micro) and by type.

    For LongMemEval and MemoryAgentBench also the mean of the means of the types, as their own evaluations do;
    for the latter of all types, and of those of each competency.
    """
    headline = [item for item in scored if item.is_headline]
    types = headline_types(item.question for item in scored)
    groups = {"all": headline} | {
        kind.label: [item for item in headline if item.question.category is kind] for kind in types
    }
    scores = {
        name: resampling.mean_interval(group, score, f"{label}/{name}") for name, group in groups.items()
    }
    if types == HEADLINE_TYPES[Benchmark.MEMORYAGENTBENCH]:
        tasks = [(item, item.question.category) for item in headline]
        for competency in Competency:
            group = [
                item
                for item, task in tasks
                if isinstance(task, MemoryAgentBenchTask) and task.competency is competency
            ]
            name = competency.label
            scores[name] = resampling.mean_interval(group, score, f"{label}/{name}", by_type=True)
    if types in (HEADLINE_TYPES[Benchmark.LONGMEMEVAL], HEADLINE_TYPES[Benchmark.MEMORYAGENTBENCH]):
        scores[MEAN_OF_TYPES] = resampling.mean_interval(
            headline, score, f"{label}/{MEAN_OF_TYPES}", by_type=True
        )
    return scores


def summarize_system(
    scored: Sequence[ScoredQuestion],
    builds: Sequence[BuildRecord | None],
    resampling: BootstrapSampler,
    replaced: Sequence[Record] = (),
) -> Json:
    """Compute all reported numbers of one system, as JSON.

    Args:
        scored: every question of the run.
        builds: the record of every session of the run; None for one that is not built.
        resampling: the random numbers of the intervals.
        replaced: records that a retry replaced; only their usage counts.
    """
    retrieved = [item for item in scored if item.recall is not None]
    recalls = {
        key: resampling.mean_interval(
            retrieved, lambda item, key=key: (item.recall or {}).get(key), f"recall/{key}"
        )
        for key in RECALL_KEYS
    }
    unanswerable = [item for item in scored if not item.is_answerable]
    earlier = [item for item in scored if item.question.category is WorldQuestionType.EARLIER_STATE]
    categories = [item for item in scored if item.is_headline or not item.is_answerable]
    tokens = [item.tokens for item in scored if item.tokens is not None]
    records = [*scored_records(scored, builds), *replaced]
    stages = usage_by_stage(records)
    total = sum(stages.values(), Usage())
    failures = {
        "build": build_failures(builds),
        "answer": answer_failures(item.record for item in scored),
        "judge": judge_failures(j for item in scored for j in (*item.judgements.values(), *item.nuggets)),
    }
    return {
        "locomo_f1": mean_by_category(scored, _locomo_f1, resampling, "locomo_f1"),
        "abstention": resampling.mean_interval(unanswerable, _locomo_f1, "abstention"),
        "overall_with_abstention": resampling.mean_interval(categories, _locomo_f1, "overall"),
        "earlier_state": resampling.mean_interval(earlier, _locomo_f1, "earlier_state"),
        "set_f1": resampling.mean_interval(scored, lambda item: item.set_f1, "set_f1"),
        "bleu1": mean_by_category(scored, lambda item: item.bleu1, resampling, "bleu1"),
        "unscored": sum(item.needs_judge for item in scored),
        "judge": summarize_verdicts(scored, resampling),
        "recall": {key: interval["value"] for key, interval in recalls.items()},
        "recall_intervals": recalls,
        "retrieval": {
            key: resampling.mean_interval(
                scored, lambda item, key=key: (item.retrieval or {}).get(key), f"retrieval/{key}"
            )
            for key in RETRIEVAL_KEYS
        },
        "tokens_per_question": fmean(tokens) if tokens else None,
        "memory": summarize_builds(builds),
        "repaired_answers": sum(item.record.answer.repaired for item in scored if item.record is not None),
        "calls": total.calls,
        "cost_usd": total.cost_usd,
        "seconds": sum(record.elapsed_s for record in records if not math.isnan(record.elapsed_s)),
        "latency": {
            "seconds": {
                "question": latency_percentiles(item.record for item in scored),
                "session": latency_percentiles(builds),
            }
        },
        "usage": {stage: asdict(usage) for stage, usage in stages.items()},
        "failures": count_failures(scored, builds),
        "first_failures": {stage: found.first for stage, found in failures.items() if found.failures},
    }


def latency_percentiles(records: Iterable[AnswerRecord | BuildRecord | None]) -> dict[str, float | None]:
    """Return the 50th and 95th percentile of the seconds per item; None where no item has a time.

    An item without a model call may take no time at all, and counts; a missing one does not, nor one of a
    system from elsewhere that says no time.
    """
    seconds = [r.elapsed_s for r in records if r is not None and not math.isnan(r.elapsed_s)]
    if not any(seconds):
        return {"p50": None, "p95": None}
    return {f"p{share}": float(np.percentile(seconds, share)) for share in (50, 95)}


def _locomo_f1(item: ScoredQuestion) -> float | None:
    return item.locomo_f1


def summarize_verdicts(scored: Sequence[ScoredQuestion], resampling: BootstrapSampler) -> Json | None:
    """Compute the share of correct verdicts by rubric, and the rubrics' agreement; None without a judge.

    A judge score is correct / (correct + wrong); unparsed verdicts are counted separately. If questions
    without an answer are judged too, ``abstention`` is the score on those.
    """
    judged = [item for item in scored if item.judgements and item.is_headline]
    rubrics = list(judged[0].judgements) if judged else []
    if not rubrics:
        return None
    unanswerable = [item for item in judged if not item.is_answerable]
    summary: Json = {}
    for rubric in rubrics:

        def score(item: ScoredQuestion, rubric: str = rubric) -> float | None:
            return verdict_score(item, rubric)

        summary[rubric] = mean_by_category(judged, score, resampling, f"judge/{rubric}")
        if unanswerable:
            label = f"judge/{rubric}/abstention"
            summary[rubric]["abstention"] = resampling.mean_interval(unanswerable, score, label)
        summary[rubric]["unparsed"] = sum(_is_unparsed(item.judgements[rubric]) for item in judged)
    pairs = [tuple(verdict_score(item, rubric) for rubric in rubrics) for item in judged]
    both = [pair for pair in pairs if len(pair) == 2 and None not in pair]
    summary["kappa"] = cohen_kappa([a for a, _ in both], [b for _, b in both]) if both else None
    return summary


def verdict_score(item: ScoredQuestion, rubric: str) -> float | None:
    """Return 1 for a correct verdict, 0 for a wrong one, None without a verdict."""
    return _record_score(item.judgements.get(rubric))


def _record_score(judgement: JudgeRecord | None) -> float | None:
    if judgement is None or judgement.verdict not in (Verdict.CORRECT, Verdict.WRONG):
        return None
    return float(judgement.verdict is Verdict.CORRECT)


def _is_unparsed(judgement: JudgeRecord | None) -> bool:
    return judgement is not None and judgement.verdict is Verdict.UNPARSED


def count_failures(scored: Sequence[ScoredQuestion], builds: Sequence[BuildRecord | None]) -> Json:
    """Count the items without a result, by stage and kind; ``missing`` were not tried; ``all`` is the sum."""
    judged = [item for item in scored if item.is_headline]
    build: Counter[str] = Counter({"missing": sum(record is None for record in builds)})
    build.update(f.outcome.value for record in builds if record for f in record.record.failures)
    answer = Counter(item.record.answer.outcome.value if item.record else "missing" for item in scored)
    judge: Counter[str] = Counter()
    for item in judged:
        for record in (*item.judgements.values(), *item.nuggets):
            if record is None:
                judge["missing"] += item.is_answered
            else:
                unparsed = Outcome.UNPARSED if _is_unparsed(record) else record.outcome
                judge[unparsed.value] += 1
    kinds = (Outcome.ERROR.value, Outcome.UNPARSED.value, Outcome.TRUNCATED.value, "missing")
    stages = {"build": build, "answer": answer, "judge": judge}
    counts: Json = {stage: {kind: found[kind] for kind in kinds} for stage, found in stages.items()}
    return {"all": sum(sum(stage.values()) for stage in counts.values()), **counts}


def summarize_builds(builds: Sequence[BuildRecord | None]) -> Json:
    """Sum up the sessions, operations and tool calls of the build; a silent session has no call of a tool."""
    built = [build for build in builds if build is not None]
    records = [build.record for build in built]
    silent = [b for b in built if b.usage.calls and not (b.record.tool_calls or b.record.operations)]
    return {
        "sessions": len(records),
        "silent_sessions": sum(not build.record.failures for build in silent),
        "operations": sum(record.operations for record in records),
        "tool_calls": sum(record.tool_calls for record in records),
        "tool_errors": sum(len(record.tool_errors) for record in records),
        "odd_dates": sum(len(record.odd_dates) for record in records),
        "left_out": sum(len(record.left_out) for record in records),
        **asdict(sum((record.counts for record in records), ReplyCounts())),
    }


def usage_by_stage(records: Sequence[Record]) -> dict[str, Usage]:
    """Sum up tokens, dollars and calls by stage."""
    stage_of = {BuildRecord: "build", AnswerRecord: "answer", JudgeRecord: "judge"}
    sums = {stage: Usage() for stage in stage_of.values()}
    for record in records:
        sums[stage_of[type(record)]] += record.usage
    return sums


def scored_records(scored: Sequence[ScoredQuestion], builds: Sequence[BuildRecord | None]) -> list[Record]:
    """List the records that the scores come from."""
    answers = [item.record for item in scored]
    judgements = [record for item in scored for record in (*item.judgements.values(), *item.nuggets)]
    return [record for record in (*builds, *answers, *judgements) if record is not None]


def paired_comparisons(
    scored_by_system: Mapping[str, Sequence[ScoredQuestion]],
    rubrics: Sequence[str],
    resampling: BootstrapSampler,
    rubrics_apart: Collection[str] = (),
) -> list[Json]:
    """Compare each pair of systems on the headline questions that both have scores for.

    Scores by ``rubrics_apart`` are left out: the systems have different judges for them. Each entry is the
    difference ``a`` minus ``b``; see ``locomo.statistics.paired_comparison``.
    """

    def own_score(item: ScoredQuestion) -> float | None:
        return None if item.judged_by in rubrics_apart else item.locomo_f1

    measures: dict[str, Callable[[ScoredQuestion], float | None]] = {"locomo_f1": own_score}
    measures |= {
        f"judge/{rubric}": lambda item, rubric=rubric: verdict_score(item, rubric) for rubric in rubrics
    }
    comparisons: list[Json] = []
    for (a, scored_a), (b, scored_b) in combinations(scored_by_system.items(), 2):
        for metric, score in measures.items():
            triples = [
                (score(one), score(other), one.question.cluster)
                for one, other in zip(scored_a, scored_b, strict=True)
                if one.is_headline
            ]
            both = [(x, y, cluster) for x, y, cluster in triples if x is not None and y is not None]
            if both:
                xs, ys, clusters = zip(*both, strict=True)
                rng = resampling.rng("compare", metric, a, b)
                named = (
                    METRIC_NAMES.get(scored_a[0].question.benchmark, metric) if score is own_score else metric
                )
                comparisons.append(
                    {"a": a, "b": b, "metric": named} | asdict(paired_comparison(xs, ys, clusters, rng=rng))
                )
    return comparisons
