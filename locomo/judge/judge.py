"""The LLM judge: CORRECT or WRONG by a lenient and by a strict rubric, or unparsed, which is neither.

The official F1 punishes a right answer in other words; a judge forgives too much. Both are reported, and how
far the rubrics agree (``locomo.statistics.cohen_kappa`` over the answers on which both gave a verdict).
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import dspy
from dspy.utils.exceptions import AdapterParseError

from locomo.judge.rubrics import Grading, Rubric, Verdict, judge_instruction, select_grading
from locomo.prompt_markers import escape_prompt_markers
from locomo.reply_markers import marker_pattern, separate_markers
from locomo.thinking import strip_thinking
from locomo.types import Question

VERDICT_TOKENS = 512
"""The limit of a reply: two sentences and a word need about 100."""

_VERDICT_MARKER = re.compile(r"^\s*\[\[ ## verdict ## \]\]", re.MULTILINE)
_FIELD_MARKER = re.compile(r"\[\[ ## \w+ ## \]\]")
_NAMES = r"verdict|label|grade|judge?ment|rating|result|answer|decision|evaluation|output"
_MARK = r"(?:[^\w?]|_)*"  # "CORRECT?" is a question
_VERDICT_LINE = re.compile(
    rf"{_MARK}(?:(?:(?:the|my|final|overall) )*(?:{_NAMES})\b(?: is\b)?{_MARK})?"
    rf"(?P<verdict>correct|wrong){_MARK}(?:(?<=[(\[])(?P<remark>[^()\[\]?]+)[)\]]{_MARK})?",
    re.IGNORECASE,
)
_LABEL_LINE = re.compile(rf"\A{_MARK}(?:{_NAMES}){_MARK}\n", re.IGNORECASE)
_FENCE = re.compile(r"```\w*")
_OBJECT = re.compile(r"\{.*\}", re.DOTALL)
_NEGATION = r"(?:\b(?:not|never|no|hardly|neither)\b|n['’]t\b)"
_NEGATED = re.compile(
    rf"{_NEGATION}[\s*_-]*(?:\w+\s+){{0,2}}(?:correct|wrong)|\b(?:in|un)-?correct", re.IGNORECASE
)
# Any reason may stand beside WRONG. CORRECT needs none: beside it, all but plain agreement is doubt.
_AGREES = re.compile(
    r"1|yes|true|(?:(?:the|an?|exact(?:ly)?) )*(?:same|identical|equivalent|equal|exact|match(?:es|ing)?)"
    r"(?:,? (?:(?:the|a|an|as|to|in|gold|given|answer|meaning|fact|thing|event|place|person|name|number"
    r"|amount|day|date|week|month|year|time|match)|(?:different|other) (?:words?|wording|name)))*\W*",
    re.IGNORECASE,
)
_DOUBTS_WRONG = re.compile(
    r"\b(?:right|true|part(?:ly|ial(?:ly)?)|maybe|perhaps|probably|possibly|guess|unsure|uncertain|confiden\w+)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict with the judge's reasons; of an unparsed reply, ``reasoning`` is all that it said."""

    verdict: Verdict
    reasoning: str


class GradeAnswer(dspy.Signature):
    """Grade by a rubric, whose text replaces this line."""

    question: str = dspy.InputField()
    gold_answer: str = dspy.InputField()
    given_answer: str = dspy.InputField()
    reasoning: str = dspy.OutputField(
        desc="one or two sentences: what the gold answer requires, and whether the given answer has it"
    )
    verdict: str = dspy.OutputField(desc="one word, CORRECT or WRONG")


class OneVerdictAdapter(dspy.ChatAdapter):
    """ChatAdapter that never asks a second time, and refuses a reply with more than one verdict.

    The library's fallback to JSON is another prompt, and its parser takes the first of two verdicts. A reply
    without fields is read if it is a verdict and nothing else: a word, a labelled word, or a JSON object.
    """

    def __init__(self) -> None:
        """Make the adapter; it has no settings."""
        super().__init__(use_json_adapter_fallback=False)

    def parse(self, signature: type[dspy.Signature], completion: str) -> dict[str, Any]:
        """Read the reply's fields; a verdict that was only rehearsed in a thinking block is none.

        Raises:
            AdapterParseError: a field is missing, or there are two verdicts.
        """
        fields = marker_pattern([*signature.output_fields, "completed"])
        completion = separate_markers(strip_thinking(completion), fields)
        if len(_VERDICT_MARKER.findall(completion)) > 1:
            raise AdapterParseError(
                adapter_name="OneVerdictAdapter",
                signature=signature,  # pyright: ignore[reportArgumentType]  # DSPy means the class
                lm_response=completion,
                message="the reply has more than one verdict",
            )
        if not _FIELD_MARKER.search(completion) and parse_verdict(completion) is not Verdict.UNPARSED:
            return {"reasoning": completion.strip(), "verdict": completion.strip()}
        return super().parse(signature, completion)


