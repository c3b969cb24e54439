"""Which candidate wins: the best on validation, if it beats the baseline there."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from locomo.statistics import PairedComparison, clustered_interval, paired_comparison
from memory_program.evaluation.scoring.question_scores import Json
from memory_program.optimization.candidate_evaluator import Bench, Candidate

FINALISTS = 4
"""How many candidates are tried on all of the validation cases, besides those that the optimiser tried."""

_ROUNDING = 1e-9

MOST_LOST = 0.1
"""The share of the baseline's cases on which a winner may have no score. What fails may be what is hard: a
prompt that no longer fits the context fails on the longest cases."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The winner, which may be the baseline, and by how much it beats the baseline.

    ``comparison`` is None where nothing was compared: no candidate was tried on validation, or the baseline
    was not.
    """

    winner: Candidate
    comparison: PairedComparison | None


def finalists(bench: Bench, proposed: Sequence[str]) -> list[Candidate]:
    """List what is still to be tried on validation: what the optimiser proposes, then the best so far.

    That is by train, or, where an optimiser tries on parts of validation instead (MIPROv2), by those: a
    ranking only, since what is listed is tried on all of it before one is chosen.

    Args:
        bench: knows all that was tried.
        proposed: fingerprints in the optimiser's order; empty if it was stopped.
    """

    def score(candidate: Candidate) -> float:
        found = candidate.train_score if bench.is_trained(candidate) else candidate.val_score
        return found if found is not None else 0.0

    tried = [c for c in bench.candidates if bench.is_trained(c) or c.val]
    ranked = sorted(tried, key=lambda c: (-score(c), c.length, c.name))
    in_order = map(bench.named, dict.fromkeys([*proposed, *(candidate.name for candidate in ranked)]))
    return [candidate for candidate in in_order if not bench.is_validated(candidate)][:FINALISTS]


def choose(bench: Bench, seed: int) -> Choice:
    """Choose among the candidates that were tried on all validation cases, the baseline among them.

    A candidate wins by the mean of its differences to the baseline on the cases where both have a score, of
    which it may lack ``MOST_LOST``. Of equal ones the shorter wins, and the baseline if none is better. The
    interval resamples the groups of cases.
    """
    baseline = bench.baseline
    best: tuple[Candidate, PairedComparison] | None = None
    rivals = [c for c in bench.candidates if c is not baseline and bench.is_validated(c)]
    for candidate in sorted(rivals, key=lambda c: (c.length, c.name)):
        comparison = compared(bench, candidate, seed) if bench.is_validated(baseline) else None
        if comparison is None or comparison.n < (1 - MOST_LOST) * _scored_cases(baseline):
            continue
        if best is None or comparison.difference > best[1].difference:
            best = candidate, comparison
    if best is None:
        return Choice(baseline, None)
    winner, comparison = best
    return Choice(winner if comparison.difference > 0 else baseline, comparison)


def _scored_cases(candidate: Candidate) -> int:
    return sum(value is not None for value in candidate.val.values())


def compared(bench: Bench, candidate: Candidate, seed: int) -> PairedComparison | None:
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


def val_interval(bench: Bench, candidate: Candidate, seed: int) -> Json | None:
    """Give a candidate's mean on validation with its interval, as JSON; None if it has no score there."""
    scored = [(value, case_id) for case_id, value in sorted(candidate.val.items()) if value is not None]
    if not scored:
        return None
    values, case_ids = zip(*scored, strict=True)
    clusters = [bench.cases[case_id].group for case_id in case_ids]
    found = clustered_interval(values, clusters, rng=np.random.default_rng(seed))
    return {"value": found.value, "low": found.low, "high": found.high, "n": found.n}
