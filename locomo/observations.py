"""LoCoMo's own notes: facts about each speaker of a session, with the turns that they are from.

Source: Maharana et al. 2024, ACL, section 4.2: "observations", the second retrieval unit of the paper's
experiments. They were written by a model from the sessions alone, without the questions.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass

from locomo.json_at import JsonAt

_TURN_ID = re.compile(r"D:?([0-9]{1,6}):([0-9]{1,6})")


@dataclass(frozen=True, slots=True)
class Observation:
    """A fact about a speaker, and the ids of the turns that it is from; rarely none."""

    speaker: str
    text: str
    turn_ids: tuple[str, ...]


def find_turn_ids(text: str) -> list[str]:
    """Find the ids of turns in a string, which in the official file holds several or odd ones.

    Example:
        >>> find_turn_ids("D8:6; D:9:17, D30:05")
        ['D8:6', 'D9:17', 'D30:5']
    """
    return [f"D{int(session)}:{int(turn)}" for session, turn in _TURN_ID.findall(text)]


def read_observations(sample: JsonAt, number: int, turn_ids: Collection[str]) -> tuple[Observation, ...]:
    """Read the notes of a session; a sample without notes has none.

    Args:
        sample: a conversation of the file, with its annotations.
        number: of the session.
        turn_ids: the turns of the conversation; ids of others are left out.

    Raises:
        DatasetError: the notes are not in the schema; the message says where.
    """
    noted = sample.optional("observation")
    of_session = noted and noted.optional(f"session_{number}_observation")
    if not of_session:
        return ()
    found: list[Observation] = []
    for speaker in of_session.members():
        for note in of_session.optional_elements(speaker, "note"):
            parts = note.elements("part")
            if len(parts) != 2:
                raise note.error("is not a note", "write a text and the id of its turn, or a list of ids")
            text, source = parts
            named = source.elements("id") if isinstance(source.value, list) else [source]
            ids = [turn_id for one in named for turn_id in find_turn_ids(one.text())]
            known = tuple(turn_id for turn_id in dict.fromkeys(ids) if turn_id in turn_ids)
            if said := text.text():
                found.append(Observation(speaker, said, known))
    return tuple(found)
