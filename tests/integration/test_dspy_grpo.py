"""DSPy's own GRPO trains a model of this process, as its documentation shows it."""

from pathlib import Path

import dspy
import torch
from dspy.teleprompt.grpo import GRPO

from memory_program.agents.chat_adapter import StrictChatAdapter
from memory_program.bank.space import MemorySpace
from memory_program.rl.backends.local_backend import LocalProvider, require_local_engine
from tests.training_samples import memorable_talk, one_thread, reader_student, save_half_taught_reader


def test_dspys_grpo_takes_a_step_on_a_model_of_this_process(tmp_path: Path):
    program, space, talk = (
        reader_student(save_half_taught_reader(tmp_path)), MemorySpace("x"), memorable_talk("x"),
    )  # fmt: skip
    program.remember(space, talk.sessions[0])
    lm = program.reader.answer.lm.copy(temperature=1.0)
    lm.provider = LocalProvider()
    program.reader.set_lm(lm)
    examples = [
        dspy.Example(space=space, question=q.dated_text, gold=q.answer).with_inputs("space", "question")
        for q in talk.questions
    ]
    trainer = GRPO(
        metric=lambda example, prediction, trace=None: float(prediction.answer == example.gold),
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
    with one_thread(), dspy.context(lm=lm):
        trained = trainer.compile(program.reader, trainset=examples, valset=examples)
    assert any(not torch.equal(weight, before[name]) for name, weight in weights.items())
    assert trained.ask(space, talk.questions[0].dated_text).text  # the model still answers
    require_local_engine(lm).close()
