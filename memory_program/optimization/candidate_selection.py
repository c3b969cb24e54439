"""Which candidate wins: the best on validation, if it beats the baseline there."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from locomo.statistics import PairedComparison, clustered_interval, paired_comparison
from memory_program.core.json_files import Json
from memory_program.optimization.candidate_evaluator import CandidateEvaluator, PromptCandidate

MAX_FINALISTS = 4
"""How many candidates are tried on all of the validation cases, besides those that the optimiser tried."""

_ROUNDING = 1e-9

MAX_UNSCORED_SHARE = 0.1
"""The share of the baseline's cases on which a winner may have no score. What fails may be what is hard: a
prompt that no longer fits the context fails on the longest cases."""


@dataclass(frozen=True, slots=True)
class CandidateChoice:
    """The winner, which may be the baseline, and by how much it beats the baseline.

    ``comparison`` is None where nothing was compared: no candidate was tried on validation, or the baseline
    was not.
    """

    winner: PromptCandidate
    comparison: PairedComparison | None


def choose_finalists(bench: CandidateEvaluator, proposed: Sequence[str]) -> list[PromptCandidate]:
    """List what is still to be tried on validation: what the optimiser proposes, then the best so far.

    That is by train, or, where an optimiser tries on parts of validation instead (MIPROv2), by those: a
    ranking only, since what is listed is tried on all of it before one is chosen.

    Args:
        bench: knows all that was tried.
        proposed: fingerprints in the optimiser's order; empty if it was stopped.
    """

    def score(candidate: PromptCandidate) -> float:
        found = candidate.train_score if bench.has_reliable_train_score(candidate) else candidate.val_score
        return found if found is not None else 0.0

    tried = [c for c in bench.candidates if bench.has_reliable_train_score(c) or c.val]
    ranked = sorted(tried, key=lambda c: (-score(c), c.length, c.name))
    in_order = map(bench.named, dict.fromkeys([*proposed, *(candidate.name for candidate in ranked)]))
    return [candidate for candidate in in_order if not bench.is_fully_validated(candidate)][:MAX_FINALISTS]


def choose_candidate(bench: CandidateEvaluator, seed: int) -> CandidateChoice:
    """Choose among the candidates that were tried on all validation cases, the baseline among them.

    A candidate wins by the mean of its differences to the baseline on the cases where both have a score, of
    which it may lack ``MAX_UNSCORED_SHARE``. Of equal ones the shorter wins, and the baseline if none is better. The
    interval resamples the groups of cases.
    """
    baseline = bench.baseline
    best: tuple[PromptCandidate, PairedComparison] | None = None
    rivals = [c for c in bench.candidates if c is not baseline and bench.is_fully_validated(c)]
    for candidate in sorted(rivals, key=lambda c: (c.length, c.name)):
        comparison = (
            compare_with_baseline(bench, candidate, seed) if bench.is_fully_validated(baseline) else None
        )
        if comparison is None or comparison.n < (1 - MAX_UNSCORED_SHARE) * _num_scored_cases(baseline):
            continue
        if best is None or comparison.difference > best[1].difference:
            best = candidate, comparison
    if best is None:
        return CandidateChoice(baseline, None)
    winner, comparison = best
    return CandidateChoice(winner if comparison.difference > 0 else baseline, comparison)


def _num_scored_cases(candidate: PromptCandidate) -> int:
    return sum(value is not None for value in candidate.val.values())


def compare_with_baseline(
    bench: CandidateEvaluator, candidate: PromptCandidate, seed: int
) -> PairedComparison | None:
    """Compare a candidate with the baseline on the validation cases that both have a score for."""
    pairs = [
        (value, base, bench.cases[case_id].group)
        for case_id, value in sorted(candidate.val.items())
        if value is not None and (base := bench.baseline.val.get(case_id)) is not None
    ]
    if not pairs:
        return None
    ours, theirs, clusters = zip(*pairs, strict=True)
    return paired_comparison(ours, theirs, clusters, rng=np.random.default_rng(seed))


def val_interval(bench: CandidateEvaluator, candidate: PromptCandidate, seed: int) -> Json | None:
    """Give a candidate's mean on validation with its interval, as JSON; None if it has no score there."""
    scored = [(value, case_id) for case_id, value in sorted(candidate.val.items()) if value is not None]
    if not scored:
        return None
    values, case_ids = zip(*scored, strict=True)
    clusters = [bench.cases[case_id].group for case_id in case_ids]
    found = clustered_interval(values, clusters, rng=np.random.default_rng(seed))
    return {"value": found.value, "low": found.low, "high": found.high, "n": found.n}
