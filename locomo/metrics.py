"""Metrics of answers and rankings: the official F1, stricter variants, and evidence recall.

The official scorer is ``task_eval/evaluation.py`` of snap-research/LoCoMo at
``3eb6f2c585f5e1699204e3c3bdf7adc5c28cb376``, reimplemented from its described behaviour.
"""

import math
import re
import string
from collections import Counter
from collections.abc import Collection, Sequence
from itertools import chain

import numpy as np

# The scorer's word boundary is that of this module: it differs from re's after about 30,000 characters.
import regex

from locomo.benchmark_errors import ScoringError
from locomo.stemming import stem
from locomo.types import Category

ABSTENTION_PHRASES = ("no information available", "not mentioned")
"""The phrases by which the official scorer knows that an answer abstains."""

_IGNORED_WORDS = regex.compile(r"\b(?:a|an|the|and)\b")
_DELETE_PUNCTUATION = str.maketrans("", "", string.punctuation)


def locomo_f1(prediction: str, gold: str | int | None, category: int) -> float:
    """Score an answer exactly as the official scorer of LoCoMo does.

    With F1 = harmonic mean of precision and recall over stemmed tokens, counted as multisets, by category:
    multi-hop (1): both sides split at commas; for each gold part the best F1 over the predicted parts;
    the mean over gold parts. Predicted parts that match nothing cost nothing (``set_f1`` makes them cost).
    Temporal (2) and single-hop (4): F1. Open-domain (3): F1 against the gold up to its first ``;``.
    Adversarial (5): 1 if the answer abstains (``is_abstention``), else 0; the gold is not looked at.
    Words are what stands between spaces, so a Chinese sentence is one word, as officially. An evaluation puts
    both sides through ``unspaced_scripts.separate_characters`` first, which compares characters instead.

    Returns:
        A number from 0 to 1; 0 where either side normalises to nothing, even if both do.

    Raises:
        ScoringError: the category is unknown, or an answerable question has no gold.

    Example:
        >>> locomo_f1("May 7th, 2023", "7 May 2023", 2)
        0.6666666666666666
    """
    if category == Category.ADVERSARIAL:
        return float(is_abstention(prediction))
    if category not in set(Category):
        known = ", ".join(f"{c.value} ({c.label})" for c in Category)
        raise ScoringError(f"category={category!r} is unknown; choose from {known}")
    if gold is None:
        raise ScoringError(
            f"a question of category {category} needs a gold answer; got None; correct the data"
        )
    reference = str(gold)
    if category == Category.MULTI_HOP:
        predicted_P, gold_P = _split_by_comma(prediction), _split_by_comma(reference)
        return float(np.mean([max(_token_f1(p, g) for p in predicted_P) for g in gold_P]))
    if category == Category.OPEN_DOMAIN:
        reference = reference.split(";")[0].strip()
    return _token_f1(prediction, reference)


def set_f1(prediction: str, gold: str | int) -> float:
    """Score a list of items by one-to-one matching, so that items too many cost as much as items missed.

    Both sides are split at commas, and parts that normalise to nothing are dropped. With M = the largest
    sum of token F1 that pairs each predicted part with at most one gold part, precision = M / predicted
    parts, recall = M / gold parts, and the score is their harmonic mean, 2M / (predicted + gold parts).
    Ours; symmetric, and 0 where either side has no part.

    Example:
        >>> set_f1("beach, mountains, chess, opera", "beach, mountains")
        0.6666666666666666
    """
    # Deviation: the matching is one-to-one, where the official score may use one part for several golds.
    from scipy.optimize import linear_sum_assignment  # half a second that other scores do not pay

    predicted_P = [part for part in _split_by_comma(prediction) if _tokens(part)]
    gold_P = [part for part in _split_by_comma(str(gold)) if _tokens(part)]
    if not predicted_P or not gold_P:
        return 0.0
    scores = np.array([[_token_f1(p, g) for g in gold_P] for p in predicted_P])
    matched = float(scores[linear_sum_assignment(scores, maximize=True)].sum())
    return 2 * matched / (len(predicted_P) + len(gold_P))


def multiple_choice_score(prediction: str, letter: str) -> float:
    """Return 1 if an answer names the right option and no other, else 0.

    The letters in parentheses count, or, without any, those that stand alone; what follows
    ``<final_answer>`` is tried first, and then the whole answer.

    Source: ``extract_answer`` of ``inference_standalone_openai.py`` in bowen-upenn/PersonaMem at 041d82a.

    Args:
        prediction: the answer of a system.
        letter: the right option, ``(c)`` or ``c``.
    """
    wanted = {letter.lower().strip("() ")}
    for text in (prediction.rpartition("<final_answer>")[2], prediction):
        lowered = text.lower().strip().removesuffix("</final_answer>")
        named = set(re.findall(r"\(([a-d])\)", lowered)) or set(re.findall(r"\b([a-d])\b", lowered))
        if named == wanted:
            return 1.0
    return 0.0


