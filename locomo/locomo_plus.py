"""LoCoMo-Plus, read into the benchmark's types: replies that should use something said long before.

Source: Li et al. 2026, "Locomo-Plus: Beyond-Factual Cognitive Memory Evaluation Framework for LLM Agents"
(ACL, arXiv 2602.10715), with ``data/build_conv.py`` and ``data/unified_input.py`` of xjtuleeyf/Locomo-Plus at
059f4e3. The authors' repository names no licence, so nothing is downloaded here but LoCoMo itself.
"""

import hashlib
import re
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from locomo.benchmark_errors import DatasetError
from locomo.json_at import JsonAt
from locomo.locomo import Dataset, load_locomo, read_json
from locomo.types import Benchmark, Conversation, PlusRelation, Question, Session, Turn

_ASKED_AFTER = timedelta(days=7)
"""The time from the last session to the remark of today."""

_COUNTS = {
    **{"a": 1, "an": 1, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7},
    **{"eight": 8, "nine": 9, "ten": 10, "eleven": 11, "twelve": 12},
}
_DAYS = {"week": 7, "month": 30, "year": 365}
_GAP = re.compile(rf"\b(\d{{1,4}}|{'|'.join(_COUNTS)})\s*({'|'.join(_DAYS)})s?\b")
_LINE = re.compile(r"\s*([AB]):\s*(.*\S)\s*")


def load_locomo_plus(path: Path | None, talks: Sequence[Conversation] | None = None) -> Dataset:
    """Read LoCoMo-Plus: for each case, a conversation of LoCoMo with one more session, the cue.

    Case ``i`` takes LoCoMo's conversation ``i % 10``. The question is a remark of its first speaker, a week
    after the last session; the cue is a session of its own, ``time_gap`` before it. A vague gap ("several
    months later") is none, as officially. Deviation: 31 cues have a backslash and an n where the line of the
    second speaker begins; officially that line stays with the first speaker's.

    Args:
        path: the authors' ``locomo_plus.json``.
        talks: LoCoMo's conversations; by default the official ones, from the cache or the network.

    Raises:
        DatasetError: no path, or a file that is not in the schema; the message says where.
    """
    if path is None:
        raise DatasetError(
            "LoCoMo-Plus is not downloaded: its repository (xjtuleeyf/Locomo-Plus) names no licence. If you "
            "may use it, get it yourself, and name its data/locomo_plus.json with --data PATH"
        )
    document, sha256 = read_json(path)
    cases = JsonAt(document, path.name).elements("case")
    if not cases:
        raise DatasetError(f"{path.name}: holds no case; name another file")
    talks = talks or load_locomo().conversations
    conversations = tuple(_stitch(talks[i % len(talks)], i, case) for i, case in enumerate(cases))
    both = hashlib.sha256("".join((sha256, *(talk.fingerprint for talk in talks))).encode()).hexdigest()
    return Dataset(conversations, both, False, "locomo-plus", benchmark=Benchmark.LOCOMO_PLUS)


def _stitch(talk: Conversation, index: int, case: JsonAt) -> Conversation:
    relation, gap = case.required("relation_type"), case.required("time_gap").text()
    kind = PlusRelation(relation.choice(PlusRelation, "relation"))
    names = dict(zip("AB", talk.speakers, strict=True))
    said = _lines(case.required("cue_dialogue"))
    cue = tuple(Turn(f"cue:{n}", names[who], text) for n, (who, text) in enumerate(said, start=1))
    asked_at = talk.sessions[-1].date_time + _ASKED_AFTER
    sessions = sorted(
        [*talk.sessions, Session(0, asked_at - timedelta(days=_gap_days(gap)), cue)],
        key=lambda session: session.date_time,
    )
    identity = f"{talk.conversation_id}@{index}"
    [(who, remark), *_] = _lines(case.required("trigger_query"))
    other = names["B" if who == "A" else "A"]
    question = Question(
        conversation_id=identity,
        index=0,
        text=f'{names[who]} says: "{remark}" What does {other} reply, with earlier talks in mind?',
        category=kind,
        answer="; ".join(turn.line for turn in cue),
        evidence=tuple(turn.turn_id for turn in cue),
        asked_at=asked_at,
        nuggets=("\n".join(turn.line for turn in cue),),
    )
    numbered = tuple(Session(n, s.date_time, s.turns) for n, s in enumerate(sessions, start=1))
    return Conversation(identity, talk.speakers, numbered, (question,))


def _lines(dialogue: JsonAt) -> list[tuple[str, str]]:
    """List the lines of a dialogue, each as its speaker, A or B, and its text."""
    lines = [_LINE.fullmatch(line) for line in re.split(r"\n|\\n", dialogue.text())]
    if None in lines or not lines:
        raise dialogue.error("has a line without a speaker", "begin each with 'A:' or 'B:'")
    return [(line[1], line[2]) for line in lines if line is not None]


def _gap_days(gap: str) -> int:
    """Return the days of a gap such as "about six weeks later"; 0 for one without a number."""
    found = _GAP.search(gap.lower())
    if found is None:
        return 0
    return (_COUNTS.get(found[1]) or int(found[1])) * _DAYS[found[2]]
