"""The order of events in an answer, as BEAM scores it: Kendall's tau-b over ranks with ties.

The official scorer is ``event_ordering_score`` in ``src/evaluation/compute_metrics.py`` of
mohammadtavakoli78/BEAM at b2a3ee8, reimplemented from its described behaviour.
"""

import math
from collections.abc import Sequence
from itertools import combinations

from locomo.benchmark_errors import ScoringError


def kendall_tau_b(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Compute the rank correlation of two sequences, corrected for ties, from -1 to 1.

    With C concordant and D discordant pairs, and X and Y the pairs that are not tied in xs and in ys,
    tau-b = (C - D) / sqrt(X * Y).
    Source: Kendall 1945, Biometrika, "The treatment of ties in ranking problems".

    Raises:
        ScoringError: the lengths differ, or one side is all ties, where nothing is defined.

    Example:
        >>> kendall_tau_b([1, 2, 3], [1, 3, 2])
        0.3333333333333333
    """
    if len(xs) != len(ys):
        raise ScoringError(f"{len(xs)} ranks against {len(ys)}; give one for each item on both sides")
    signs = [(_sign(xs[i] - xs[j]), _sign(ys[i] - ys[j])) for i, j in combinations(range(len(xs)), 2)]
    untied = math.sqrt(sum(x != 0 for x, _ in signs) * sum(y != 0 for _, y in signs))
    if not untied:
        raise ScoringError(
            "ranks that are all equal have no correlation; give at least two ranks on each side"
        )
    return sum(x * y for x, y in signs) / untied


def event_ordering_score(
    events: Sequence[str], answer_lines: Sequence[str], found_in: Sequence[Sequence[int]]
) -> float:
    """Score the order of events in an answer: (tau-b + 1) / 2, from 0 to 1.

    A line of the answer stands for the first event that is found in it and that no earlier line stands for; a
    line without an event is an item of its own. Both sides rank all items, and those that one side lacks
    share its last rank, one more than the number of items.

    Args:
        events: at least two events in the right order.
        answer_lines: the lines of the answer.
        found_in: for each event, the numbers of the lines that mention it, from 1.

    Raises:
        ScoringError: the events are fewer than two, or have not one line each.

    Example:
        >>> event_ordering_score(["a", "b", "c"], ["first b", "then a"], [[2], [1], []])
        0.6666666666666666
    """
    # Deviation: blank lines of an answer are no items, and an answer without lines scores 0. Officially a
    # blank line is an item, so that an empty answer to a question about two events scores 0.09.
    if len(events) < 2 or len(found_in) != len(events):
        raise ScoringError(
            f"{len(found_in)} lines for {len(events)} events; give at least two events, and a line for each"
        )
    said: list[str] = []
    taken = set[int]()  # by their places: a rubric may list an event twice
    for number, line in enumerate(answer_lines, start=1):
        found = (i for i, places in enumerate(found_in) if number in places and i not in taken)
        place = next(found, -1)
        said.append(events[place] if place >= 0 else line)
        taken.add(place)
    union = list(dict.fromkeys([*events, *said]))
    if len(union) == 1:
        return float(bool(said))  # equal events, and nothing else was said
    ranks = [{item: rank for rank, item in enumerate(side, start=1)} for side in (events, said)]
    missing = len(union) + 1
    expected, given = ([of_side.get(item, missing) for item in union] for of_side in ranks)
    # Of equal lines the last one's rank counts, as officially; it may be the rank of what is missing.
    # Deviation: an answer in which all ranks are equal scores 0, where the official tau-b is not a number.
    has_order = len(set(expected)) > 1 and len(set(given)) > 1
    return (kendall_tau_b(expected, given) + 1) / 2 if has_order else 0.0


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)