def bleu1(prediction: str, gold: str | int) -> float:
    """Score the words of an answer by BLEU with unigrams only.

    Clipped unigram precision times the brevity penalty, which is 1 for an answer that is longer than the
    gold, else exp(1 - gold length / answer length); 0 where no word is shared.
    Source: Papineni et al. 2002, ACL, sections 2.1 and 2.2.

    Example:
        >>> bleu1("7 May", "7 May 2023")
        0.6065306597126334
    """
    # Deviation: words are normalised as the official F1 does it (not stemmed), not by a BLEU tokenizer.
    predicted, reference = _normalized_words(prediction), _normalized_words(str(gold))
    overlap = (Counter(predicted) & Counter(reference)).total()
    if not overlap:
        return 0.0
    brevity = min(1.0, math.exp(1 - len(reference) / len(predicted)))
    return brevity * overlap / len(predicted)


def is_abstention(prediction: str) -> bool:
    """Tell whether an answer says that the conversation does not, in the official scorer's phrases."""
    lowered = prediction.lower()
    return any(phrase in lowered for phrase in ABSTENTION_PHRASES)


def evidence_recall(evidence: Sequence[str], ranked_sources: Sequence[Sequence[str]], k: int) -> float:
    """Compute the share of a question's evidence turns among the sources of the first k ranked items.

    Args:
        evidence: Turn ids that hold the answer; doubles count once.
        ranked_sources: For each retrieved item, best first, the turn ids that it stands for.
        k: How many items are looked at; a ranking may be shorter.

    Raises:
        ScoringError: no evidence (leave such a question out and count it), or k below 1.
    """
    if k < 1:
        raise ScoringError(f"k={k!r} must be at least 1; give the number of items that were shown")
    return _source_recall(evidence, ranked_sources[:k])


def evidence_recall_under_budget(
    evidence: Sequence[str],
    ranked_sources: Sequence[Sequence[str]],
    tokens_per_item: Sequence[int],
    budget_tokens: int,
) -> float:
    """Compute evidence recall over what a reader with this budget is shown of the ranking.

    Items are taken from the top as long as they fit; after one that does not, a shorter one still may, which
    is how readers pack. Recall may therefore fall a little as the budget grows.

    Raises:
        ScoringError: no evidence, a negative budget, or another number of token counts than of items.
    """
    if budget_tokens < 0:
        raise ScoringError(f"budget_tokens={budget_tokens!r} must not be negative")
    if len(tokens_per_item) != len(ranked_sources):
        raise ScoringError(
            f"{len(tokens_per_item)} token counts for {len(ranked_sources)} ranked items; give one for each"
        )
    shown: list[Sequence[str]] = []
    for sources, tokens in zip(ranked_sources, tokens_per_item, strict=True):
        if tokens <= budget_tokens:
            budget_tokens -= tokens
            shown.append(sources)
    return _source_recall(evidence, shown)


def longmemeval_ndcg(relevant: Collection[str], ranking: Sequence[str], k: int) -> float:
    """Compute the normalised discounted gain of the first k of a ranking, as LongMemEval's evaluation does.

    With gain 1 for what is relevant and 0 for the rest, the gain at rank 1 counts wholly and that at rank
    i > 1 divided by log2(i); the sum is divided by that of the best ranking, which has everything relevant
    first.
    Source: Järvelin and Kekäläinen 2002, ACM TOIS, section 2.2, with base 2; so ``ndcg_any`` in
    ``src/retrieval/eval_utils.py`` of xiaowu0162/LongMemEval at 6a92d1a.

    Args:
        relevant: The ids to be found.
        ranking: Ids, best first, each once.
        k: How many are looked at; a ranking may be shorter.

    Raises:
        ScoringError: nothing is relevant (leave such a question out and count it), or k below 1.

    Example:
        >>> longmemeval_ndcg(["a", "b"], ["a", "x", "y", "b"], 10)
        0.75
    """
    if k < 1:
        raise ScoringError(f"k={k!r} must be at least 1; give the number of items that were shown")
    if not relevant:
        raise ScoringError("a question without evidence has no gain; leave it out, and count it")
    gained = sum(_discount(rank) for rank, name in enumerate(ranking[:k], start=1) if name in relevant)
    best = sum(_discount(rank) for rank in range(1, min(k, len(relevant)) + 1))
    return gained / best


def _discount(rank: int) -> float:
    return 1.0 if rank == 1 else 1 / math.log2(rank)


def _source_recall(evidence: Sequence[str], sources: Sequence[Sequence[str]]) -> float:
    if not evidence:
        raise ScoringError("a question without evidence has no recall; leave it out, and count it")
    wanted = set(evidence)
    return len(wanted.intersection(chain.from_iterable(sources))) / len(wanted)


def _split_by_comma(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def _token_f1(prediction: str, gold: str) -> float:
    predicted, reference = _tokens(prediction), _tokens(gold)
    overlap = (Counter(predicted) & Counter(reference)).total()
    if not overlap:
        return 0.0
    precision = overlap / len(predicted)
    recall = overlap / len(reference)
    return (2 * precision * recall) / (precision + recall)


def _tokens(text: str) -> list[str]:
    return [stem(word) for word in _normalized_words(text)]


def _normalized_words(text: str) -> list[str]:
    """Words as the scorer sees them: no case, no punctuation (deleted, not replaced), no ignored words."""
    lowered = text.replace(",", "").lower()  # commas first: a Greek sigma at the end of a word is another
    return _IGNORED_WORDS.sub(" ", lowered.translate(_DELETE_PUNCTUATION)).split()
