"""A whole evaluation in one file: remember conversations, ask questions, score the answers.

``python examples/evaluate_minimal.py`` takes a minute on a CPU. Give a model by its LiteLLM name, and data in
LoCoMo's schema, to evaluate your own: ``evaluate_minimal.py openai/gpt-4.1-mini talk.json``.
``evaluate.py`` adds to this: records that continue a stopped run, a judge, retrieval, costs and a report.
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
from memory_program.worlds import SAMPLE_FILE


def evaluate(model: str, conversations: Sequence[Conversation], max_questions: int | None = None) -> Interval:
    """Score a model on conversations: mean official F1, with an interval clustered by conversation."""
    program = MemoryProgram()
    program.set_lm(language_model(model))  # one model writes the memories and answers from them
    scores: list[float] = []
    clusters: list[str] = []
    for conversation in conversations:
        space = MemorySpace(conversation.conversation_id)
        for session in conversation.sessions:
            program.remember(space, session)
        for question in conversation.questions[:max_questions]:
            answer = program.ask(space, question.dated_text)
            score = locomo_f1(answer.text, question.answer, question.f1_category)
            print(f"{score:.2f}  {question.text}  {answer.text!r} (gold: {question.answer!r})")
            scores.append(score)
            clusters.append(conversation.conversation_id)
        print(f"{conversation.conversation_id}: {len(space.bank)} memories")
    return clustered_interval(scores, clusters, rng=np.random.default_rng(0))


def main() -> None:
    """Evaluate the model and the data that the command line names."""
    model = sys.argv[1] if len(sys.argv) > 1 else "pocket"
    data = Path(sys.argv[2]) if len(sys.argv) > 2 else SAMPLE_FILE
    found = evaluate(model, read_dataset(data).conversations)
    print(f"{model} on {data.name}: F1 {found.value:.3f} ({found.low}..{found.high}), n {found.n}")


if __name__ == "__main__":
    main()
