"""Profile facts (core): home, work, family, and what else rarely changes."""

from memory_program.worlds.world_schema import FactSchema, question, slot_change

HOME = FactSchema(
    name="home",
    kind="core",
    text="{name} lives in {place}.",
    slots={"place": "place"},
    statements=(
        "I live in {place}",
        "my home is in {place}",
        "I have an apartment in {place}",
        "I am living in {place} these days",
        "my place is right in the center of {place}",
        "{place} is the town where I live",
    ),
    elliptical_exchanges=(
        ("Where do you live these days?", "In {place}."),
        ("Which town do you call home?", "That would be {place}."),
        ("Where is your apartment?", "It is in {place}."),
    ),
    question_templates=(
        question(
            "{place}",
            "Where does {name} live?",
            "In which town does {name} live?",
            "Where is {name} living now?",
        ),
    ),
    changes=(
        slot_change(
            "place",
            "moved",
            "I moved from {old_place} to {place} {when}",
            "{when} I left {old_place} and moved to {place}",
            "I packed up in {old_place} and settled in {place} {when}",
            "my move from {old_place} to {place} was {when}",
            event="moved",
        ),
    ),
    correctable_slot="place",
    earlier_question=question(
        "{place}", "Where did {name} live {then}?", "In which town did {name} live {then}?"
    ),
)
JOB = FactSchema(
    name="job",
    kind="core",
    text="{name} works as {a_job}.",
    slots={"job": "job"},
    statements=(
        "I work as {a_job}",
        "my job is being {a_job}",
        "I earn my living as {a_job}",
        "I am {a_job} by trade",
        "being {a_job} keeps me busy all week",
    ),
    asked=(
        ("What do you do for a living?", "I am {a_job}."),
        ("What is your job, by the way?", "I work as {a_job}."),
    ),
    question_templates=(
        question(
            "{job}", "What does {name} work as?", "What is {name}'s job?", "What does {name} do for a living?"
        ),
    ),
    changes=(
        slot_change(
            "job",
            "changed jobs",
            "I stopped working as {a_old_job} and became {a_job} {when}",
            "{when} I quit as {a_old_job} and started as {a_job}",
            "I changed careers {when}, from {old_job} to {job}",
            "no more work as {a_old_job} for me, I became {a_job} {when}",
            event="changed_job",
        ),
    ),
    correctable_slot="job",
    earlier_question=question(
        "{job}", "What did {name} work as {then}?", "What did {name} do for a living {then}?"
    ),
)
EMPLOYER = FactSchema(
    name="employer",
    kind="core",
    text="{name} is employed by {company}.",
    slots={"company": "company"},
    statements=(
        "I am employed by {company}",
        "{company} is the firm that pays my salary",
        "my employer is {company}",
        "I have a contract with {company}",
    ),
    elliptical_exchanges=(
        ("Which firm employs you?", "{company}."),
        ("Who is your employer?", "It is {company}."),
    ),
    question_templates=(
        question(
            "{company}",
            "Which company employs {name}?",
            "Who is {name} employed by?",
            "Who is {name}'s employer?",
        ),
    ),
    changes=(
        slot_change(
            "company",
            "changed employers",
            "I left {old_company} and am employed by {company} now",
            "my employer is no longer {old_company} but {company}",
            "I switched from {old_company} to {company}",
        ),
    ),
    correctable_slot="company",
    earlier_question=question(
        "{company}", "Which company employed {name} {then}?", "Who was {name}'s employer {then}?"
    ),
)
HOMETOWN = FactSchema(
    name="hometown",
    kind="core",
    text="{name} grew up in {place}.",
    slots={"place": "place"},
    statements=(
        "I grew up in {place}",
        "I spent my childhood in {place}",
        "I was raised in {place}",
        "{place} is where I went to school as a child",
    ),
    asked=(("Where were you raised?", "I grew up in {place}."),),
    elliptical_exchanges=(("Where did you grow up?", "In {place}."),),
    question_templates=(
        question("{place}", "Where did {name} grow up?", "In which town did {name} grow up?"),
    ),
    correctable_slot="place",
)
PARTNER = FactSchema(
    name="partner",
    kind="core",
    text="{name} is married to {person}.",
    slots={"person": "person"},
    statements=(
        "I am married to {person}",
        "{person} and I are married",
        "the person I married is {person}",
        "my better half is called {person}",
    ),
    elliptical_exchanges=(
        ("Who are you married to?", "To {person}."),
        ("What is your spouse called?", "{person}."),
    ),
    question_templates=(
        question(
            "{person}", "Who is {name} married to?", "What is the name of the person {name} is married to?"
        ),
    ),
    correctable_slot="person",
)
CHILD = FactSchema(
    name="child",
    kind="core",
    text="{name} has a {child} named {person}.",
    slots={"child": "child", "person": "person"},
    statements=(
        "I have a {child} named {person}",
        "my {child} is called {person}",
        "my {child} {person} keeps me on my toes",
        "I am so proud of my {child} {person}",
    ),
    asked=(("What is your {child} called?", "My {child} is called {person}."),),
    question_templates=(
        question("{person}", "What is the name of {name}'s {child}?", "What is {name}'s {child} named?"),
    ),
    key=("child",),
    correctable_slot="person",
)
BIRTHDAY = FactSchema(
    name="birthday",
    kind="core",
    text="{name}'s birthday is on {birthday}.",
    slots={"birthday": "birthday"},
    statements=(
        "my birthday is on {birthday}",
        "I was born on {birthday}",
        "I celebrate my birthday on {birthday}",
        "every year on {birthday} I turn a year older",
    ),
    asked=(("When were you born?", "My birthday is on {birthday}."),),
    elliptical_exchanges=(("When is your birthday?", "On {birthday}."),),
    question_templates=(
        question("{birthday}", "When is {name}'s birthday?", "On which day is {name}'s birthday?"),
    ),
    correctable_slot="birthday",
    weight=0.7,
)
ALLERGY = FactSchema(
    name="allergy",
    kind="core",
    text="{name} is allergic to {ingredient}.",
    slots={"ingredient": "ingredient"},
    statements=(
        "I am allergic to {ingredient}",
        "I get a rash when I eat {ingredient}, it is an allergy",
        "my doctor found an allergy to {ingredient}",
        "I have to avoid {ingredient} because of an allergy",
    ),
    asked=(("Do you have any food allergy?", "Yes, I am allergic to {ingredient}."),),
    question_templates=(
        question("{ingredient}", "What is {name} allergic to?", "Which food is {name} allergic to?"),
    ),
    key=("ingredient",),
    max_live_facts=3,
    correctable_slot="ingredient",
)

CORE = (HOME, JOB, EMPLOYER, HOMETOWN, PARTNER, CHILD, BIRTHDAY, ALLERGY)
