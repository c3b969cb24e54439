"""Events that changes leave behind (episodic): nobody tells them as such."""

from memory_program.worlds.world_schema import FactSchema, QuestionTemplate, date_question

MOVED = FactSchema(
    name="moved",
    kind="episodic",
    text="{name} moved from {old_place} to {place}{when}.",
    slots={"old_place": "place", "place": "place"},
    statements=(),
    question_templates=(
        date_question("When did {name} move to {place}?", "On what date was {name}'s move to {place}?"),
        QuestionTemplate(
            ("Where did {name} live before {place}?", "From where did {name} move to {place}?"), "{old_place}"
        ),
    ),
    key=("place",),
    tense="past",
    weight=0,
)
CHANGED_JOB = FactSchema(
    name="changed_job",
    kind="episodic",
    text="{name} changed jobs from {old_job} to {job}{when}.",
    slots={"old_job": "job", "job": "job"},
    statements=(),
    question_templates=(
        date_question(
            "When did {name} change jobs to {job}?", "On what date did {name} change jobs and become {a_job}?"
        ),
        QuestionTemplate(
            ("What was {name}'s job before changing to {job}?", "From which job did {name} change to {job}?"),
            "{old_job}",
        ),
    ),
    key=("job",),
    tense="past",
    weight=0,
)
SOLD = FactSchema(
    name="sold",
    kind="episodic",
    text="{name} sold the {thing}{when}.",
    slots={"thing": "thing"},
    statements=(),
    question_templates=(
        date_question("When did {name} sell the {thing}?", "On what date was the {thing} sold by {name}?"),
        QuestionTemplate(("Which things has {name} sold?", "What things were sold by {name}?"), "{thing}"),
    ),
    key=("thing",),
    tense="past",
    weight=0,
)
GAVE_AWAY = FactSchema(
    name="gave_away",
    kind="episodic",
    text="{name} gave the {animal} {pet} to {person}{when}.",
    slots={"animal": "animal", "pet": "pet", "person": "person"},
    statements=(),
    question_templates=(
        date_question("When did {name} give {pet} away?", "On what date did {name} give away {pet}?"),
        QuestionTemplate(("Who did {name} give {pet} to?", "To whom did {name} give {pet}?"), "{person}"),
    ),
    key=("pet",),
    tense="past",
    weight=0,
)

CONSEQUENCES = (MOVED, CHANGED_JOB, SOLD, GAVE_AWAY)
