"""How somebody does something (procedural): routines, recipes, methods."""

from memory_program.worlds.world_schema import Change, Probe, Schema

ROUTINE = Schema(
    name="routine",
    kind="procedural",
    text="{name} practices {craft} every {weekday}.",
    slots={"craft": "craft", "weekday": "weekday"},
    says=(
        "I practice {craft} every {weekday}",
        "every {weekday} I practice {craft}",
        "{weekday} is my day for {craft}, week after week",
        "each {weekday} you will find me at {craft}",
    ),
    asked=(("On which day do you practice {craft}?", "I practice {craft} every {weekday}."),),
    probes=(
        Probe(
            (
                "On which day does {name} practice {craft}?",
                "Which day of the week does {name} practice {craft}?",
            ),
            "{weekday}",
        ),
        Probe(("What does {name} practice every {weekday}?",), "{craft}"),
        Probe(
            (
                "What does {name} practice every week?",
                "What are the things that {name} practices every week?",
            ),
            "{craft}",
        ),
    ),
    key=("craft",),
    changes=(
        Change(
            says=(
                "I moved my {craft} practice from {old_weekday} to {weekday}",
                "my {craft} practice is every {weekday} now, not every {old_weekday}",
            ),
            reason="another day",
            replaces=("weekday",),
        ),
        Change(
            says=("I do not practice {craft} anymore", "I quit practicing {craft} for good"),
            reason="given up",
        ),
    ),
    corrects="weekday",
    weight=1.4,
)
RECIPE = Schema(
    name="recipe",
    kind="procedural",
    text="{name} makes {dish} with {first}, {second} and {third}.",
    slots={"dish": "dish", "first": "ingredient", "second": "ingredient", "third": "ingredient"},
    says=(
        "I make {dish} with {first}, {second} and {third}",
        "into my {dish} go {first}, {second} and {third}",
        "for {dish} I mix {first}, {second} and {third}",
        "my recipe for {dish} takes {first}, {second} and {third}",
    ),
    asked=(("How do you make {dish}?", "I make {dish} with {first}, {second} and {third}."),),
    probes=(
        Probe(
            ("What does {name} make {dish} with?", "Which ingredients does {name} make {dish} with?"),
            "{first}, {second}, {third}",
        ),
        Probe(("What does {name} make with {first}, {second} and {third}?",), "{dish}"),
        Probe(
            (
                "Which dishes did {name} say how to make?",
                "What are the dishes that {name} said how to make?",
            ),
            "{dish}",
        ),
    ),
    key=("dish",),
    changes=(
        Change(
            says=(
                "I now make {dish} with {first}, {second} and {third}, without {old_third}",
                "in my {dish} I replaced {old_third}, so it takes {first}, {second} and {third}",
            ),
            reason="another recipe",
            replaces=("third",),
        ),
    ),
    corrects="third",
    weight=1.2,
)
SOAKING = Schema(
    name="soaking",
    kind="procedural",
    text="{name} soaks {ingredient} for {minutes}.",
    slots={"ingredient": "ingredient", "minutes": "minutes"},
    says=(
        "I soak {ingredient} for {minutes} before I cook it",
        "before cooking I leave {ingredient} in water for {minutes}",
        "my {ingredient} needs {minutes} of soaking first",
        "give {ingredient} a bath of {minutes}, that is how I do it",
    ),
    asked=(("How long do you soak {ingredient}?", "I soak {ingredient} for {minutes}."),),
    probes=(
        Probe(
            ("How long does {name} soak {ingredient}?", "For how long does {name} soak {ingredient}?"),
            "{minutes}",
        ),
        Probe(
            ("What does {name} soak for {minutes}?", "Which food does {name} soak for {minutes}?"),
            "{ingredient}",
        ),
    ),
    key=("ingredient",),
    changes=(
        Change(
            says=(
                "I soak {ingredient} for {minutes} now, {old_minutes} was not right",
                "my {ingredient} turns out better after {minutes} of soaking than after {old_minutes}",
            ),
            reason="another time",
            replaces=("minutes",),
        ),
    ),
    corrects="minutes",
    weight=0.9,
)
CALLING = Schema(
    name="calling",
    kind="procedural",
    text="{name} calls {person} every {weekday}.",
    slots={"person": "person", "weekday": "weekday"},
    says=(
        "I call {person} every {weekday}",
        "every {weekday} I call {person}",
        "I never miss my {weekday} call with {person}",
        "{person} gets a call from me every {weekday}",
    ),
    asked=(("On which day do you call {person}?", "I call {person} every {weekday}."),),
    probes=(
        Probe(
            ("On which day does {name} call {person}?", "Which day of the week does {name} call {person}?"),
            "{weekday}",
        ),
        Probe(
            ("Who does {name} call every {weekday}?", "Who gets a call from {name} every {weekday}?"),
            "{person}",
        ),
    ),
    key=("person",),
    changes=(
        Change(
            says=(
                "I call {person} every {weekday} now, not every {old_weekday}",
                "my call with {person} moved from {old_weekday} to {weekday}",
            ),
            reason="another day",
            replaces=("weekday",),
        ),
    ),
    corrects="weekday",
)
CLEANING = Schema(
    name="cleaning",
    kind="procedural",
    text="{name} cleans the {thing} with {ingredient}.",
    slots={"thing": "thing", "ingredient": "ingredient"},
    says=(
        "I clean the {thing} with {ingredient}",
        "my trick for a clean {thing} is {ingredient}",
        "to clean the {thing} I rub it with {ingredient}",
        "with {ingredient} I get the {thing} clean",
    ),
    asked=(("How do you clean the {thing}?", "I clean the {thing} with {ingredient}."),),
    probes=(
        Probe(
            ("What does {name} clean the {thing} with?", "How does {name} clean the {thing}?"), "{ingredient}"
        ),
        Probe(("What does {name} clean with {ingredient}?",), "{thing}"),
        Probe(("Which things does {name} clean?", "What are the things that {name} cleans?"), "{thing}"),
    ),
    key=("thing",),
    corrects="ingredient",
    weight=0.8,
)
RISING = Schema(
    name="rising",
    kind="procedural",
    text="{name} gets up at {clock}.",
    slots={"clock": "clock"},
    says=(
        "I get up at {clock} on workdays",
        "my alarm rings at {clock} and I get up",
        "I always get up at {clock}",
    ),
    fragments=(("What time do you get up?", "At {clock}."),),
    probes=(Probe(("What time does {name} get up?", "At what time does {name} get up?"), "{clock}"),),
    changes=(
        Change(
            says=(
                "I get up at {clock} now instead of {old_clock}",
                "I changed my alarm from {old_clock} to {clock} and get up then",
            ),
            reason="another time",
            replaces=("clock",),
        ),
    ),
    corrects="clock",
    weight=0.6,
)

PROCEDURAL = (ROUTINE, RECIPE, SOAKING, CALLING, CLEANING, RISING)
