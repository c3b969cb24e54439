"""Retrieval scores of a ranking by turn and by session, as LongMemEval's own evaluation reports them."""

from collections.abc import Callable, Mapping, Sequence

from locomo.metrics import evidence_recall, longmemeval_ndcg
from locomo.types import Question, evidence_group
from memory_program.bank.outcomes import RankedItem

RETRIEVAL_CUTOFFS = (5, 10, 50)
"""The cut-offs k that LongMemEval prints."""


def ranks_sessions(
    question: Question, ranked: Sequence[RankedItem], turn_group: Callable[[str], str] = evidence_group
) -> bool:
    """Tell if a ranking names sessions and no turn, so that it has no recall of turns."""
    sources = {source for item in ranked for source in item.sources}
    has_turns = all(turn_group(turn_id) != turn_id for turn_id in question.evidence)
    return has_turns and bool(sources) and all(turn_group(source) == source for source in sources)


def retrieval_scores(
    question: Question,
    ranked: Sequence[RankedItem] | None,
    turn_group: Callable[[str], str] = evidence_group,
) -> Mapping[str, float] | None:
    """Score the ranking of one question; None where there is no ranking, or no evidence.

    A ranking of memories becomes a ranking of the turns that they cite, and of the sessions of those turns,
    in order and each once. So k counts turns or sessions, whatever the system retrieves. ``turn_group`` names
    the session of a turn (see ``Conversation.turn_group``).

    Returns:
        For ``turn`` and ``session``, where the benchmark names such evidence, and each k: ``turn/recall/5``
        (share of the evidence found), ``turn/recall_all/5`` (1 if all of it is found) and ``turn/ndcg/5``.
    """
    if ranked is None:
        return None
    turns = list(dict.fromkeys(turn_id for item in ranked for turn_id in item.sources))
    grains = {
        "turn": (question.evidence, turns),
        "session": (
            question.labelled_groups or tuple(dict.fromkeys(map(turn_group, question.evidence))),
            list(dict.fromkeys(map(turn_group, turns))),
        ),
    }
    if ranks_sessions(question, ranked, turn_group):
        del grains["turn"]
    scores: dict[str, float] = {}
    for grain, (evidence, ranking) in grains.items():
        for k in RETRIEVAL_CUTOFFS if evidence else ():
            recall = evidence_recall(evidence, [(name,) for name in ranking], k)
            scores[f"{grain}/recall/{k}"] = recall
            scores[f"{grain}/recall_all/{k}"] = float(recall == 1)
            scores[f"{grain}/ndcg/{k}"] = longmemeval_ndcg(set(evidence), ranking, k)
    return scores or None


RETRIEVAL_KEYS = tuple(
    f"{grain}/{measure}/{k}"
    for grain in ("turn", "session")
    for measure in ("recall", "recall_all", "ndcg")
    for k in RETRIEVAL_CUTOFFS
)
"""All scores that a question may have."""
