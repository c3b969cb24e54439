"""What happened (episodic), each on a day that is mostly said relative to the session's."""

from memory_program.worlds.world_schema import Probe, Schema, when_probe

VISIT = Schema(
    name="visit",
    kind="episodic",
    text="{name} visited {place}{when}.",
    slots={"place": "place"},
    says=(
        "I visited {place} {when}",
        "{when} I visited {place}",
        "I made a trip to {place} {when}",
        "{when} I took a walk through {place}",
        "I was in {place} {when}",
    ),
    shown=(("Here is what I visited {when}.", "a photo of a sign that says Welcome to {place}"),),
    probes=(
        when_probe("When did {name} visit {place}?", "On which day was {name} visiting {place}?"),
        Probe(("Which towns has {name} visited?", "What places has {name} visited?"), "{place}"),
    ),
    key=("place",),
    tense="past",
    corrects="place",
)
BOUGHT = Schema(
    name="bought",
    kind="episodic",
    text="{name} bought {a_thing} from {company}{when}.",
    slots={"thing": "thing", "company": "company"},
    says=(
        "I bought {a_thing} from {company} {when}",
        "{when} I bought {a_thing} from {company}",
        "I got myself {a_thing} from {company} {when}",
        "{when} {company} had a sale and I bought {a_thing}",
    ),
    shown=(
        ("Look what I bought from {company} {when}!", "a photo of {a_thing} on a table"),
        ("{when} I bought this from {company}.", "a photo of {a_thing} next to a shopping bag"),
    ),
    probes=(
        when_probe("When did {name} buy the {thing}?", "On what date was the {thing} bought by {name}?"),
        Probe(
            ("What did {name} buy from {company}?", "What was bought from {company} by {name}?"), "{thing}"
        ),
        Probe(
            (
                "Which company did {name} buy the {thing} from?",
                "From which company was the {thing} bought by {name}?",
            ),
            "{company}",
        ),
        Probe(("Which things has {name} bought?", "What are the things that {name} bought?"), "{thing}"),
    ),
    key=("thing",),
    tense="past",
    regroups="company",
    corrects="thing",
    weight=1.4,
)
GIFT = Schema(
    name="gift",
    kind="episodic",
    text="{name} received {a_thing} from {person}{when}.",
    slots={"thing": "thing", "person": "person"},
    says=(
        "I received {a_thing} from {person} {when}",
        "{when} {person} gave me {a_thing}",
        "{person} surprised me with {a_thing} {when}",
        "I got {a_thing} as a present from {person} {when}",
    ),
    shown=(("Look what {person} gave me {when}!", "a photo of {a_thing} with a ribbon"),),
    probes=(
        when_probe("When did {name} receive the {thing}?", "On what date did {name} receive the {thing}?"),
        Probe(
            ("What did {name} receive from {person}?", "Which present did {name} receive from {person}?"),
            "{thing}",
        ),
        Probe(
            ("Who did {name} receive the {thing} from?", "From whom did {name} receive the {thing}?"),
            "{person}",
        ),
        Probe(("Which presents did {name} receive?", "What are the things that {name} received?"), "{thing}"),
    ),
    key=("thing",),
    tense="past",
    regroups="person",
    corrects="thing",
    weight=1.4,
)
READ = Schema(
    name="read",
    kind="episodic",
    text="{name} finished the book {title} by {person}{when}.",
    slots={"title": "title", "person": "person"},
    says=(
        "I finished the book {title} by {person} {when}",
        "{when} I read the last page of {title} by {person}",
        "the book by {person} that I finished {when} is {title}",
        "{when} I finished reading {title} by {person}",
    ),
    shown=(("I finished this book by {person} {when}.", "a photo of a book cover that says {title}"),),
    probes=(
        when_probe(
            "When did {name} finish the book {title}?",
            "On what date was the book {title} finished by {name}?",
        ),
        Probe(
            ("Which book by {person} did {name} finish?", "What books by {person} has {name} finished?"),
            "{title}",
        ),
        Probe(("Who is the author of {title}, the book that {name} finished?",), "{person}"),
        Probe(("Which books has {name} finished?", "What are the books that {name} finished?"), "{title}"),
    ),
    key=("title",),
    tense="past",
    regroups="person",
    corrects="title",
    weight=1.2,
)
CONCERT = Schema(
    name="concert",
    kind="episodic",
    text="{name} saw {band} play live{when}.",
    slots={"band": "band"},
    says=(
        "I saw {band} play live {when}",
        "{when} I went to a concert of {band}",
        "I heard {band} on stage {when}",
        "{when} {band} played live and I was there",
    ),
    shown=(("I saw them live {when}!", "a photo of a stage with a banner that says {band}"),),
    probes=(
        when_probe("When did {name} see {band} play?", "On which day was {name} at the live show of {band}?"),
        Probe(("Which bands did {name} see play live?", "What bands has {name} seen live?"), "{band}"),
    ),
    key=("band",),
    tense="past",
    corrects="band",
)
MET = Schema(
    name="met",
    kind="episodic",
    text="{name} met {person} for lunch{when}.",
    slots={"person": "person"},
    says=(
        "I met {person} for lunch {when}",
        "{when} I met {person} for lunch",
        "I had lunch with {person} {when}",
        "{when} {person} and I met up for lunch",
    ),
    probes=(
        when_probe("When did {name} meet {person}?", "On which day did {name} meet {person} for lunch?"),
        Probe(("Who did {name} meet for lunch?", "Which people did {name} meet for lunch?"), "{person}"),
    ),
    key=("person",),
    tense="past",
    corrects="person",
)
ADOPTED = Schema(
    name="adopted",
    kind="episodic",
    text="{name} adopted {a_animal} named {pet}{when}.",
    slots={"animal": "animal", "pet": "pet"},
    says=(
        "I adopted {a_animal} named {pet} {when}",
        "{when} I adopted {a_animal} and called it {pet}",
        "{pet} is {a_animal} that I adopted {when}",
    ),
    shown=(("Meet {pet}, who I adopted {when}!", "a photo of {a_animal} in a basket"),),
    probes=(when_probe("When did {name} adopt {pet}?", "On what date did {name} adopt {pet}?"),),
    key=("animal",),
    tense="past",
    also="pet",
    weight=0.7,
)
COURSE = Schema(
    name="course",
    kind="episodic",
    text="{name} started a course in {craft}{when}.",
    slots={"craft": "craft"},
    says=(
        "I started a course in {craft} {when}",
        "{when} I began taking lessons in {craft}",
        "I signed up for {craft} and the course started {when}",
        "{when} my first lesson in {craft} took place",
    ),
    probes=(
        when_probe(
            "When did {name} start the course in {craft}?",
            "On what date was the start of {name}'s course in {craft}?",
        ),
        Probe(("Which courses did {name} start?", "In what did {name} start a course?"), "{craft}"),
    ),
    key=("craft",),
    tense="past",
    corrects="craft",
    weight=0.6,
)
LENT = Schema(
    name="lent",
    kind="episodic",
    text="{name} lent {a_thing} to {person}{when}.",
    slots={"thing": "thing", "person": "person"},
    says=(
        "I lent {a_thing} to {person} {when}",
        "{when} I lent {person} {a_thing}",
        "{when} {person} came by and borrowed {a_thing} from me",
        "{person} needed {a_thing}, so I lent mine out {when}",
    ),
    probes=(
        when_probe(
            "When did {name} lend out the {thing}?", "On what date was the {thing} lent out by {name}?"
        ),
        Probe(("Who did {name} lend the {thing} to?", "Who was the {thing} lent to by {name}?"), "{person}"),
        Probe(("What did {name} lend to {person}?", "What was lent to {person} by {name}?"), "{thing}"),
        Probe(("Which things has {name} lent out?", "What are the things that {name} lent out?"), "{thing}"),
    ),
    key=("thing",),
    tense="past",
    regroups="person",
    corrects="person",
    weight=0.9,
)
COOKED = Schema(
    name="cooked",
    kind="episodic",
    text="{name} cooked {dish} for {person}{when}.",
    slots={"dish": "dish", "person": "person"},
    says=(
        "I cooked {dish} for {person} {when}",
        "{when} I cooked {dish} for {person}",
        "{person} came over {when} and I cooked {dish}",
    ),
    shown=(("I cooked this for {person} {when}.", "a photo of {dish} on a plate"),),
    probes=(
        when_probe("When did {name} cook {dish}?", "On which day did {name} cook {dish} for somebody?"),
        Probe(("What did {name} cook for {person}?", "Which dish did {name} cook for {person}?"), "{dish}"),
        Probe(("Who did {name} cook {dish} for?", "For whom did {name} cook {dish}?"), "{person}"),
        Probe(
            (
                "Which dishes has {name} cooked for guests?",
                "What are the dishes that {name} cooked for guests?",
            ),
            "{dish}",
        ),
    ),
    key=("dish",),
    tense="past",
    regroups="person",
    corrects="dish",
    weight=1.2,
)

EVENTS = (VISIT, BOUGHT, GIFT, READ, CONCERT, MET, ADOPTED, COURSE, LENT, COOKED)
