"""Strike a fact from a profile: what a user had forgotten or corrected may stand there in other words."""

import re
from collections.abc import Collection

from memory_program.agents.grounding import content_stems
from memory_program.bank.stems import tokenize

_SENTENCE_END = re.compile(r"(?<=[.!?;])\s+|(?<=[。！？；])")
_LABEL = re.compile(r"[\s*-]*[^:\n]{1,60}:\s+")


def strike_fact(profile: str, fact: str, names: Collection[str], instead: str = "") -> str:
    """Leave out the sentences of a profile that tell a fact.

    A sentence, or a part of one up to a semicolon, tells the fact if it has half of the fact's content words,
    or if half of its own are among them. Too much is left out sooner than too little.

    Args:
        profile: the text of the core block.
        fact: the text of a memory.
        names: stems of the speakers' names, which say nothing about a fact.
        instead: a line that takes the place of the first sentence that is left out.

    Returns:
        the profile, unchanged if no sentence tells the fact.

    Example:
        >>> profile = "Alice: allergic to cashews; lives in Bonn."
        >>> strike_fact(profile, "Alice is allergic to cashews.", {"alic"})
        'Alice: lives in Bonn.'
    """
    wanted = _words(fact, names)
    kept_lines, is_struck = list[str](), False
    for line in profile.splitlines():
        label = _LABEL.match(line)
        if label is not None and not set(tokenize(label[0])) <= set(names):
            label = None  # "Therapist:" is a part of the fact
        begin = label[0] if label is not None else ""
        said = _SENTENCE_END.split(line[len(begin) :])
        kept = [part for part in said if not _tells(_words(part, names), wanted)]
        if len(kept) == len(said):
            kept_lines.append(line)
            continue
        if kept:
            kept_lines.append(begin + " ".join(kept))
        if instead and not is_struck:
            kept_lines.append(instead)
        is_struck = True
    return "\n".join(kept_lines) if is_struck else profile


def _words(text: str, names: Collection[str]) -> set[str]:
    return content_stems(text).difference(names) or set(tokenize(text)).difference(names)


def _tells(words: set[str], fact: set[str]) -> bool:
    least = min(len(words), len(fact))
    return least > 0 and 2 * len(words & fact) >= least
