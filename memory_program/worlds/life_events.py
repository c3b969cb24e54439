"""Events (episodic facts). Most are dated relative to the session's day."""

from functools import partial

from memory_program.worlds.world_schema import FactSchema, date_question, question

_event = partial(FactSchema, kind="episodic", tense="past")

VISIT = _event(
    name="visit",
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
        question("{place}", "Which towns has {name} visited?", "What places has {name} visited?"),
    ),
    key=("place",),
    correctable_slot="place",
)
BOUGHT = _event(
    name="bought",
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
        question(
            "{thing}", "What did {name} buy from {company}?", "What was bought from {company} by {name}?"
        ),
        question(
            "{company}",
            "Which company did {name} buy the {thing} from?",
            "From which company was the {thing} bought by {name}?",
        ),
        question("{thing}", "Which things has {name} bought?", "What are the things that {name} bought?"),
    ),
    key=("thing",),
    reused_slot="company",
    correctable_slot="thing",
    weight=1.4,
)
GIFT = _event(
    name="gift",
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
        question(
            "{thing}",
            "What did {name} receive from {person}?",
            "Which present did {name} receive from {person}?",
        ),
        question(
            "{person}",
            "Who did {name} receive the {thing} from?",
            "From whom did {name} receive the {thing}?",
        ),
        question(
            "{thing}", "Which presents did {name} receive?", "What are the things that {name} received?"
        ),
    ),
    key=("thing",),
    reused_slot="person",
    correctable_slot="thing",
    weight=1.4,
)
READ = _event(
    name="read",
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
        question(
            "{title}",
            "Which book by {person} did {name} finish?",
            "What books by {person} has {name} finished?",
        ),
        question("{person}", "Who is the author of {title}, the book that {name} finished?"),
        question("{title}", "Which books has {name} finished?", "What are the books that {name} finished?"),
    ),
    key=("title",),
    reused_slot="person",
    correctable_slot="title",
    weight=1.2,
)
CONCERT = _event(
    name="concert",
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
        question("{band}", "Which bands did {name} see play live?", "What bands has {name} seen live?"),
    ),
    key=("band",),
    correctable_slot="band",
)
MET = _event(
    name="met",
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
        question("{person}", "Who did {name} meet for lunch?", "Which people did {name} meet for lunch?"),
    ),
    key=("person",),
    correctable_slot="person",
)
ADOPTED = _event(
    name="adopted",
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
    implied_schema="pet",
    weight=0.7,
)
COURSE = _event(
    name="course",
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
        question("{craft}", "Which courses did {name} start?", "In what did {name} start a course?"),
    ),
    key=("craft",),
    correctable_slot="craft",
    weight=0.6,
)
LENT = _event(
    name="lent",
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
        question("{person}", "Who did {name} lend the {thing} to?", "Who was the {thing} lent to by {name}?"),
        question("{thing}", "What did {name} lend to {person}?", "What was lent to {person} by {name}?"),
        question("{thing}", "Which things has {name} lent out?", "What are the things that {name} lent out?"),
    ),
    key=("thing",),
    reused_slot="person",
    correctable_slot="person",
    weight=0.9,
)
COOKED = _event(
    name="cooked",
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
        question("{dish}", "What did {name} cook for {person}?", "Which dish did {name} cook for {person}?"),
        question("{person}", "Who did {name} cook {dish} for?", "For whom did {name} cook {dish}?"),
        question(
            "{dish}",
            "Which dishes has {name} cooked for guests?",
            "What are the dishes that {name} cooked for guests?",
        ),
    ),
    key=("dish",),
    reused_slot="person",
    correctable_slot="dish",
    weight=1.2,
)

EVENTS = (VISIT, BOUGHT, GIFT, READ, CONCERT, MET, ADOPTED, COURSE, LENT, COOKED)
