"""A whole evaluation in one file: remember conversations, ask questions, score the answers.

``python examples/evaluate_minimal.py`` takes a minute on a CPU. A model by its LiteLLM name may follow, and
data in LoCoMo's schema. ``evaluate.py`` adds records that continue a run, a judge, costs and a report.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from locomo.locomo import read_dataset
from locomo.metrics import locomo_f1
from locomo.statistics import Interval, clustered_interval
from locomo.types import Conversation
from memory_program import MemoryProgram, MemorySpace, language_model
from memory_program.bank.outcomes import Outcome
from memory_program.core.command_line import run_script
from memory_program.worlds import SAMPLE_FILE


def evaluate(model: str, conversations: Sequence[Conversation], max_questions: int | None = None) -> Interval:
    """Score a model: mean official F1, interval by conversation. A failed call is printed, and no score."""
    program = MemoryProgram()
    program.set_lm(language_model(model))  # one model writes the memories and answers from them
    scores: list[float] = []
    clusters: list[str] = []
    for conversation in conversations:
        space = MemorySpace(conversation.conversation_id)
        for session in conversation.sessions:
            for failure in program.remember(space, session).failures:
                print(f"{session.session_id}: {failure.message}")
        answerable = [question for question in conversation.questions if question.is_headline]
        for question in answerable[:max_questions]:
            answer = program.ask(space, question.dated_text)
            if answer.outcome is not Outcome.OK:
                print(f"failed  {question.text}  {answer.message}")
                continue
            score = locomo_f1(answer.text, question.answer, question.f1_category)
            print(f"{score:.2f}  {question.text}  {answer.text!r} (gold: {question.answer!r})")
            scores.append(score)
            clusters.append(conversation.conversation_id)
        print(f"{conversation.conversation_id}: {len(space.bank)} memories")
    if not scores:
        raise SystemExit("no question was answered: see the failures above")
    return clustered_interval(scores, clusters, rng=np.random.default_rng(0))


def main() -> None:
    """Evaluate the model and the data that the command line names."""
    model = sys.argv[1] if len(sys.argv) > 1 else "pocket"
    data = Path(sys.argv[2]) if len(sys.argv) > 2 else SAMPLE_FILE
    found = evaluate(model, read_dataset(data).conversations)
    between = "no interval" if found.low is None else f"{found.low:.3f}..{found.high:.3f}"
    print(f"{model} on {data.name}: F1 {found.value:.3f} ({between}), n {found.n}")


if __name__ == "__main__":
    sys.exit(run_script(main))
