"""The LLM judge: CORRECT or WRONG by a lenient and by a strict rubric, or unparsed, which is neither.

The official F1 punishes a right answer in other words; a judge forgives too much. Both are reported, and how
far the rubrics agree (``locomo.statistics.cohen_kappa`` over the answers on which both gave a verdict).
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import dspy
from dspy.utils.exceptions import AdapterParseError

from locomo.judge.rubrics import Grading, Rubric, Verdict, judge_instruction, select_grading
from locomo.prompt_markers import escape_prompt_markers
from locomo.types import Question

VERDICT_TOKENS = 512
"""The limit of a reply: two sentences and a word need about 100."""

_VERDICT_MARKER = re.compile(r"^\s*\[\[ ## verdict ## \]\]", re.MULTILINE)
_VERDICT_LINE = re.compile(r"[\W_]*(?:verdict[\W_]+)?(correct|wrong)[\W_]*", re.IGNORECASE)


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

    The library's fallback to JSON is another prompt, and its parser takes the first of two verdicts.
    """

    def __init__(self) -> None:
        """Make the adapter; it has no settings."""
        super().__init__(use_json_adapter_fallback=False)

    def parse(self, signature: type[dspy.Signature], completion: str) -> dict[str, Any]:
        """Read the reply's fields.

        Raises:
            AdapterParseError: a field is missing, or there are two verdicts.
        """
        if len(_VERDICT_MARKER.findall(completion)) > 1:
            raise AdapterParseError(
                adapter_name="OneVerdictAdapter",
                signature=signature,  # pyright: ignore[reportArgumentType]  # DSPy means the class
                lm_response=completion,
                message="the reply has more than one verdict",
            )
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
        model: dspy.LM | None = self.predict.lm or dspy.settings.lm
        config: dict[str, int] = {}
        if model is not None and "max_completion_tokens" not in model.kwargs:  # thoughts have their own limit
            own: int | None = model.kwargs.get("max_tokens")
            config["max_tokens"] = self.limit_tokens if own is None else min(self.limit_tokens, own)
        try:
            with dspy.context(adapter=OneVerdictAdapter()):
                reply = self.predict(**fields, config=config)
        except AdapterParseError as error:
            return dspy.Prediction(verdict=Verdict.UNPARSED, reasoning=error.lm_response)
        verdict = parse_verdict(reply.verdict)
        said = f"{reply.reasoning}\n{reply.verdict}" if verdict is Verdict.UNPARSED else reply.reasoning
        return dspy.Prediction(verdict=verdict, reasoning=said)


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
    """Read the verdict field: its first line must be the verdict, and no line may name the other one.

    Example:
        >>> parse_verdict("**CORRECT**")
        <Verdict.CORRECT: 'correct'>
        >>> parse_verdict("not correct")
        <Verdict.UNPARSED: 'unparsed'>
    """
    text = text.replace("[[ ## completed ## ]]", "")  # some models write it on the same line
    first_line = text.strip().partition("\n")[0]
    found = _VERDICT_LINE.fullmatch(first_line)
    named = {word.lower() for word in re.findall(r"correct|wrong", text, re.IGNORECASE)}
    return Verdict(found[1].lower()) if found and len(named) == 1 else Verdict.UNPARSED
