"""Choice of the best candidate: the best on validation, if it beats the baseline there."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from locomo.statistics import PairedComparison, clustered_interval, paired_comparison
from memory_program.core.json_files import Json
from memory_program.optimization.candidate_evaluator import CandidateEvaluator, PromptCandidate

MAX_FINALISTS = 4
"""Candidates that are tried on all validation cases after the search, besides those that it tried there.
Bootstrap ranks its proposals by nothing, so that all of them are tried: see ``num_finalists``."""

MAX_UNSCORED_SHARE = 0.1
"""A winner may lack a score on this share of the baseline's cases. Failures are not random: a prompt that no
longer fits the context fails on the longest cases."""


MIN_GAIN = 1e-9
"""A smaller difference is none: means of the same scores in another order differ in their last digits."""


@dataclass(frozen=True, slots=True)
class CandidateChoice:
    """The winner, which may be the baseline, and its comparison with the baseline.

    ``comparison`` is None if no candidate, or not the baseline, was tried on all validation cases.
    """

    winner: PromptCandidate
    comparison: PairedComparison | None


def choose_finalists(
    evaluator: CandidateEvaluator, proposed: Sequence[str], limit: int = MAX_FINALISTS
) -> list[PromptCandidate]:
    """List the candidates still to be tried on validation: those proposed, then the best so far.

    The best are those on train, or, where an optimiser tries on parts of validation instead (MIPROv2), those
    on the parts. This only ranks: before one is chosen, each is tried on all validation cases.

    Args:
        evaluator: knows all candidates.
        proposed: fingerprints in the optimiser's order; empty if it was stopped.
        limit: the most candidates to list.
    """

    def score(candidate: PromptCandidate) -> float:
        is_reliable = evaluator.has_reliable_train_score(candidate)
        found = candidate.train_score if is_reliable else candidate.val_score
        return found if found is not None else 0.0

    tried = [c for c in evaluator.candidates if evaluator.has_reliable_train_score(c) or c.val]
    ranked = sorted(tried, key=lambda c: (-score(c), c.length, c.name))
    in_order = map(evaluator.named, dict.fromkeys([*proposed, *(candidate.name for candidate in ranked)]))
    return [c for c in in_order if not evaluator.is_fully_validated(c)][:limit]


def choose_candidate(evaluator: CandidateEvaluator, seed: int) -> CandidateChoice:
    """Choose among the candidates that were tried on all validation cases, including the baseline.

    Candidates are ranked by the mean of their differences to the baseline on the cases where both have a
    score, of which they may lack ``MAX_UNSCORED_SHARE``. At equal differences the shorter one wins, and the
    baseline if none is better. The interval resamples the groups of cases.
    """
    baseline = evaluator.baseline
    best: tuple[PromptCandidate, PairedComparison] | None = None
    if evaluator.is_fully_validated(baseline):
        min_cases = (1 - MAX_UNSCORED_SHARE) * sum(value is not None for value in baseline.val.values())
        rivals = [c for c in evaluator.candidates if c is not baseline and evaluator.is_fully_validated(c)]
        for candidate in sorted(rivals, key=lambda c: (c.length, c.name)):
            comparison = compare_with_baseline(evaluator, candidate, seed)
            if comparison is None or comparison.n < min_cases:
                continue
            if best is None or comparison.difference > best[1].difference + MIN_GAIN:
                best = candidate, comparison
    if best is None:
        return CandidateChoice(baseline, None)
    winner, comparison = best
    return CandidateChoice(winner if comparison.difference > MIN_GAIN else baseline, comparison)


def compare_with_baseline(
    evaluator: CandidateEvaluator, candidate: PromptCandidate, seed: int
) -> PairedComparison | None:
    """Compare a candidate with the baseline on the validation cases on which both have a score."""
    pairs = _paired_scores(evaluator, candidate)
    if not pairs:
        return None
    ours, theirs, clusters = zip(*pairs, strict=True)
    return paired_comparison(ours, theirs, clusters, rng=np.random.default_rng(seed))


def compared_mean(evaluator: CandidateEvaluator, candidate: PromptCandidate) -> float:
    """Return a candidate's mean on the validation cases on which ``compare_with_baseline`` compares it.

    The baseline's mean there is less by the difference. Both may differ from the means over all cases.
    """
    return fmean(value for value, *_ in _paired_scores(evaluator, candidate))


def _paired_scores(
    evaluator: CandidateEvaluator, candidate: PromptCandidate
) -> list[tuple[float, float, str]]:
    """List the candidate's score, the baseline's and the group of each case on which both have one."""
    return [
        (value, base, evaluator.cases[case_id].group)
        for case_id, value in sorted(candidate.val.items())
        if value is not None and (base := evaluator.baseline.val.get(case_id)) is not None
    ]


def val_interval(evaluator: CandidateEvaluator, candidate: PromptCandidate, seed: int) -> Json | None:
    """Return a candidate's mean on validation with its interval, as JSON; None if it has no score there."""
    scored = [(value, case_id) for case_id, value in sorted(candidate.val.items()) if value is not None]
    if not scored:
        return None
    values, case_ids = zip(*scored, strict=True)
    clusters = [evaluator.cases[case_id].group for case_id in case_ids]
    found = clustered_interval(values, clusters, rng=np.random.default_rng(seed))
    return {"value": found.value, "low": found.low, "high": found.high, "n": found.n}
