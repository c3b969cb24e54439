"""Fit the weights of the extractive baseline on LoCoMo's train split, and write them into the package.

python benchmarks/tune_extractive.py [--data locomo10.json] [--seed 0] [--output FILE]

Only the six conversations of the train split are read. Whatever is printed comes from weights that were
fitted without the conversation on which they are tried; test figures come from ``evaluate.py --split test``.
"""

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from locomo.locomo import load_locomo
from locomo.metrics import locomo_f1
from locomo.splits import select_split
from locomo.types import Category, Conversation, Question
from memory_program.agents.spans import span_ranking as ranking
from memory_program.agents.spans.date_answers import date_candidates, date_features
from memory_program.agents.spans.question_analysis import AnswerType, parse_question
from memory_program.agents.spans.span_answers import MAX_SEARCHED_TURNS, extract_answer
from memory_program.agents.spans.span_features import Evidence, Matrix, span_features
from memory_program.agents.spans.span_ranking import SPAN_KINDS, ExtractorWeights
from memory_program.bank.archive import Archive
from memory_program.core.command_line import run_script

OUTPUT = Path(__file__).parents[1] / "memory_program/agents/spans/extractive.json"

KEPT_ZEROS = 0.25
"""Of the candidates that share nothing with the gold, the share that is sampled; the softmax is corrected."""
SHARPNESS = 2.0
"""The fitted softmax is too flat to agree on one span; chosen on train among 0.7, 1, 1.5 and 2."""
DATE_PENALTY, SHARED_PENALTY, KIND_PENALTY = 0.02, 0.005, 0.04
STEPS, STEP_SIZE = 100, 0.05
LEAST_SPREAD = 0.05
"""Features that hardly vary are not scaled up beyond this."""
NEVER = 1.1
"""A doubt limit that no probability reaches."""
KEPT_F1 = 0.95
"""The doubt limit may cost this share of the F1 of answerable questions, and no more."""


@dataclass(frozen=True, slots=True)
class Example:
    """A question with the turns found for it, and the sampled candidates with the official F1 of each."""

    question: Question
    evidence: Evidence
    features: NDArray[np.float32]
    values: NDArray[np.float32]
    corrections: NDArray[np.float32]
    """Added to each candidate's score, since it stands for others that were not sampled."""

    @property
    def kind(self) -> AnswerType:
        """The answer type that the question asks for."""
        return self.evidence.clues.answer_type

    @property
    def teaches(self) -> bool:
        """True if some candidate is partly right."""
        return bool(self.values.max(initial=0.0) > 0)


def make_examples(conversation: Conversation, rng: np.random.Generator) -> Iterator[Example]:
    """Find the turns for every question of a conversation, and score the candidates in them."""
    archive = Archive()
    for session in conversation.sessions:
        archive.add_sessions([session])
    for question in conversation.questions:
        clues = parse_question(question.text, archive.speakers)
        evidence = Evidence(clues, archive.search(question.text, MAX_SEARCHED_TURNS), archive)
        if clues.answer_type is AnswerType.DATE:
            dates = date_candidates(evidence)
            features, texts = date_features(evidence, dates), [date.text for date in dates]
        else:
            spans = ranking.span_candidates(evidence)
            features = span_features(evidence)[spans]
            texts = [evidence.excerpts.text(int(span)) for span in spans]
        values = np.array([score(text, question) for text in texts], dtype=np.float32)
        share = 1.0 if clues.answer_type is AnswerType.DATE else KEPT_ZEROS
        kept = (values > 0) | (rng.random(len(values)) < share)
        corrections = np.where(values > 0, 0.0, -np.log(share))
        yield Example(
            question,
            evidence,
            features[kept].astype(np.float32),
            values[kept],
            corrections[kept].astype(np.float32),
        )


def score(text: str, question: Question) -> float:
    """The official F1 of an answer; 0 for every answer to a question that has none."""
    if question.category is Category.ADVERSARIAL or question.answer is None:
        return 0.0
    assert isinstance(question.category, Category), "the training split is LoCoMo's"
    return locomo_f1(text, question.answer, question.category)


