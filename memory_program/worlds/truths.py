"""Semantic facts, true beyond the day: pets, possessions, likes."""

from memory_program.worlds.world_schema import FactChange, FactSchema, RoleReference, question, slot_change

PET = FactSchema(
    name="pet",
    kind="semantic",
    text="{name} has {a_animal} named {pet}.",
    slots={"animal": "animal", "pet": "pet"},
    statements=(
        "I have {a_animal} named {pet}",
        "my {animal} {pet} woke me up early",
        "my {animal} is called {pet}",
        "{pet} is my {animal}",
    ),
    asked=(("What is your {animal} called?", "My {animal} is called {pet}."),),
    shown=(("This is {pet}, who lives with me.", "a photo of {a_animal} on a sofa"),),
    question_templates=(
        question("{pet}", "What is the name of {name}'s {animal}?", "What is {name}'s {animal} named?"),
        question("{pet}", "What are the names of the pets that {name} has?", "What are {name}'s pets named?"),
        question("{animal}", "What kind of animal is {pet}, the pet that {name} has?"),
    ),
    key=("animal",),
    max_live_facts=3,
    changes=(
        FactChange(
            statements=(
                "I gave my {animal} {pet} to {person} {when}",
                "{when} I had to give my {animal} {pet} away to {person}",
                "my {animal} {pet} went to {person} {when}",
            ),
            reason="given away",
            event="gave_away",
            tense="past",
        ),
    ),
    correctable_slot="pet",
    weight=1.2,
)
PET_LOVES = FactSchema(
    name="pet_loves",
    kind="semantic",
    text="{subject} loves to eat {ingredient}.",
    slots={"ingredient": "ingredient"},
    statements=(
        "{subject} loves to eat {ingredient}",
        "{subject} goes wild for {ingredient}",
        "{subject} would do anything for a bit of {ingredient}",
        "the best treat for {subject} is {ingredient}",
    ),
    question_templates=(
        question(
            "{ingredient}", "What does {subject} love to eat?", "Which food does {subject} love to eat?"
        ),
    ),
    bridge_templates=(
        question(
            "{ingredient}",
            "What does {name}'s {role} love to eat?",
            "Which food does {name}'s {role} love to eat?",
        ),
    ),
    about=(RoleReference("pet", "pet", "animal"),),
    correctable_slot="ingredient",
    weight=2.0,
)
KEEPS = FactSchema(
    name="keeps",
    kind="semantic",
    text="{name} keeps {a_thing} in the {room}.",
    slots={"thing": "thing", "room": "room"},
    statements=(
        "I keep {a_thing} in the {room}",
        "there is {a_thing} of mine in the {room}",
        "in my {room} I keep {a_thing}",
        "my {thing} has its place in the {room}",
    ),
    shown=(
        ("A look into my {room}, this is what I keep there.", "a photo of {a_thing} in the corner of a room"),
    ),
    question_templates=(
        question(
            "{thing}", "What does {name} keep in the {room}?", "Which thing does {name} keep in the {room}?"
        ),
        question(
            "{room}", "Where does {name} keep the {thing}?", "In which room does {name} keep the {thing}?"
        ),
    ),
    key=("thing",),
    changes=(
        FactChange(
            statements=(
                "I sold the {thing} from my {room} {when}",
                "{when} I sold the {thing} that stood in my {room}",
                "the {thing} is no longer mine, I sold it {when}",
            ),
            reason="sold",
            event="sold",
            tense="past",
        ),
        slot_change(
            "room",
            "put elsewhere",
            "the {thing} is now in the {room}, not in the {old_room} anymore",
            "I carried the {thing} from the {old_room} to the {room}",
        ),
    ),
    correctable_slot="thing",
    earlier_question=question(
        "{room}",
        "Where did {name} keep the {thing} {then}?",
        "In which room did {name} keep the {thing} {then}?",
    ),
    weight=2.0,
)
HOBBY = FactSchema(
    name="hobby",
    kind="semantic",
    text="{name} enjoys {hobby}.",
    slots={"hobby": "hobby"},
    statements=(
        "I enjoy {hobby}",
        "after work I enjoy {hobby} most",
        "I really like {hobby} in my free time",
        "a day of {hobby} always cheers me up",
        "I am into {hobby}",
    ),
    asked=(("What do you like to do in your free time?", "I enjoy {hobby}."),),
    question_templates=(
        question("{hobby}", "What hobbies does {name} enjoy?", "Which hobbies does {name} enjoy?"),
    ),
    key=("hobby",),
    max_live_facts=4,
    changes=(
        FactChange(
            statements=(
                "I gave up {hobby}",
                "I do not enjoy {hobby} anymore",
                "I am through with {hobby}, it bores me now",
            ),
            reason="given up",
        ),
    ),
    correctable_slot="hobby",
    weight=1.6,
)
DISLIKE = FactSchema(
    name="dislike",
    kind="semantic",
    text="{name} dislikes {ingredient}.",
    slots={"ingredient": "ingredient"},
    statements=(
        "I dislike {ingredient}",
        "I cannot stand {ingredient}",
        "I find {ingredient} disgusting",
        "please never serve me {ingredient}, I hate it",
    ),
    asked=(("Is there any food that you cannot stand?", "Yes, I dislike {ingredient}."),),
    question_templates=(
        question("{ingredient}", "What food does {name} dislike?", "Which foods does {name} dislike?"),
    ),
    key=("ingredient",),
    max_live_facts=3,
    correctable_slot="ingredient",
    weight=1.2,
)


def _favorite(topic: str, vocabulary: str) -> FactSchema:
    return FactSchema(
        name=f"favorite_{topic}",
        kind="semantic",
        text=f"{{name}}'s favorite {topic} is {{item}}.",
        slots={"item": vocabulary},
        statements=(
            f"my favorite {topic} is {{item}}",
            f"no other {topic} comes close to {{item}}",
            f"if I had to pick one {topic}, it would be {{item}}",
            f"of every {topic} that I know, I like {{item}} best",
        ),
        elliptical_exchanges=((f"What is your favorite {topic}?", "That is {item}."),),
        question_templates=(
            question(
                "{item}", f"What is {{name}}'s favorite {topic}?", f"Which {topic} is {{name}}'s favorite?"
            ),
        ),
        changes=(
            slot_change(
                "item",
                "changed taste",
                f"my favorite {topic} is now {{item}}, not {{old_item}} anymore",
                f"I used to like {{old_item}} best, but {{item}} is my favorite {topic} now",
            ),
        ),
        correctable_slot="item",
        earlier_question=question(
            "{item}",
            f"What was {{name}}'s favorite {topic} {{then}}?",
            f"Which {topic} was {{name}}'s favorite {{then}}?",
        ),
        weight=0.6,
    )


SEMANTIC_SCHEMAS = (
    *(PET, PET_LOVES, KEEPS, HOBBY, DISLIKE),
    _favorite("dish", "dish"),
    _favorite("book", "title"),
    _favorite("band", "band"),
    _favorite("town", "place"),
)
