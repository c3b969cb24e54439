"""Plans (episodic): they come true, are put off, or are dropped."""

from memory_program.worlds.world_schema import FactChange, FactSchema, QuestionTemplate, date_question


def _plan(
    slot: str, *, action: str, done: str, cancelled: str, becomes: str, question: str, says: tuple[str, ...]
) -> FactSchema:
    """Make the schema of a plan; ``action`` is what follows to, ``done`` the same when it came true."""
    return FactSchema(
        name=f"plan_{becomes}",
        kind="episodic",
        text=f"{{name}} plans to {action}{{when}}.",
        slots={slot: slot},
        statements=(f"I plan to {action} {{when}}", f"{{when}} I am going to {action}", *says),
        question_templates=(
            date_question(
                f"When does {{name}} plan to {action}?", f"On which day is {{name}} planning to {action}?"
            ),
            QuestionTemplate((question,), f"{{{slot}}}"),
        ),
        key=(slot,),
        max_live_facts=2,
        tense="future",
        changes=(
            FactChange(
                statements=(
                    f"I dropped the plan to {action}",
                    f"I will not {action} after all",
                    f"I had to cancel {cancelled}",
                ),
                reason="plan dropped",
            ),
            FactChange(
                statements=(f"I {done} {{when}}, as planned", f"{{when}} I finally {done}"),
                reason="plan came true",
                becomes=becomes,
                tense="past",
            ),
            FactChange(
                statements=(
                    f"the plan to {action} has a new date, it is {{when}}",
                    f"I will {action} {{when}}, not on the day I told you",
                ),
                reason="put off",
                changes_date=True,
                tense="future",
            ),
        ),
        weight=1.2,
    )


PLANS = (
    _plan(
        "place",
        action="visit {place}",
        done="visited {place}",
        cancelled="my trip to {place}",
        becomes="visit",
        question="Which towns does {name} plan to visit?",
        says=("I will travel to {place} {when}", "{when} I want to visit {place}"),
    ),
    _plan(
        "person",
        action="meet {person} for lunch",
        done="met {person} for lunch",
        cancelled="my lunch with {person}",
        becomes="met",
        question="Who does {name} plan to meet for lunch?",
        says=("{person} and I will have lunch {when}", "{when} I want to meet {person} for lunch"),
    ),
    _plan(
        "band",
        action="see {band} play live",
        done="saw {band} play live",
        cancelled="the concert of {band}",
        becomes="concert",
        question="Which bands does {name} plan to see play live?",
        says=("I will go to a concert of {band} {when}", "I have tickets to see {band} {when}"),
    ),
)