def fit_softmax(
    examples: Sequence[Example], kinds: Sequence[AnswerType], shared_penalty: float, kind_penalty: float
) -> dict[AnswerType, Matrix]:
    """Fit one weight vector per kind of question: shared weights plus what the kind adds to them.

    Maximises the mean over questions of ``best F1 x mean over the best candidates of log p``, less both
    penalties times half the squared weights, by Adam; convex, and without any randomness.
    """
    examples = sorted((e for e in examples if e.teaches), key=lambda e: kinds.index(e.kind))
    features = np.concatenate([e.features for e in examples])
    spread = np.maximum(features.std(axis=0), LEAST_SPREAD)
    features /= spread
    values = np.concatenate([e.values for e in examples])
    corrections = np.concatenate([e.corrections for e in examples])
    bounds = np.cumsum([0, *(len(e.values) for e in examples)])
    owner = np.repeat(np.arange(len(examples)), np.diff(bounds))
    best = np.maximum.reduceat(values, bounds[:-1])
    is_best = values == best[owner]
    targets = is_best / np.add.reduceat(is_best.astype(np.float32), bounds[:-1])[owner]
    blocks = [
        (place, slice(bounds[min(rows)], bounds[max(rows) + 1]))
        for place, kind in enumerate(kinds)
        if (rows := [row for row, e in enumerate(examples) if e.kind is kind])
    ]
    weights = np.zeros((1 + len(kinds), features.shape[1]))  # the shared ones first
    penalties = np.array([shared_penalty, *[kind_penalty] * len(kinds)])[:, None]
    mean, square = np.zeros_like(weights), np.zeros_like(weights)
    for step in range(1, STEPS + 1):
        scores = corrections.copy()
        for place, rows in blocks:
            scores[rows] += features[rows] @ (weights[0] + weights[1 + place]).astype(np.float32)
        powers = np.exp(scores - np.maximum.reduceat(scores, bounds[:-1])[owner])
        shares = powers / np.add.reduceat(powers, bounds[:-1])[owner]
        errors = best[owner] * (targets - shares) / len(examples)
        gradient = np.zeros_like(weights)
        for place, rows in blocks:
            gradient[1 + place] = errors[rows] @ features[rows]
        gradient[0] = gradient.sum(axis=0)
        gradient -= penalties * weights
        mean += 0.1 * (gradient - mean)
        square += 0.001 * (gradient**2 - square)
        weights += STEP_SIZE * (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.999**step)) + 1e-8)
    return {kind: (weights[0] + weights[1 + place]) / spread for place, kind in enumerate(kinds)}


def fit_logistic(features: Matrix, labels: NDArray[np.bool_], penalty: float = 1.0) -> Matrix:
    """Fit a logistic model by Newton's method; the first feature is the constant and is not penalised."""
    weights = np.zeros(features.shape[1])
    penalties = np.diag([0.0, *[penalty] * (features.shape[1] - 1)])
    for _ in range(25):
        shares = 1 / (1 + np.exp(-(features @ weights)))
        curvature = (features * (shares * (1 - shares))[:, None]).T @ features + penalties
        weights += np.linalg.solve(curvature, features.T @ (labels - shares) - penalties @ weights)
    return weights


def fit_ranking(examples: Sequence[Example]) -> ExtractorWeights:
    """Fit the weights of spans and dates; nothing is doubted yet."""
    spans = [e for e in examples if e.kind in SPAN_KINDS]
    dates = [e for e in examples if e.kind is AnswerType.DATE]
    fitted = fit_softmax(spans, SPAN_KINDS, SHARED_PENALTY, KIND_PENALTY)
    return ExtractorWeights(
        spans={kind: SHARPNESS * weights for kind, weights in fitted.items()},
        dates=fit_softmax(dates, (AnswerType.DATE,), DATE_PENALTY, DATE_PENALTY)[AnswerType.DATE],
        doubt=np.zeros(len(ranking.NO_ANSWER_FEATURES)),
        doubt_limit=NEVER,
    )


def measure_no_answer_features(examples: Sequence[Example], weights: ExtractorWeights) -> Matrix:
    """Measure the doubt features of every example: shape (examples, doubt features)."""
    rows: list[Matrix] = []
    for example in examples:
        evidence = example.evidence
        spans = ranking.span_candidates(evidence)
        shares = ranking.candidate_probabilities(span_features(evidence)[spans], weights.spans[example.kind])
        rows.append(ranking.no_answer_features(evidence, evidence.excerpts.span_hits[spans], shares))
    return np.array(rows)


@dataclass(frozen=True, slots=True)
class HeldOut:
    """An example with what weights fitted on the other conversations make of it."""

    example: Example
    f1: float
    """Of the answer, were it given without any doubt."""
    doubt_row: Matrix | None
    """None where an answer is never doubted: dates, yes or no, and guesses."""

    @property
    def has_answer(self) -> bool:
        """True for questions of categories 1 to 4."""
        return self.example.question.category is not Category.ADVERSARIAL