class Judge(dspy.Module):
    """Grade answers to one kind of question by one rubric, with one call each.

    Args:
        rubric: How much is forgiven.
        lm: The judge's model; without it, the one that DSPy is set to when the judge is called.
        grading: What kind of question; ``select_grading`` says it of one.
        limit_tokens: The most tokens of a reply, unless the model has a lower limit of its own.
    """

    def __init__(
        self,
        rubric: Rubric = Rubric.LENIENT,
        lm: dspy.LM | None = None,
        grading: Grading = Grading.LOCOMO,
        limit_tokens: int = VERDICT_TOKENS,
    ) -> None:
        super().__init__()
        self.limit_tokens = limit_tokens
        self.rubric = rubric
        self.grading = grading
        self.predict = dspy.Predict(GradeAnswer.with_instructions(judge_instruction(rubric, grading)))
        self.predict.lm = lm

    def grade(self, question: str, gold: str | int, prediction: str) -> Judgement:
        """Judge one answer.

        Raises:
            dspy.LMError: the model could not be asked, which is neither a verdict nor an unparsed reply.
        """
        graded = self(question=question, gold=gold, prediction=prediction)
        return Judgement(Verdict(graded.verdict), str(graded.reasoning))

    def forward(self, question: str, gold: str | int, prediction: str) -> dspy.Prediction:
        """Judge one answer as a DSPy program does; ``grade`` gives the same as a plain record."""
        inputs = {"question": question, "gold_answer": str(gold), "given_answer": prediction}
        fields = {name: escape_prompt_markers(text) for name, text in inputs.items()}
        try:
            with dspy.context(adapter=OneVerdictAdapter()):
                reply = self.predict(**fields, config=reply_limit(self.predict, self.limit_tokens))
        except AdapterParseError as error:
            return dspy.Prediction(verdict=Verdict.UNPARSED, reasoning=error.lm_response)
        verdict = parse_verdict(reply.verdict)
        said = f"{reply.reasoning}\n{reply.verdict}" if verdict is Verdict.UNPARSED else reply.reasoning
        return dspy.Prediction(verdict=verdict, reasoning=said)


def reply_limit(predict: dspy.Predict, limit_tokens: int) -> dict[str, int]:
    """Give the settings that limit a reply: the model's own limit, if it is lower."""
    model: Any = predict.lm or dspy.settings.lm  # Any: DSPy does not type its settings
    if model is None or "max_completion_tokens" in model.kwargs:  # thoughts have their own limit
        return {}
    own: int | None = model.kwargs.get("max_tokens")
    return {"max_tokens": limit_tokens if own is None else min(limit_tokens, own)}


class Judges(dspy.Module):
    """The judges of several kinds of question by one rubric, saved and loaded as one program.

    Args:
        rubric: How much is forgiven.
        lm: Their model, as in ``Judge``.
        gradings: The kinds of question; all of them unless given.
        limit_tokens: As in ``Judge``.
    """

    def __init__(
        self,
        rubric: Rubric = Rubric.LENIENT,
        lm: dspy.LM | None = None,
        gradings: Iterable[Grading] = Grading,
        limit_tokens: int = VERDICT_TOKENS,
    ) -> None:
        super().__init__()
        self.by_grading = {grading: Judge(rubric, lm, grading, limit_tokens) for grading in gradings}

    def named_parameters(self) -> list[tuple[str, Any]]:  # Any: DSPy's parameters
        """Name each prompt by its kind of question."""
        return [(grading.value, judge.predict) for grading, judge in self.by_grading.items()]

    def grade(self, question: Question, prediction: str) -> Judgement:
        """Judge an answer as its question's kind wants it.

        Raises:
            dspy.LMError: the model could not be asked, which is neither a verdict nor an unparsed reply.
        """
        judge = self.by_grading[select_grading(question)]
        return judge.grade(question.text, str(question.answer), prediction)


def parse_verdict(text: str) -> Verdict:
    """Read a verdict: it is the first line, or the value of a JSON object, and nothing speaks against it.

    The line may have a label before the word, and a remark in brackets behind it; there may be a code fence
    around it. No other line may name the other word, or the same one with a negation.

    Example:
        >>> parse_verdict("**CORRECT** (same place)")
        <Verdict.CORRECT: 'correct'>
        >>> parse_verdict('{"label": "WRONG"}')
        <Verdict.WRONG: 'wrong'>
        >>> parse_verdict("not correct")
        <Verdict.UNPARSED: 'unparsed'>
    """
    text = _FENCE.sub("", text.replace("[[ ## completed ## ]]", "")).strip()  # some write it on the same line
    if found := _OBJECT.search(text):
        try:
            members = json.loads(found[0], object_pairs_hook=list)  # a name may come twice
        except (ValueError, RecursionError):
            return Verdict.UNPARSED
        named = {
            _read_line(str(value)) for name, value in members if re.fullmatch(_NAMES, name, re.IGNORECASE)
        }
        around = text[: found.start()] + text[found.end() :]
        is_clear = len(named) == 1 and not re.search("correct|wrong", around, re.IGNORECASE)
        return named.pop() if is_clear else Verdict.UNPARSED
    named = {word.lower() for word in re.findall(r"correct|wrong", text, re.IGNORECASE)}
    if "{" in text or len(named) != 1 or _NEGATED.search(text):
        return Verdict.UNPARSED
    return _read_line(_LABEL_LINE.sub("", text).strip().partition("\n")[0])


def _read_line(line: str) -> Verdict:
    """Read a line that is a verdict, with a label or with a remark that does not doubt it."""
    match = _VERDICT_LINE.fullmatch(line)
    if match is None:
        return Verdict.UNPARSED
    verdict, remark = Verdict(match["verdict"].lower()), match["remark"]
    if remark is None:
        return verdict
    is_correct = verdict is Verdict.CORRECT
    is_plain = _AGREES.fullmatch(remark) if is_correct else not _DOUBTS_WRONG.search(remark)
    return verdict if is_plain else Verdict.UNPARSED
