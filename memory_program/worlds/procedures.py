"""Procedural facts: routines, recipes, methods."""

from memory_program.worlds.world_schema import FactChange, FactSchema, question, slot_change

ROUTINE = FactSchema(
    name="routine",
    kind="procedural",
    text="{name} practices {craft} every {weekday}.",
    slots={"craft": "craft", "weekday": "weekday"},
    statements=(
        "I practice {craft} every {weekday}",
        "every {weekday} I practice {craft}",
        "{weekday} is my day for {craft}, week after week",
        "each {weekday} you will find me at {craft}",
    ),
    asked=(("On which day do you practice {craft}?", "I practice {craft} every {weekday}."),),
    question_templates=(
        question(
            "{weekday}",
            "On which day does {name} practice {craft}?",
            "Which day of the week does {name} practice {craft}?",
        ),
        question("{craft}", "What does {name} practice every {weekday}?"),
        question(
            "{craft}",
            "What does {name} practice every week?",
            "What are the things that {name} practices every week?",
        ),
    ),
    key=("craft",),
    changes=(
        slot_change(
            "weekday",
            "another day",
            "I moved my {craft} practice from {old_weekday} to {weekday}",
            "my {craft} practice is every {weekday} now, not every {old_weekday}",
        ),
        FactChange(
            statements=("I do not practice {craft} anymore", "I quit practicing {craft} for good"),
            reason="given up",
        ),
    ),
    correctable_slot="weekday",
    earlier_question=question(
        "{weekday}",
        "On which day did {name} practice {craft} {then}?",
        "Which day of the week did {name} practice {craft} {then}?",
    ),
    weight=1.4,
)
RECIPE = FactSchema(
    name="recipe",
    kind="procedural",
    text="{name} makes {dish} with {first}, {second} and {third}.",
    slots={"dish": "dish", "first": "ingredient", "second": "ingredient", "third": "ingredient"},
    statements=(
        "I make {dish} with {first}, {second} and {third}",
        "into my {dish} go {first}, {second} and {third}",
        "for {dish} I mix {first}, {second} and {third}",
        "my recipe for {dish} takes {first}, {second} and {third}",
    ),
    asked=(("How do you make {dish}?", "I make {dish} with {first}, {second} and {third}."),),
    question_templates=(
        question(
            "{first}, {second}, {third}",
            "What does {name} make {dish} with?",
            "Which ingredients does {name} make {dish} with?",
        ),
        question("{dish}", "What does {name} make with {first}, {second} and {third}?"),
        question(
            "{dish}",
            "Which dishes did {name} say how to make?",
            "What are the dishes that {name} said how to make?",
        ),
    ),
    key=("dish",),
    changes=(
        slot_change(
            "third",
            "another recipe",
            "I now make {dish} with {first}, {second} and {third}, without {old_third}",
            "in my {dish} I replaced {old_third}, so it takes {first}, {second} and {third}",
        ),
    ),
    correctable_slot="third",
    earlier_question=question(
        "{first}, {second}, {third}",
        "What did {name} make {dish} with {then}?",
        "Which ingredients did {name} make {dish} with {then}?",
    ),
    weight=1.2,
)
SOAKING = FactSchema(
    name="soaking",
    kind="procedural",
    text="{name} soaks {ingredient} for {minutes}.",
    slots={"ingredient": "ingredient", "minutes": "minutes"},
    statements=(
        "I soak {ingredient} for {minutes} before I cook it",
        "before cooking I leave {ingredient} in water for {minutes}",
        "my {ingredient} needs {minutes} of soaking first",
        "give {ingredient} a bath of {minutes}, that is how I do it",
    ),
    asked=(("How long do you soak {ingredient}?", "I soak {ingredient} for {minutes}."),),
    question_templates=(
        question(
            "{minutes}",
            "How long does {name} soak {ingredient}?",
            "For how long does {name} soak {ingredient}?",
        ),
        question(
            "{ingredient}",
            "What does {name} soak for {minutes}?",
            "Which food does {name} soak for {minutes}?",
        ),
    ),
    key=("ingredient",),
    changes=(
        slot_change(
            "minutes",
            "another time",
            "I soak {ingredient} for {minutes} now, {old_minutes} was not right",
            "my {ingredient} turns out better after {minutes} of soaking than after {old_minutes}",
        ),
    ),
    correctable_slot="minutes",
    earlier_question=question(
        "{minutes}",
        "How long did {name} soak {ingredient} {then}?",
        "For how long did {name} soak {ingredient} {then}?",
    ),
    weight=0.9,
)
CALLING = FactSchema(
    name="calling",
    kind="procedural",
    text="{name} calls {person} every {weekday}.",
    slots={"person": "person", "weekday": "weekday"},
    statements=(
        "I call {person} every {weekday}",
        "every {weekday} I call {person}",
        "I never miss my {weekday} call with {person}",
        "{person} gets a call from me every {weekday}",
    ),
    asked=(("On which day do you call {person}?", "I call {person} every {weekday}."),),
    question_templates=(
        question(
            "{weekday}",
            "On which day does {name} call {person}?",
            "Which day of the week does {name} call {person}?",
        ),
        question(
            "{person}",
            "Who does {name} call every {weekday}?",
            "Who gets a call from {name} every {weekday}?",
        ),
    ),
    key=("person",),
    changes=(
        slot_change(
            "weekday",
            "another day",
            "I call {person} every {weekday} now, not every {old_weekday}",
            "my call with {person} moved from {old_weekday} to {weekday}",
        ),
    ),
    correctable_slot="weekday",
    earlier_question=question(
        "{weekday}",
        "On which day did {name} call {person} {then}?",
        "Which day of the week did {name} call {person} {then}?",
    ),
)
CLEANING = FactSchema(
    name="cleaning",
    kind="procedural",
    text="{name} cleans the {thing} with {ingredient}.",
    slots={"thing": "thing", "ingredient": "ingredient"},
    statements=(
        "I clean the {thing} with {ingredient}",
        "my trick for a clean {thing} is {ingredient}",
        "to clean the {thing} I rub it with {ingredient}",
        "with {ingredient} I get the {thing} clean",
    ),
    asked=(("How do you clean the {thing}?", "I clean the {thing} with {ingredient}."),),
    question_templates=(
        question(
            "{ingredient}", "What does {name} clean the {thing} with?", "How does {name} clean the {thing}?"
        ),
        question("{thing}", "What does {name} clean with {ingredient}?"),
        question("{thing}", "Which things does {name} clean?", "What are the things that {name} cleans?"),
    ),
    key=("thing",),
    correctable_slot="ingredient",
    weight=0.8,
)
RISING = FactSchema(
    name="rising",
    kind="procedural",
    text="{name} gets up at {clock}.",
    slots={"clock": "clock"},
    statements=(
        "I get up at {clock} on workdays",
        "my alarm rings at {clock} and I get up",
        "I always get up at {clock}",
    ),
    elliptical_exchanges=(("What time do you get up?", "At {clock}."),),
    question_templates=(
        question("{clock}", "What time does {name} get up?", "At what time does {name} get up?"),
    ),
    changes=(
        slot_change(
            "clock",
            "another time",
            "I get up at {clock} now instead of {old_clock}",
            "I changed my alarm from {old_clock} to {clock} and get up then",
        ),
    ),
    correctable_slot="clock",
    earlier_question=question(
        "{clock}", "What time did {name} get up {then}?", "At what time did {name} get up {then}?"
    ),
    weight=0.6,
)

PROCEDURAL = (ROUTINE, RECIPE, SOAKING, CALLING, CLEANING, RISING)
