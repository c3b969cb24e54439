"""Small histories in LongMemEval's JSON schema, made up, with the quirks of the real file."""

from typing import Any


def said(role: str, content: str, **more: object) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def instance(question_id: str = "a1b2c3d4", **more: object) -> dict[str, Any]:
    """Three sessions out of order, the last of them after the question; ``more`` replaces members."""
    return {
        "question_id": question_id,
        "question_type": "single-session-user",
        "question": "What breed is my dog?",
        "answer": "Beagle",
        "question_date": "2023/05/30 (Tue) 23:32",
        "haystack_session_ids": ["answer_1", "filler_2", "filler_3"],
        "haystack_dates": ["2023/05/21 (Sun) 09:05", "2023/06/02 (Fri) 10:00", "2023/05/20 (Sat) 02:21"],
        "haystack_sessions": [
            [
                said("user", "My dog Rex, a beagle, turned three today.", has_answer=True),
                said("assistant", "Happy birthday to Rex!", has_answer=False),
            ],
            [said("user", "Which bread keeps longest?"), said("assistant", "Rye bread does.")],
            [
                said("assistant", "How can I help?"),
                said("user", "Plan a trip to Oslo."),
                said("assistant", ""),
            ],
        ],
        "answer_session_ids": ["answer_1"],
        **more,
    }


def instances() -> list[dict[str, Any]]:
    """One question of each type, and one without an answer."""
    typed = {
        "single-session-user": ("What breed is my dog?", "Beagle"),
        "single-session-assistant": ("Which bread did you say keeps longest?", "Rye bread"),
        "single-session-preference": ("What should I do with my dog?", "Suggestions that fit a beagle."),
        "multi-session": ("How many pets did I mention?", 1),
        "temporal-reasoning": ("How many days ago was my dog's birthday?", "9 days. 10 days are fine too."),
        "knowledge-update": ("How old is my dog now?", "Three"),
    }
    asked = [
        instance(f"q{number}", question_type=kind, question=question, answer=answer)
        for number, (kind, (question, answer)) in enumerate(typed.items(), start=1)
    ]
    unanswerable = instance(
        "q7_abs",
        question="What breed is my cat?",
        answer="You did not mention a cat. You mentioned a dog.",
    )
    return [*asked, unanswerable]
