"""DSPy's own optimisers of weights train a model of this process, as its documentation shows them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import dspy
import pytest
import torch
from dspy.lm15 import Message, Request, Response, TextPart
from dspy.teleprompt.grpo import GRPO

from memory_program.agents.chat_adapter import StrictChatAdapter
from memory_program.agents.program import MemoryProgram
from memory_program.agents.reader import QAReader
from memory_program.bank.space import MemorySpace
from memory_program.configs.trainer_groups import ReinforceSettings
from memory_program.core.errors import ConfigError, ModelError
from memory_program.inference.engine import LocalEngine
from memory_program.rl.backends.local_backend import LocalProvider, example_sample, require_local_engine
from memory_program.rl.rollouts import chat_messages
from memory_program.rl.trainer.packing import pack_samples
from memory_program.rl.trainer.policy_step import LocalTrainer
from memory_program.rl.trainer.token_scores import TokenScorer
from tests.training_samples import (
    RuledReader,
    answer_text,
    memorable_talk,
    reader_student,
)

pytestmark = pytest.mark.usefixtures("torch_on_one_thread")
Student = tuple[MemoryProgram, list[dspy.Example]]


@pytest.fixture
def student(half_taught_reader: Path) -> Student:
    """A program whose reader half knows its task, and examples of it."""
    space, talk = MemorySpace("x"), memorable_talk("x")
    program = reader_student(half_taught_reader)
    program.remember(space, talk.sessions[0])
    return (
        program,
        [
            dspy.Example(space=space, question=q.dated_text, gold=q.answer).with_inputs("space", "question")
            for q in talk.questions
        ],
    )


class Knowing(RuledReader):
    """An engine that gives the gold answer, and keeps what it was asked."""

    def __init__(self, examples: Sequence[dspy.Example]) -> None:
        super().__init__()
        self._gold = {example.question: str(example.gold) for example in examples}

    def complete(self, request: Request) -> Response:
        found = super().complete(request)
        asked = request.messages[-1].text or ""
        (gold,) = (gold for question, gold in self._gold.items() if question in asked)
        return replace(found, message=Message.assistant([TextPart(answer_text(gold))]))


def is_right(example: dspy.Example, prediction: dspy.Prediction, trace: object = None) -> float:
    return float(prediction.answer == example.gold)


def test_dspys_grpo_takes_a_step_on_a_model_of_this_process(student: Student):
    program, examples = student
    lm = program.reader.answer.lm.copy(temperature=1.0)
    lm.provider = LocalProvider()
    program.reader.set_lm(lm)
    trainer = GRPO(
        metric=is_right,
        adapter=StrictChatAdapter(),
        exclude_demos=True,
        num_train_steps=2,
        num_dspy_examples_per_grpo_step=2,
        num_rollouts_per_grpo_step=8,
        train_kwargs={"learning_rate": 1e-3, "warmup_steps": 0, "beta": 0.0},
        num_threads=4,
    )
    weights = require_local_engine(lm).model.network.state_dict()
    before = {name: weight.clone() for name, weight in weights.items()}
    with dspy.context(lm=lm):
        trained = trainer.compile(program.reader, trainset=examples, valset=examples)
    assert any(not torch.equal(weight, before[name]) for name, weight in weights.items())
    assert trained.ask(examples[0].space, examples[0].question).text  # the model still answers
    require_local_engine(lm).close()


def fine_tuning(folder: Path, learning_rate: float | None = 1e-3) -> dspy.BootstrapFinetune:
    settings = {"warmup_steps": 0, "epochs": 4, "batch_size": 2, "output_dir": folder}
    settings["learning_rate"] = learning_rate
    return dspy.BootstrapFinetune(
        metric=is_right, adapter=StrictChatAdapter(), num_threads=1, train_kwargs=settings
    )


def nll(lm: dspy.LM, examples: Sequence[dict[str, object]]) -> float:
    network = require_local_engine(lm).model.network
    (packed,) = pack_samples([example_sample(lm, example) for example in examples], 10_000)
    with torch.no_grad():
        return -float(TokenScorer(network).score(network, packed, 1.0)[0].sum())


def lessons(program: MemoryProgram, examples: Sequence[dspy.Example]) -> list[dict[str, object]]:
    """Examples that teach the gold answers."""
    knowing = Knowing(examples)
    reader = teacher_of(program, knowing)
    for example in examples:
        reader.ask(example.space, example.question)
    return [
        {
            "messages": [
                *chat_messages(asked),
                {"role": "assistant", "content": answer_text(str(example.gold))},
            ]
        }
        for asked, example in zip(knowing.requests, examples, strict=True)
    ]


def teacher_of(program: MemoryProgram, knowing: Knowing) -> QAReader:
    reader = program.reader.deepcopy()
    reader.set_lm(program.reader.answer.lm.copy(engine=knowing))
    return reader


def test_dspys_bootstrap_finetune_teaches_right_answers_to_a_new_model(student: Student, tmp_path: Path):
    program, examples = student
    lm = program.reader.answer.lm
    lm.provider = LocalProvider(lm)
    taught, teacher = lessons(program, examples), teacher_of(program, Knowing(examples))
    before = nll(lm, taught)
    with dspy.context(lm=lm):
        trained = fine_tuning(tmp_path / "tuned").compile(program.reader, trainset=examples, teacher=teacher)
    new = trained.answer.lm
    assert new.model.startswith(f"local:{tmp_path / 'tuned'}")
    assert nll(new, taught) < 0.5 * before
    assert nll(lm, taught) == pytest.approx(before, rel=1e-5)  # the old one is what it was
    assert new.provider.finetunable
    for model in (lm, new):
        require_local_engine(model).close()


def test_a_fine_tuning_has_the_learning_rate_of_examples_and_not_of_rewards(
    student: Student, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    rates: list[float | None] = []

    class RecordingTrainer(LocalTrainer):
        def __init__(self, engine: LocalEngine, settings: ReinforceSettings) -> None:
            super().__init__(engine, settings)
            rates.append(self.settings.optimizer.learning_rate)

    monkeypatch.setattr("memory_program.rl.backends.local_backend.LocalTrainer", RecordingTrainer)
    program, examples = student
    lm = program.reader.answer.lm
    lm.provider = LocalProvider(lm)
    optimizer = fine_tuning(tmp_path / "tuned", learning_rate=None)
    with dspy.context(lm=lm):
        trained = optimizer.compile(
            program.reader, trainset=examples, teacher=teacher_of(program, Knowing(examples))
        )
    assert rates == [1e-4]
    for model in (lm, trained.answer.lm):
        require_local_engine(model).close()


def test_dspys_better_together_takes_a_step_of_prompts_and_one_of_weights(student: Student, tmp_path: Path):
    program, examples = student
    lm = program.reader.answer.lm
    lm.provider = LocalProvider(lm)
    teacher = teacher_of(program, Knowing(examples))
    optimizer = dspy.BetterTogether(
        metric=is_right,
        p=dspy.LabeledFewShot(k=0),
        w=fine_tuning(tmp_path / "tuned"),
    )
    with dspy.context(lm=lm):
        best = optimizer.compile(
            program.reader, trainset=examples, valset=examples, teacher=teacher, strategy="p -> w"
        )
    assert not best.flag_compilation_error_occurred
    assert {found["strategy"] for found in best.candidate_programs} == {"", "p", "p -> w"}
    tuned = next(found for found in best.candidate_programs if found["strategy"] == "p -> w")
    assert tuned["score"] == 100.0
    assert tuned["program"].answer.lm.model.startswith(f"local:{tmp_path / 'tuned'}")


def test_a_fine_tuning_without_a_right_answer_says_so(student: Student, tmp_path: Path):
    lm = student[0].reader.answer.lm
    lm.provider = LocalProvider(lm)
    job = lm.finetune([], "chat", {"output_dir": tmp_path / "tuned"})
    with pytest.raises(ModelError, match="0 examples in format 'chat' cannot be trained on"):
        raise job.result()
    assert job.status() == "failed"
    example = {"messages": [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Ana"}]}
    for wrong in ({"epochs": 0}, {"batch_size": 0}, {"batch_size": -1}):
        job = lm.finetune([example], "chat", {"output_dir": tmp_path / "tuned", **wrong})
        with pytest.raises(ConfigError, match="must each be at least 1"):
            raise job.result()
    require_local_engine(lm).close()
