"""People whom a speaker knows (semantic), and what is true of them."""

from memory_program.worlds.world_schema import FactSchema, RoleReference, question, slot_change

_PEOPLE = (RoleReference("relation", "person", "relation"), RoleReference("child", "person", "child"))

RELATION = FactSchema(
    name="relation",
    kind="semantic",
    text="{name}'s {relation} is {person}.",
    slots={"relation": "relation", "person": "person"},
    statements=(
        "my {relation} is called {person}",
        "my {relation} {person} says hello",
        "{person} is my {relation}",
        "I talked to my {relation} {person} on the phone",
        "my {relation}, {person}, always makes me laugh",
    ),
    asked=(("What is your {relation} called?", "My {relation} is called {person}."),),
    question_templates=(
        question("{person}", "Who is {name}'s {relation}?", "What is the name of {name}'s {relation}?"),
    ),
    key=("relation",),
    correctable_slot="person",
    weight=2.2,
)
PERSON_HOME = FactSchema(
    name="person_home",
    kind="semantic",
    text="{subject} lives in {place}.",
    slots={"place": "place"},
    statements=(
        "{subject} lives in {place}",
        "{subject} has a flat in {place}",
        "I wrote a letter to {subject}, who lives in {place}",
        "{subject}'s home is in {place}",
    ),
    asked=(("Where does {subject} live?", "{subject} lives in {place}."),),
    question_templates=(
        question("{place}", "Where does {subject} live?", "In which town does {subject} live?"),
    ),
    bridge_templates=(
        question("{place}", "Where does {name}'s {role} live?", "In which town does {name}'s {role} live?"),
    ),
    changes=(
        slot_change(
            "place",
            "moved",
            "{subject} no longer lives in {old_place} but in {place}",
            "{subject} moved away from {old_place} and lives in {place} now",
            "{subject} left {old_place} for {place}",
        ),
    ),
    about=_PEOPLE,
    correctable_slot="place",
    weight=3.0,
)
PERSON_JOB = FactSchema(
    name="person_job",
    kind="semantic",
    text="{subject} works as {a_job}.",
    slots={"job": "job"},
    statements=(
        "{subject} works as {a_job}",
        "{subject} is {a_job}",
        "{subject} earns good money as {a_job}",
        "I admire {subject}, who works as {a_job}",
    ),
    asked=(("What does {subject} do for a living?", "{subject} works as {a_job}."),),
    question_templates=(question("{job}", "What does {subject} work as?", "What work does {subject} do?"),),
    bridge_templates=(
        question("{job}", "What does {name}'s {role} work as?", "What work does {name}'s {role} do?"),
    ),
    changes=(
        slot_change(
            "job",
            "changed jobs",
            "{subject} is no longer {a_old_job} but works as {a_job}",
            "{subject} gave up being {a_old_job} and works as {a_job} now",
        ),
    ),
    about=_PEOPLE,
    correctable_slot="job",
    weight=3.0,
)
PERSON_LOVES = FactSchema(
    name="person_loves",
    kind="semantic",
    text="{subject} loves {dish}.",
    slots={"dish": "dish"},
    statements=(
        "{subject} loves {dish}",
        "{subject} is crazy about {dish}",
        "whenever {subject} visits, there has to be {dish}",
        "nothing makes {subject} happier than {dish}",
    ),
    question_templates=(
        question("{dish}", "What dish does {subject} love?", "Which food does {subject} love?"),
    ),
    bridge_templates=(
        question("{dish}", "What dish does {name}'s {role} love?", "Which food does {name}'s {role} love?"),
    ),
    about=_PEOPLE,
    correctable_slot="dish",
    weight=3.0,
)

PEOPLE = (RELATION, PERSON_HOME, PERSON_JOB, PERSON_LOVES)
