"""Plans (episodic): they come true, are put off, or are dropped."""

from locomo.world.schema import Change, Probe, Schema, when_probe


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
            when_probe(
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
