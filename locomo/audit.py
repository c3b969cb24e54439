"""LoCoMo without the questions whose gold a third party found wrong: an overlay that the user downloads.

Source of the format: dial481/locomo-audit (CC BY-NC 4.0: named by the user, never shipped), ``errors.json``
or ``audit/errors_conv_N.json``: a list of ``{question_id, question, error_type, correct_evidence}``, where
``locomo_0_qa5`` is the sixth question of the first conversation.
"""

import hashlib
import re
from dataclasses import replace
from pathlib import Path

from locomo.benchmark_errors import DatasetError
from locomo.json_at import JsonAt
from locomo.locomo import Dataset, read_json
from locomo.observations import find_turn_ids
from locomo.types import Conversation

CITATION_ERROR = "WRONG_CITATION"
"""The type of faults whose gold answer is right: the evidence is corrected, and the question stays."""

_QUESTION_ID = re.compile(r"locomo_([0-9]{1,4})_qa([0-9]{1,6})")


def apply_audit(dataset: Dataset, path: Path) -> Dataset:
    """Leave out the questions whose gold answer is wrong, and correct the evidence of the others.

    Deviation: the audit's own answers are not used: they are sentences with reasons, too long for F1.

    Args:
        dataset: LoCoMo, as it was published.
        path: a file of the audit, or the folder of its ``errors_conv_N.json``.

    Raises:
        DatasetError: a file is not in the schema, or an entry does not fit the question that it names.
    """
    files = sorted(path.glob("errors_conv_*.json")) if path.is_dir() else [path]
    if not files:
        raise DatasetError(f"{str(path)!r} has no errors_conv_*.json: name errors.json or the folder audit")
    left_out = set[str]()
    evidence: dict[str, tuple[str, ...]] = {}
    turns_by_name = {talk.conversation_id: talk.turns for talk in dataset.conversations}
    digest = hashlib.sha256()
    for file in files:
        document, sha256 = read_json(file)
        digest.update(sha256.encode())
        for entry in JsonAt(document, file.name).elements("error"):
            named = entry.required("question_id")
            parts = _QUESTION_ID.fullmatch(named.text())
            if parts is None or int(parts[1]) >= len(dataset.conversations):
                likely = f"locomo_{len(dataset.conversations) - 1}_qa5"
                raise named.error("names no question", f"write it like {likely!r}")
            asked = {question.index: question for question in dataset.conversations[int(parts[1])].questions}
            question, text = asked.get(int(parts[2])), entry.required("question").text()
            if question is None or question.text != text:  # other copies count otherwise
                advice = "get the audit that belongs to the official locomo10.json"
                raise named.error(f"is not the question {text!r:.60}", advice)
            if entry.required("error_type").text() == CITATION_ERROR:
                listed = entry.required("correct_evidence").elements("id")
                turns = turns_by_name[question.conversation_id]
                ids = dict.fromkeys(turn_id for one in listed for turn_id in find_turn_ids(one.text()))
                if ids and not any(turn_id in turns for turn_id in ids):
                    raise entry.required("correct_evidence").error(
                        f"names no turn of {question.conversation_id}", "get the audit of this LoCoMo"
                    )
                evidence[question.question_id] = tuple(turn_id for turn_id in ids if turn_id in turns)
            else:
                left_out.add(question.question_id)
    corrected: list[Conversation] = []
    for talk in dataset.conversations:
        kept = [question for question in talk.questions if question.question_id not in left_out]
        questions = tuple(replace(q, evidence=evidence.get(q.question_id, q.evidence)) for q in kept)
        corrected.append(replace(talk, questions=questions))
    variant = f"audited-{digest.hexdigest()[:8]}"
    return replace(dataset, conversations=tuple(corrected), variant=variant)