def hold_out(examples: Sequence[Example]) -> list[HeldOut]:
    """Answer every question with weights that were fitted without its conversation."""
    tried: list[HeldOut] = []
    for conversation_id in sorted({e.question.conversation_id for e in examples}):
        inside = [e for e in examples if e.question.conversation_id == conversation_id]
        weights = fit_ranking([e for e in examples if e.question.conversation_id != conversation_id])
        doubtful = [e for e in inside if e.kind in SPAN_KINDS and e.evidence.excerpts.spans.size]
        rows = dict(zip(map(id, doubtful), measure_no_answer_features(doubtful, weights), strict=True))
        for example in inside:
            evidence = example.evidence
            text = extract_answer(
                example.question.text,
                evidence.excerpts.hits,
                evidence.archive,
                replace(weights, doubt_limit=2.0),
            )
            tried.append(HeldOut(example, score(text, example.question), rows.get(id(example))))
    return tried


def held_out_doubts(tried: Sequence[HeldOut]) -> Matrix:
    """The doubt about each example, from a model fitted without its conversation; 0 where there is none."""
    doubts = np.zeros(len(tried))
    ids = np.array([one.example.question.conversation_id for one in tried])
    for conversation_id in sorted(set(ids)):
        others = [one for one, where in zip(tried, ids, strict=True) if where != conversation_id]
        weights = fit_doubt(others)
        for place, one in enumerate(tried):
            if ids[place] == conversation_id and one.doubt_row is not None:
                doubts[place] = ranking.no_answer_probability(one.doubt_row, weights)
    return doubts


def fit_doubt(tried: Sequence[HeldOut]) -> Matrix:
    """Fit the doubt model on questions with and without an answer."""
    rows = [(one.doubt_row, not one.has_answer) for one in tried if one.doubt_row is not None]
    return fit_logistic(np.array([row for row, _ in rows]), np.array([label for _, label in rows]))


def choose_limit(tried: Sequence[HeldOut], doubts: Matrix) -> float:
    """The lowest limit that leaves 95 % of the F1 on questions that have an answer."""
    f1 = np.array([one.f1 for one in tried if one.has_answer])
    doubts_of_answerable = doubts[[one.has_answer for one in tried]]
    limits = [limit / 100 for limit in range(5, 100, 5)]
    return next(limit for limit in limits if f1[doubts_of_answerable < limit].sum() >= KEPT_F1 * f1.sum())


def print_held_out(tried: Sequence[HeldOut], doubts: Matrix, limit: float) -> None:
    """Print the scores by category, without and with abstention."""
    scores: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for one, doubt in zip(tried, doubts, strict=True):
        category = one.example.question.category
        answered = one.f1 * (doubt < limit) if one.has_answer else float(doubt >= limit)
        for name in (category.label, "1-4" if one.has_answer else "5", "all"):
            scores[name].append((one.f1, answered))
    for name, pairs in scores.items():
        never, doubting = np.mean(pairs, axis=0)
        print(f"{name:12} n={len(pairs):4}  without doubt {never:.4f}  with {doubting:.4f}")


def main(arguments: Sequence[str]) -> None:
    """Fit, report, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=None, help="the official file; downloaded by default")
    parser.add_argument("--seed", type=int, default=0, help="of the sampling of candidates")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    options = parser.parse_args(arguments)
    dataset = load_locomo(options.data)
    rng = np.random.default_rng(options.seed)
    train = select_split(dataset.conversations, "train")
    examples = [example for conversation in train for example in make_examples(conversation, rng)]
    tried = hold_out(examples)
    doubts = held_out_doubts(tried)
    limit = choose_limit(tried, doubts)
    print(f"held out, {len(examples)} questions, doubt limit {limit}")
    print_held_out(tried, doubts, limit)
    weights = replace(fit_ranking(examples), doubt=fit_doubt(tried), doubt_limit=limit)
    provenance = {
        "command": f"python benchmarks/tune_extractive.py --seed {options.seed}",
        "data_sha256": dataset.sha256,
        "split": "train",
        "questions": len(examples),
    }
    options.output.write_text(
        json.dumps({"provenance": provenance, **weights.to_json()}, indent=1) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    sys.exit(run_script(lambda: main(sys.argv[1:])))
