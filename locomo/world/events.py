"""What happened and what is planned (episodic): each on a day that was said relative to the session's."""

from locomo.world.schema import Change, Probe, Schema


def _when(*texts: str) -> Probe:
    return Probe(texts, "when")


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
        _when("When did {name} visit {place}?", "On which day was {name} visiting {place}?"),
        Probe(("Which towns has {name} visited?", "What places has {name} visited?"), "{place}"),
    ),
    key=("place",),
    tense="past",
    corrects="place",
)
BOUGHT = Schema(
    name="bought",
    kind="episodic",
    text="{name} bought {a_thing} in {place}{when}.",
    slots={"thing": "thing", "place": "place"},
    says=(
        "I bought {a_thing} in {place} {when}",
        "{when} I bought {a_thing} in {place}",
        "I got myself {a_thing} from a shop in {place} {when}",
        "{when} I found {a_thing} at a market in {place} and bought it",
    ),
    shown=(
        ("Look what I bought in {place} {when}!", "a photo of {a_thing} on a table"),
        ("{when} I bought this in {place}.", "a photo of {a_thing} next to a shopping bag"),
    ),
    probes=(
        _when("When did {name} buy the {thing}?", "On what date was the {thing} bought by {name}?"),
        Probe(("What did {name} buy in {place}?", "What was bought in {place} by {name}?"), "{thing}"),
        Probe(
            ("Where did {name} buy the {thing}?", "In which town was the {thing} bought by {name}?"),
            "{place}",
        ),
        Probe(("Which things has {name} bought?", "What are the things that {name} bought?"), "{thing}"),
    ),
    key=("thing",),
    tense="past",
    regroups="place",
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
        _when("When did {name} receive the {thing}?", "On what date did {name} receive the {thing}?"),
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
        "I got through {title}, a book by {person}, {when}",
        "{when} I finished reading {title} by {person}",
    ),
    shown=(("I finished this book by {person} {when}.", "a photo of a book cover that says {title}"),),
    probes=(
        _when(
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
        _when("When did {name} see {band} play?", "On which day was {name} at the live show of {band}?"),
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
        _when("When did {name} meet {person}?", "On which day did {name} meet {person} for lunch?"),
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
    probes=(_when("When did {name} adopt {pet}?", "On what date did {name} adopt the {animal} {pet}?"),),
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
        _when(
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
LOST = Schema(
    name="lost",
    kind="episodic",
    text="{name} lost {a_thing} in {place}{when}.",
    slots={"thing": "thing", "place": "place"},
    says=(
        "I lost {a_thing} in {place} {when}",
        "{when} I lost {a_thing} in {place}",
        "I left {a_thing} somewhere in {place} {when} and it is gone",
    ),
    probes=(
        _when("When did {name} lose the {thing}?", "On what date was the {thing} lost by {name}?"),
        Probe(
            ("Where did {name} lose the {thing}?", "In which town was the {thing} lost by {name}?"), "{place}"
        ),
        Probe(("What did {name} lose in {place}?", "What was lost in {place} by {name}?"), "{thing}"),
        Probe(("Which things has {name} lost?", "What are the things that {name} lost?"), "{thing}"),
    ),
    key=("thing",),
    tense="past",
    corrects="place",
    weight=0.8,
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
        _when("When did {name} cook {dish}?", "On which day did {name} cook {dish} for somebody?"),
        Probe(("What did {name} cook for {person}?", "Which dish did {name} cook for {person}?"), "{dish}"),
        Probe(("Who did {name} cook {dish} for?", "For whom did {name} cook {dish}?"), "{person}"),
        Probe(("Which dishes has {name} cooked?", "What are the dishes that {name} cooked?"), "{dish}"),
    ),
    key=("dish",),
    tense="past",
    regroups="person",
    corrects="dish",
    weight=1.2,
)

# What a change leaves behind.
MOVED = Schema(
    name="moved",
    kind="episodic",
    text="{name} moved from {old_place} to {place}{when}.",
    slots={"old_place": "place", "place": "place"},
    says=(),
    probes=(
        _when("When did {name} move to {place}?", "On what date was {name}'s move to {place}?"),
        Probe(
            ("Where did {name} live before {place}?", "From where did {name} move to {place}?"), "{old_place}"
        ),
    ),
    key=("place",),
    tense="past",
    weight=0,
)
CHANGED_JOB = Schema(
    name="changed_job",
    kind="episodic",
    text="{name} changed jobs from {old_job} to {job}{when}.",
    slots={"old_job": "job", "job": "job"},
    says=(),
    probes=(
        _when(
            "When did {name} change jobs to {job}?", "On what date did {name} change jobs and become {a_job}?"
        ),
        Probe(
            ("What was {name}'s job before changing to {job}?", "From which job did {name} change to {job}?"),
            "{old_job}",
        ),
    ),
    key=("job",),
    tense="past",
    weight=0,
)
SOLD = Schema(
    name="sold",
    kind="episodic",
    text="{name} sold the {thing}{when}.",
    slots={"thing": "thing"},
    says=(),
    probes=(
        _when("When did {name} sell the {thing}?", "On what date was the {thing} sold by {name}?"),
        Probe(("Which things has {name} sold?", "What things were sold by {name}?"), "{thing}"),
    ),
    key=("thing",),
    tense="past",
    weight=0,
)
GAVE_AWAY = Schema(
    name="gave_away",
    kind="episodic",
    text="{name} gave the {animal} {pet} to {person}{when}.",
    slots={"animal": "animal", "pet": "pet", "person": "person"},
    says=(),
    probes=(
        _when("When did {name} give {pet} away?", "On what date did {name} give away the {animal} {pet}?"),
        Probe(("Who did {name} give {pet} to?", "To whom did {name} give the {animal} {pet}?"), "{person}"),
    ),
    key=("pet",),
    tense="past",
    weight=0,
)


def _plan(
    verb: str, slot: str, becomes: str, done: str, *, noun: str, question: str, says: tuple[str, ...]
) -> Schema:
    value = f"{{{slot}}}"
    return Schema(
        name=f"plan_{becomes}",
        kind="episodic",
        text=f"{{name}} plans to {verb} {value}{{when}}.",
        slots={slot: slot},
        says=(f"I plan to {verb} {value} {{when}}", f"{{when}} I am going to {verb} {value}", *says),
        probes=(
            _when(
                f"When does {{name}} plan to {verb} {value}?",
                f"On which day is {{name}} planning to {verb} {value}?",
            ),
            Probe((question,), value),
        ),
        key=(slot,),
        at_most=2,
        tense="future",
        changes=(
            Change(
                says=(
                    f"I dropped the plan to {verb} {value}",
                    f"I will not {verb} {value} after all",
                    f"I had to cancel {noun} {value}",
                ),
                reason="plan dropped",
            ),
            Change(
                says=(f"I {done} {value} {{when}}, as planned", f"{{when}} I finally {done} {value}"),
                reason="plan came true",
                becomes=becomes,
                tense="past",
            ),
            Change(
                says=(
                    f"the plan to {verb} {value} has a new date, it is {{when}}",
                    f"I will {verb} {value} {{when}}, not on the day I told you",
                ),
                reason="put off",
                redates=True,
                tense="future",
            ),
        ),
        weight=1.2,
    )


PLANS = (
    _plan(
        *("visit", "place", "visit", "visited"),
        noun="my trip to",
        question="Which towns does {name} plan to visit?",
        says=("I will travel to {place} {when}", "{when} I want to visit {place}"),
    ),
    _plan(
        *("meet", "person", "met", "met"),
        noun="lunch with",
        question="Who does {name} plan to meet?",
        says=("{person} and I will meet {when}", "{when} I want to meet {person} for lunch"),
    ),
    _plan(
        *("see", "band", "concert", "saw"),
        noun="the concert of",
        question="Which bands does {name} plan to see?",
        says=("I will go to a concert of {band} {when}", "I have tickets to see {band} {when}"),
    ),
)

EPISODIC = (
    *(VISIT, BOUGHT, GIFT, READ, CONCERT, MET, ADOPTED, COURSE, LOST, COOKED),
    *(MOVED, CHANGED_JOB, SOLD, GAVE_AWAY),
    *PLANS,
)
