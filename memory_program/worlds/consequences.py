"""Events that changes leave behind (episodic): nobody tells them as such."""

from functools import partial

from memory_program.worlds.world_schema import FactSchema, date_question, question

_event = partial(FactSchema, kind="episodic", tense="past", statements=(), weight=0)

MOVED = _event(
    name="moved",
    text="{name} moved from {old_place} to {place}{when}.",
    slots={"old_place": "place", "place": "place"},
    question_templates=(
        date_question("When did {name} move to {place}?", "On what date was {name}'s move to {place}?"),
        question(
            "{old_place}", "Where did {name} live before {place}?", "From where did {name} move to {place}?"
        ),
    ),
    key=("place",),
)
CHANGED_JOB = _event(
    name="changed_job",
    text="{name} changed jobs from {old_job} to {job}{when}.",
    slots={"old_job": "job", "job": "job"},
    question_templates=(
        date_question(
            "When did {name} change jobs to {job}?", "On what date did {name} change jobs and become {a_job}?"
        ),
        question(
            "{old_job}",
            "What was {name}'s job before changing to {job}?",
            "From which job did {name} change to {job}?",
        ),
    ),
    key=("job",),
)
SOLD = _event(
    name="sold",
    text="{name} sold the {thing}{when}.",
    slots={"thing": "thing"},
    question_templates=(
        date_question("When did {name} sell the {thing}?", "On what date was the {thing} sold by {name}?"),
        question("{thing}", "Which things has {name} sold?", "What things were sold by {name}?"),
    ),
    key=("thing",),
)
GAVE_AWAY = _event(
    name="gave_away",
    text="{name} gave the {animal} {pet} to {person}{when}.",
    slots={"animal": "animal", "pet": "pet", "person": "person"},
    question_templates=(
        date_question("When did {name} give {pet} away?", "On what date did {name} give away {pet}?"),
        question("{person}", "Who did {name} give {pet} to?", "To whom did {name} give {pet}?"),
    ),
    key=("pet",),
)

CONSEQUENCES = (MOVED, CHANGED_JOB, SOLD, GAVE_AWAY)
