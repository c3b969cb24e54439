"""The judge of nuggets: its prompts, and what it reads from replies.

After a deliberate change of a prompt: ``UPDATE_GOLDEN=1 python -m pytest tests/unit/test_nuggets.py``, and
commit the change on its own.
"""

import os
from pathlib import Path

import pytest
from beam_samples import write_beam
from evaluation_samples import conversation
from locomo_plus_samples import write_locomo_plus
from memoryagentbench_samples import ROWS, write_memoryagentbench
from scripted_lm import ScriptedLM, fields

from locomo.beam import load_beam
from locomo.judge.nuggets import NuggetJudge
from locomo.locomo_plus import load_locomo_plus
from locomo.locomo_schema import parse_locomo
from locomo.memoryagentbench import load_memoryagentbench
from locomo.nugget_scores import NuggetGrading, list_nugget_gradings, nugget_score

GOLDEN = Path(__file__).parents[1] / "golden" / "judge"
ANSWER = "I painted it.\n\nThen I sold it. Before, I bought it."


@pytest.fixture
def asked(tmp_path):
    """A question for each grading, and the place of a nugget that is graded so."""
    _, order, update = load_beam(write_beam(tmp_path)).conversations[0].questions
    (talk,) = load_memoryagentbench(write_memoryagentbench(tmp_path, ROWS[3])).conversations
    summary = [(talk.questions[0], place) for place in range(3)]
    talks = parse_locomo([conversation(1)], "test")
    remark = load_locomo_plus(write_locomo_plus(tmp_path), talks).conversations[0].questions[0]
    return dict(zip(NuggetGrading, [(update, 1), (order, 0), (remark, 0), *summary], strict=True))


@pytest.mark.parametrize("grading", NuggetGrading)
def test_the_prompt_is_the_one_that_was_agreed_on(asked, grading):
    question, nugget = asked[grading]
    assert list_nugget_gradings(question)[nugget] is grading
    with ScriptedLM([fields(reasoning="It is.", verdict="1")]) as lm:
        NuggetJudge(lm).grade(question, ANSWER, nugget)
    (request,) = lm.requests
    rendered = f"=== system\n{request.system}\n=== user\n{request.user}\n"
    path = GOLDEN / f"nugget-{grading}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(rendered, encoding="utf-8")
    assert rendered == path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("grading", "verdict", "value"),
    [
        ("statement", "0.5", 0.5),
        ("statement", "**Score: 1.0**", 1.0),
        ("statement", "0", 0.0),
        ("statement", "0.7", None),
        ("statement", "2", None),
        ("statement", "1%", None),
        ("statement", "**Score: 1 %**", None),
        ("statement", "1 or 0.5", None),
        ("statement", "CORRECT", None),
        ("event", "2", 2.0),  # of two lines that say something
        ("event", "3", None),
        ("event", "-1", None),  # no line
        ("event", "2, 1", 1.0),
        ("event", "1, 3", None),
        ("statement", "Score: -1", None),
        ("key-points", "**-1**", None),
        ("statement", "- 0.5", 0.5),  # an item of a list
        ("event", "0.5", None),
        ("link", "1", 1.0),
        ("link", "0.5", None),
        ("fluency", "1", 1.0),
        ("fluency", "0.5", None),
        ("key-points", "1", 0.5),  # of two
        ("sentences", "3", 1.0),  # of three
        ("sentences", "4", None),
        ("sentences", "3 out of 3", 1.0),
        ("key-points", "**1/2**", 0.5),
        ("key-points", "1/3", None),
        ("statement", "0.5/1", 0.5),
        ("event", "1/2", None),
    ],
)
def test_a_reply_is_a_number_that_is_allowed_or_nothing(asked, grading, verdict, value):
    question, nugget = asked[NuggetGrading(grading)]
    with ScriptedLM([fields(reasoning="Because.", verdict=verdict)]) as lm:
        assert NuggetJudge(lm).grade(question, ANSWER, nugget).value == value


@pytest.mark.parametrize(
    ("verdict", "lines"),
    [
        ("1, 2", (1, 2)),
        ("2 and 1", (1, 2)),
        ("Lines 1 and 2", (1, 2)),
        ("**1**", (1,)),
        ("0", ()),
        ("1 to 2", ()),
    ],
)
def test_all_lines_of_an_event_are_read(asked, verdict, lines):
    question, nugget = asked[NuggetGrading.EVENT]
    with ScriptedLM([fields(reasoning="Because.", verdict=verdict)]) as lm:
        assert NuggetJudge(lm).grade(question, ANSWER, nugget).lines == lines


@pytest.mark.parametrize(("reply", "value"), [("<think>1</think>0.5", 0.5), ("It is fine.", None)])
def test_a_bare_number_is_read_without_fields(asked, reply, value):
    question, nugget = asked[NuggetGrading.STATEMENT]
    with ScriptedLM([reply]) as lm:
        assert NuggetJudge(lm).grade(question, ANSWER, nugget).value == value


def test_a_summary_is_scored_by_fluency_recall_and_precision(asked):
    question, _ = asked[NuggetGrading.FLUENCY]
    assert nugget_score(question, "", [1.0, 0.5, 0.25]) == pytest.approx(1 / 3)
