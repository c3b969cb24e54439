"""Open-domain questions: what a fact implies without saying it."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from memory_program.worlds.facts import Fact, Timeline
from memory_program.worlds.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class ImpliedQuestion:
    """A question that a fact answers by common sense. Golds follow LoCoMo: the answer, then the reason."""

    text: str
    answer: str
    fact: Fact


def implied_questions(
    timeline: Timeline, vocabulary: Vocabulary, rng: random.Random
) -> Iterator[ImpliedQuestion]:
    """Give every such question that the live facts allow, in the order of the telling."""
    for fact in timeline.live.values():
        name, slots = fact.speaker, fact.slots
        match fact.schema.name:
            case "allergy":
                food = slots["ingredient"]
                text = f"Could {name} safely eat {food}?"
                yield ImpliedQuestion(text, f"No; {name} is allergic to {food}", fact)
            case "dislike":
                food = slots["ingredient"]
                text = f"Would {name} likely be happy to get {food} for dinner?"
                yield ImpliedQuestion(text, f"No; {name} dislikes {food}", fact)
            case "favorite_dish":
                dish = slots["item"]
                text = f"Would {name} likely be happy to get {dish} for dinner?"
                yield ImpliedQuestion(text, f"Yes; {name}'s favorite dish is {dish}", fact)
            case "favorite_band":
                band = slots["item"]
                text = f"Would {name} likely enjoy a ticket to see {band}?"
                yield ImpliedQuestion(text, f"Yes; {name}'s favorite band is {band}", fact)
            case "hobby":
                other = vocabulary.draw("hobby")
                if other is not None:
                    first, second = rng.sample((slots["hobby"], other), 2)
                    text = f"Would {name} rather spend a free day on {first} or {second}?"
                    yield ImpliedQuestion(text, slots["hobby"], fact)
            case "sold":
                thing = slots["thing"]
                text = f"Does {name} still own the {thing}?"
                yield ImpliedQuestion(text, f"No; {name} sold the {thing}", fact)
            case "keeps":
                thing, room = slots["thing"], slots["room"]
                text = f"Does {name} still own the {thing}?"
                yield ImpliedQuestion(text, f"Yes; {name} keeps it in the {room}", fact)
            case "gave_away":
                pet, person = slots["pet"], slots["person"]
                text = f"Does {pet} still live with {name}?"
                yield ImpliedQuestion(text, f"No; {name} gave {pet} to {person}", fact)
            case "routine":
                craft, weekday = slots["craft"], slots["weekday"]
                text = f"Would {name} likely have time for a movie during {craft} practice on a {weekday}?"
                yield ImpliedQuestion(text, f"No; {name} practices {craft} every {weekday}", fact)
            case _:
                pass  # other facts imply no question
