"""Events (episodic facts). Most are dated relative to the session's day."""

from memory_program.worlds.world_schema import FactSchema, QuestionTemplate, date_question

VISIT = FactSchema(
    name="visit",
    kind="episodic",
    text="{name} visited {place}{when}.",
    slots={"place": "place"},
    statements=(
        "I visited {place} {when}",
        "{when} I visited {place}",
        "I made a trip to {place} {when}",
        "{when} I took a walk through {place}",
        "I was in {place} {when}",
    ),
    shown=(("Here is what I visited {when}.", "a photo of a sign that says Welcome to {place}"),),
    question_templates=(
        date_question("When did {name} visit {place}?", "On which day was {name} visiting {place}?"),
        QuestionTemplate(("Which towns has {name} visited?", "What places has {name} visited?"), "{place}"),
    ),
    key=("place",),
    tense="past",
    correctable_slot="place",
)
BOUGHT = FactSchema(
    name="bought",
    kind="episodic",
    text="{name} bought {a_thing} from {company}{when}.",
    slots={"thing": "thing", "company": "company"},
    statements=(
        "I bought {a_thing} from {company} {when}",
        "{when} I bought {a_thing} from {company}",
        "I got myself {a_thing} from {company} {when}",
        "{when} {company} had a sale and I bought {a_thing}",
    ),
    shown=(
        ("Look what I bought from {company} {when}!", "a photo of {a_thing} on a table"),
        ("{when} I bought this from {company}.", "a photo of {a_thing} next to a shopping bag"),
    ),
    question_templates=(
        date_question("When did {name} buy the {thing}?", "On what date was the {thing} bought by {name}?"),
        QuestionTemplate(
            ("What did {name} buy from {company}?", "What was bought from {company} by {name}?"), "{thing}"
        ),
        QuestionTemplate(
            (
                "Which company did {name} buy the {thing} from?",
                "From which company was the {thing} bought by {name}?",
            ),
            "{company}",
        ),
        QuestionTemplate(
            ("Which things has {name} bought?", "What are the things that {name} bought?"), "{thing}"
        ),
    ),
    key=("thing",),
    tense="past",
    reused_slot="company",
    correctable_slot="thing",
    weight=1.4,
)
GIFT = FactSchema(
    name="gift",
    kind="episodic",
    text="{name} received {a_thing} from {person}{when}.",
    slots={"thing": "thing", "person": "person"},
    statements=(
        "I received {a_thing} from {person} {when}",
        "{when} {person} gave me {a_thing}",
        "{person} surprised me with {a_thing} {when}",
        "I got {a_thing} as a present from {person} {when}",
    ),
    shown=(("Look what {person} gave me {when}!", "a photo of {a_thing} with a ribbon"),),
    question_templates=(
        date_question("When did {name} receive the {thing}?", "On what date did {name} receive the {thing}?"),
        QuestionTemplate(
            ("What did {name} receive from {person}?", "Which present did {name} receive from {person}?"),
            "{thing}",
        ),
        QuestionTemplate(
            ("Who did {name} receive the {thing} from?", "From whom did {name} receive the {thing}?"),
            "{person}",
        ),
        QuestionTemplate(
            ("Which presents did {name} receive?", "What are the things that {name} received?"), "{thing}"
        ),
    ),
    key=("thing",),
    tense="past",
    reused_slot="person",
    correctable_slot="thing",
    weight=1.4,
)
READ = FactSchema(
    name="read",
    kind="episodic",
    text="{name} finished the book {title} by {person}{when}.",
    slots={"title": "title", "person": "person"},
    statements=(
        "I finished the book {title} by {person} {when}",
        "{when} I read the last page of {title} by {person}",
        "the book by {person} that I finished {when} is {title}",
        "{when} I finished reading {title} by {person}",
    ),
    shown=(("I finished this book by {person} {when}.", "a photo of a book cover that says {title}"),),
    question_templates=(
        date_question(
            "When did {name} finish the book {title}?",
            "On what date was the book {title} finished by {name}?",
        ),
        QuestionTemplate(
            ("Which book by {person} did {name} finish?", "What books by {person} has {name} finished?"),
            "{title}",
        ),
        QuestionTemplate(("Who is the author of {title}, the book that {name} finished?",), "{person}"),
        QuestionTemplate(
            ("Which books has {name} finished?", "What are the books that {name} finished?"), "{title}"
        ),
    ),
    key=("title",),
    tense="past",
    reused_slot="person",
    correctable_slot="title",
    weight=1.2,
)
CONCERT = FactSchema(
    name="concert",
    kind="episodic",
    text="{name} saw {band} play live{when}.",
    slots={"band": "band"},
    statements=(
        "I saw {band} play live {when}",
        "{when} I went to a concert of {band}",
        "I heard {band} on stage {when}",
        "{when} {band} played live and I was there",
    ),
    shown=(("I saw them live {when}!", "a photo of a stage with a banner that says {band}"),),
    question_templates=(
        date_question(
            "When did {name} see {band} play?", "On which day was {name} at the live show of {band}?"
        ),
        QuestionTemplate(
            ("Which bands did {name} see play live?", "What bands has {name} seen live?"), "{band}"
        ),
    ),
    key=("band",),
    tense="past",
    correctable_slot="band",
)
MET = FactSchema(
    name="met",
    kind="episodic",
    text="{name} met {person} for lunch{when}.",
    slots={"person": "person"},
    statements=(
        "I met {person} for lunch {when}",
        "{when} I met {person} for lunch",
        "I had lunch with {person} {when}",
        "{when} {person} and I met up for lunch",
    ),
    question_templates=(
        date_question("When did {name} meet {person}?", "On which day did {name} meet {person} for lunch?"),
        QuestionTemplate(
            ("Who did {name} meet for lunch?", "Which people did {name} meet for lunch?"), "{person}"
        ),
    ),
    key=("person",),
    tense="past",
    correctable_slot="person",
)
ADOPTED = FactSchema(
    name="adopted",
    kind="episodic",
    text="{name} adopted {a_animal} named {pet}{when}.",
    slots={"animal": "animal", "pet": "pet"},
    statements=(
        "I adopted {a_animal} named {pet} {when}",
        "{when} I adopted {a_animal} and called it {pet}",
        "{pet} is {a_animal} that I adopted {when}",
    ),
    shown=(("Meet {pet}, who I adopted {when}!", "a photo of {a_animal} in a basket"),),
    question_templates=(
        date_question("When did {name} adopt {pet}?", "On what date did {name} adopt {pet}?"),
    ),
    key=("animal",),
    tense="past",
    implied_schema="pet",
    weight=0.7,
)
COURSE = FactSchema(
    name="course",
    kind="episodic",
    text="{name} started a course in {craft}{when}.",
    slots={"craft": "craft"},
    statements=(
        "I started a course in {craft} {when}",
        "{when} I began taking lessons in {craft}",
        "I signed up for {craft} and the course started {when}",
        "{when} my first lesson in {craft} took place",
    ),
    question_templates=(
        date_question(
            "When did {name} start the course in {craft}?",
            "On what date was the start of {name}'s course in {craft}?",
        ),
        QuestionTemplate(
            ("Which courses did {name} start?", "In what did {name} start a course?"), "{craft}"
        ),
    ),
    key=("craft",),
    tense="past",
    correctable_slot="craft",
    weight=0.6,
)
LENT = FactSchema(
    name="lent",
    kind="episodic",
    text="{name} lent {a_thing} to {person}{when}.",
    slots={"thing": "thing", "person": "person"},
    statements=(
        "I lent {a_thing} to {person} {when}",
        "{when} I lent {person} {a_thing}",
        "{when} {person} came by and borrowed {a_thing} from me",
        "{person} needed {a_thing}, so I lent mine out {when}",
    ),
    question_templates=(
        date_question(
            "When did {name} lend out the {thing}?", "On what date was the {thing} lent out by {name}?"
        ),
        QuestionTemplate(
            ("Who did {name} lend the {thing} to?", "Who was the {thing} lent to by {name}?"), "{person}"
        ),
        QuestionTemplate(
            ("What did {name} lend to {person}?", "What was lent to {person} by {name}?"), "{thing}"
        ),
        QuestionTemplate(
            ("Which things has {name} lent out?", "What are the things that {name} lent out?"), "{thing}"
        ),
    ),
    key=("thing",),
    tense="past",
    reused_slot="person",
    correctable_slot="person",
    weight=0.9,
)
COOKED = FactSchema(
    name="cooked",
    kind="episodic",
    text="{name} cooked {dish} for {person}{when}.",
    slots={"dish": "dish", "person": "person"},
    statements=(
        "I cooked {dish} for {person} {when}",
        "{when} I cooked {dish} for {person}",
        "{person} came over {when} and I cooked {dish}",
    ),
    shown=(("I cooked this for {person} {when}.", "a photo of {dish} on a plate"),),
    question_templates=(
        date_question("When did {name} cook {dish}?", "On which day did {name} cook {dish} for somebody?"),
        QuestionTemplate(
            ("What did {name} cook for {person}?", "Which dish did {name} cook for {person}?"), "{dish}"
        ),
        QuestionTemplate(("Who did {name} cook {dish} for?", "For whom did {name} cook {dish}?"), "{person}"),
        QuestionTemplate(
            (
                "Which dishes has {name} cooked for guests?",
                "What are the dishes that {name} cooked for guests?",
            ),
            "{dish}",
        ),
    ),
    key=("dish",),
    tense="past",
    reused_slot="person",
    correctable_slot="dish",
    weight=1.2,
)

EVENTS = (VISIT, BOUGHT, GIFT, READ, CONCERT, MET, ADOPTED, COURSE, LENT, COOKED)
