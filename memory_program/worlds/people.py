"""People whom a speaker knows (semantic), and what is true of them."""

from memory_program.worlds.world_schema import Change, Probe, Role, Schema

_PEOPLE = (Role("relation", "person", "relation"), Role("child", "person", "child"))

RELATION = Schema(
    name="relation",
    kind="semantic",
    text="{name}'s {relation} is {person}.",
    slots={"relation": "relation", "person": "person"},
    says=(
        "my {relation} is called {person}",
        "my {relation} {person} says hello",
        "{person} is my {relation}",
        "I talked to my {relation} {person} on the phone",
        "my {relation}, {person}, always makes me laugh",
    ),
    asked=(("What is your {relation} called?", "My {relation} is called {person}."),),
    probes=(Probe(("Who is {name}'s {relation}?", "What is the name of {name}'s {relation}?"), "{person}"),),
    key=("relation",),
    corrects="person",
    weight=2.2,
)
PERSON_HOME = Schema(
    name="person_home",
    kind="semantic",
    text="{subject} lives in {place}.",
    slots={"place": "place"},
    says=(
        "{subject} lives in {place}",
        "{subject} has a flat in {place}",
        "I wrote a letter to {subject}, who lives in {place}",
        "{subject}'s home is in {place}",
    ),
    asked=(("Where does {subject} live?", "{subject} lives in {place}."),),
    probes=(Probe(("Where does {subject} live?", "In which town does {subject} live?"), "{place}"),),
    bridges=(
        Probe(
            ("Where does {name}'s {role} live?", "In which town does {name}'s {role} live?"),
            "{place}",
        ),
    ),
    changes=(
        Change(
            says=(
                "{subject} no longer lives in {old_place} but in {place}",
                "{subject} moved away from {old_place} and lives in {place} now",
                "{subject} left {old_place} for {place}",
            ),
            reason="moved",
            replaces=("place",),
        ),
    ),
    about=_PEOPLE,
    corrects="place",
    weight=3.0,
)
PERSON_JOB = Schema(
    name="person_job",
    kind="semantic",
    text="{subject} works as {a_job}.",
    slots={"job": "job"},
    says=(
        "{subject} works as {a_job}",
        "{subject} is {a_job}",
        "{subject} earns good money as {a_job}",
        "I admire {subject}, who works as {a_job}",
    ),
    asked=(("What does {subject} do for a living?", "{subject} works as {a_job}."),),
    probes=(Probe(("What does {subject} work as?", "What work does {subject} do?"), "{job}"),),
    bridges=(Probe(("What does {name}'s {role} work as?", "What work does {name}'s {role} do?"), "{job}"),),
    changes=(
        Change(
            says=(
                "{subject} is no longer {a_old_job} but works as {a_job}",
                "{subject} gave up being {a_old_job} and works as {a_job} now",
            ),
            reason="changed jobs",
            replaces=("job",),
        ),
    ),
    about=_PEOPLE,
    corrects="job",
    weight=3.0,
)
PERSON_LOVES = Schema(
    name="person_loves",
    kind="semantic",
    text="{subject} loves {dish}.",
    slots={"dish": "dish"},
    says=(
        "{subject} loves {dish}",
        "{subject} is crazy about {dish}",
        "whenever {subject} visits, there has to be {dish}",
        "nothing makes {subject} happier than {dish}",
    ),
    probes=(Probe(("What dish does {subject} love?", "Which food does {subject} love?"), "{dish}"),),
    bridges=(
        Probe(
            ("What dish does {name}'s {role} love?", "Which food does {name}'s {role} love?"),
            "{dish}",
        ),
    ),
    about=_PEOPLE,
    corrects="dish",
    weight=3.0,
)

PEOPLE = (RELATION, PERSON_HOME, PERSON_JOB, PERSON_LOVES)
