"""The judge of nuggets: one call for each, whose verdict is a number."""

import re
from dataclasses import dataclass
from typing import Any

import dspy
from dspy.utils.exceptions import AdapterParseError

from locomo.judge.judge import VERDICT_TOKENS, OneVerdictAdapter, reply_limit
from locomo.judge.rubrics import nugget_instruction
from locomo.nugget_scores import NuggetGrading, answer_sentences, event_lines, list_nugget_gradings
from locomo.prompt_markers import escape_prompt_markers
from locomo.thinking import strip_thinking
from locomo.types import Question

_MARKS = r"(?:(?!-\d)[\W_])*"  # a minus sign belongs to the number
_NUMBER = re.compile(
    rf"{_MARKS}(?:(?:the )?(?:final )?(?:verdict|score|lines?|number){_MARKS}(?:is )?{_MARKS})?"
    r"(-?\d+(?:\.\d+)?)(?!\s*%)\W*",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class NuggetJudgement:
    """The finding of a judge about a nugget (see ``NuggetGrading``), with its reasons.

    ``value`` is None if the reply has no number that is allowed; ``reasoning`` is then all that it said.
    ``lines`` are the lines that describe an event, and ``value`` is then the first of them, or 0.
    """

    value: float | None
    reasoning: str
    lines: tuple[int, ...] = ()


class GradeNugget(dspy.Signature):
    """Grade a nugget by an instruction, which replaces this line."""

    question: str = dspy.InputField()
    criterion: str = dspy.InputField()
    given_answer: str = dspy.InputField()
    reasoning: str = dspy.OutputField(desc="one or two sentences: what the criterion asks, and what is there")
    verdict: str = dspy.OutputField(desc="a number")


class NuggetJudge(dspy.Module):
    """Grade the nuggets of answers.

    Args:
        lm: the judge's model; without it, the one that DSPy is set to when the judge is called.
        limit_tokens: the most tokens of a reply, unless the model has a lower limit of its own.
    """

    def __init__(self, lm: dspy.LM | None = None, limit_tokens: int = VERDICT_TOKENS) -> None:
        super().__init__()
        self.limit_tokens = limit_tokens
        self.by_grading = {
            grading: dspy.Predict(GradeNugget.with_instructions(nugget_instruction(grading)))
            for grading in NuggetGrading
        }
        for predict in self.by_grading.values():
            predict.lm = lm

    def named_parameters(self) -> list[tuple[str, Any]]:  # Any: DSPy's parameters
        """Name each prompt by its grading."""
        return [(grading.value, predict) for grading, predict in self.by_grading.items()]

    def grade(self, question: Question, prediction: str, nugget: int) -> NuggetJudgement:
        """Judge one nugget of an answer; ``nugget`` is its place in ``list_nugget_gradings``.

        Raises:
            dspy.LMError: the model could not be asked.
        """
        grading = list_nugget_gradings(question)[nugget]
        given, most = prediction, 1  # the answer as it is shown, and the largest number that is allowed
        match grading:
            case NuggetGrading.EVENT:
                lines = event_lines(prediction)
                criterion, given, most = question.nuggets[nugget], _numbered(lines), len(lines)
            case NuggetGrading.KEY_POINTS:
                criterion, most = _numbered(question.nuggets), len(question.nuggets)
            case NuggetGrading.SENTENCES:
                sentences = answer_sentences(prediction)
                criterion, given, most = str(question.answer), _numbered(sentences), len(sentences)
            case NuggetGrading.FLUENCY:
                criterion = "fluency"
            case NuggetGrading.STATEMENT | NuggetGrading.LINK:
                criterion = question.nuggets[nugget]
        inputs = {"question": question.text, "criterion": criterion, "given_answer": given}
        fields = {name: escape_prompt_markers(text) for name, text in inputs.items()}
        predict = self.by_grading[grading]
        try:
            with dspy.context(adapter=OneVerdictAdapter()):
                reply = predict(**fields, config=reply_limit(predict, self.limit_tokens))
        except AdapterParseError as error:
            said = str(error.lm_response)
            return _judgement(strip_thinking(said), grading, most, said, said)
        everything = f"{reply.reasoning}\n{reply.verdict}"
        return _judgement(reply.verdict, grading, most, reply.reasoning, everything)


def _judgement(
    verdict: str, grading: NuggetGrading, most: int, reasoning: str, everything: str
) -> NuggetJudgement:
    """Read a verdict; without a number that is allowed, the reasons are all that was said."""
    if grading is NuggetGrading.EVENT:  # the numbers of lines; 0 stands for none
        parts = re.split(r"(?<=\d)\s*(?:,|;|and|&)\s*(?:and\s+)?(?=\d)", verdict)
        numbers = [_read_value(part, NuggetGrading.EVENT, most) for part in parts]
        if None in numbers:
            return NuggetJudgement(None, everything)
        lines = tuple(sorted({int(number) for number in numbers if number}))
        return NuggetJudgement(float(min(lines, default=0)), reasoning, lines)
    value = _read_value(verdict, grading, most)
    return NuggetJudgement(value, reasoning if value is not None else everything)


def _numbered(texts: "list[str] | tuple[str, ...]") -> str:
    return "\n".join(f"{number}: {text}" for number, text in enumerate(texts, start=1))


def _read_value(verdict: str, grading: NuggetGrading, most: int) -> float | None:
    """Read a number from 0 to the largest that is allowed; only statements have halves."""
    plain = verdict.replace("[[ ## completed ## ]]", "").strip()
    if grading is not NuggetGrading.EVENT:  # "7 out of 9"
        plain = re.sub(rf"(?<=\d)\s*(?:/|(?:out )?of)\s*{most}(?=\W*$)", "", plain)
    found = _NUMBER.fullmatch(plain)
    number = float(found[1]) if found else -1.0
    steps = 2 if grading is NuggetGrading.STATEMENT else 1
    if not 0 <= number <= most or (number * steps) % 1:
        return None
    is_share = grading in (NuggetGrading.KEY_POINTS, NuggetGrading.SENTENCES)
    return number / most if is_share and most else number
