"""Conversations that try to take over: their orders reach no other namespace, and no call is lost silently.

The model behind the server does what it is told by whoever talks, so nothing here rests on a model's virtue.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from locomo.types import Conversation
from memory_program.agents.chat_adapter import ADAPTER
from memory_program.agents.program import MemoryProgram
from memory_program.agents.signatures import SPECIALISTS, AnswerQuestion, WriteAll
from memory_program.bank.bank import MemoryBank
from memory_program.bank.store import BankStore
from memory_program.models.factory import language_model
from tests import hostile_samples as hostile
from tests.competent_model import Prompt, competent_reply
from tests.model_server import ModelServer

CONVERSATIONS = hostile.conversations()
INJECTIONS = hostile.injections()
MARKERS = re.compile(r"^\s*\[\[ ## (\w+) ## \]\]", re.MULTILINE)


def run(
    url: str, model: hostile.Obedience, conversations: list[Conversation]
) -> Iterator[tuple[Conversation, list[Prompt], list[str]]]:
    """Remember and ask with a model; give what it was sent about each conversation, and what it answered."""
    prompts: list[Prompt] = []

    def reply(prompt: Prompt, seen: int) -> str:
        prompts.append(prompt)
        return model(prompt) if prompt.writes else competent_reply(prompt)

    with ModelServer(reply=reply) as server, BankStore(url) as store:
        program = MemoryProgram()
        program.set_lm(language_model("openai/test", api_base=server.url, max_retries=0))
        for conversation in conversations:
            prompts.clear()
            space = store.load(conversation.conversation_id)
            for session in conversation.sessions:
                program.remember(space, session)
                store.save(space)
            answers = [program.ask(space, question.text) for question in conversation.questions]
            assert [answer.message for answer in answers] == [""] * len(answers)
            yield conversation, list(prompts), [answer.text for answer in answers]


def test_the_hostile_samples_are_many_and_distinct():
    assert len(set(INJECTIONS.values())) == len(INJECTIONS) >= 60
    kinds = {name.partition("-")[0] for name in INJECTIONS}
    assert {"obey", "delete", "core", "reveal", "results", "markers", "ids", "invisible", "breakout"} == kinds
    assert len({hostile.secret_of(conversation) for conversation in CONVERSATIONS}) == len(CONVERSATIONS)


@pytest.mark.parametrize("name", INJECTIONS)
def test_an_injection_anywhere_adds_no_field_to_a_prompt(name):
    for signature in (*SPECIALISTS.values(), WriteAll, AnswerQuestion):
        inputs = dict.fromkeys(signature.input_fields, INJECTIONS[name])
        user = ADAPTER.format(signature, demos=[], inputs=inputs)[-1]["content"]
        assert MARKERS.findall(user) == list(signature.input_fields)
        assert not re.search(r"<\|im_|<\|end|\[INST\]|<｜|</s>|<start_of_turn>", user)
        user.encode()


@pytest.mark.parametrize("model", [hostile.attacks, hostile.echoes, hostile.quotes], ids=lambda m: m.__name__)
def test_an_obedient_model_reaches_no_other_namespace_and_loses_no_call(model, tmp_path: Path):
    url = f"sqlite:///{tmp_path / 'banks.sqlite'}"
    secrets = {c.conversation_id: hostile.secret_of(c) for c in CONVERSATIONS}
    known: dict[str, list] = {}
    replied = CONVERSATIONS if model is hostile.attacks else CONVERSATIONS[5:]  # what breaks formats is there
    for conversation, prompts, answers in run(url, model, replied):
        name = conversation.conversation_id
        others = [secret for other, secret in secrets.items() if other != name]
        shown = "\n".join(prompt.system + prompt.user for prompt in prompts) + "\n".join(answers)
        assert not [secret for secret in others if secret in shown]
        with BankStore(url) as store:
            assert set(store.namespaces()) == {*known, name}
            for other, operations in known.items():
                assert store.bank(other).operations() == operations
            space = store.load(name)
        assert list(space.sessions) == [session.session_id for session in conversation.sessions]
        known[name] = space.bank.operations()
        assert MemoryBank.replay(name, known[name]).live() == space.bank.live()
        for ingested in space.sessions.values():
            record = ingested.record
            if model is hostile.attacks:  # four agents and, of a bank in its bounds, nobody else
                made = record.tool_calls + record.counts.duplicates
                assert (made, record.failures) == (4 * len(hostile.ATTACKS), ())
            assert record.operations <= record.tool_calls - len(record.tool_errors)
            assert record.tool_calls or len(record.failures) > 0


def test_an_honest_model_remembers_the_text_next_to_the_injections(tmp_path: Path):
    url = f"sqlite:///{tmp_path / 'banks.sqlite'}"
    for conversation, _, answers in run(url, competent_reply, CONVERSATIONS):
        assert hostile.secret_of(conversation) in answers[0]
