"""A model is asked under the prompts that it was trained under, whatever the shipped prompts say."""

import json
from collections.abc import Iterator
from pathlib import Path

import dspy
import pytest

from benchmarks.oracle_agreement import RecordingEngine
from memory_program.agents.chat_adapter import ADAPTER
from memory_program.agents.model_prompts import load_model_prompts, saved_signature
from memory_program.agents.program import MemoryProgram
from memory_program.agents.signatures import SPECIALISTS, AnswerQuestion, WriteEpisodic
from memory_program.agents.systems import make_system
from memory_program.agents.writer import MemoryWriter
from memory_program.bank.space import MemorySpace
from memory_program.configs.evaluate_config import EvaluateConfig, SystemName, SystemSettings
from memory_program.core.errors import ConfigError
from memory_program.evaluation.scoring.score_signature import identify_system
from memory_program.models.factory import language_model
from memory_program.models.model_names import POCKET, POCKET_BASE
from memory_program.worlds import rendered_prompts, sample_worlds
from memory_program.worlds.oracle import Oracle
from tests.weights import write_model

OTHER, TAUGHT = "Do something that no model was taught.", "As it was taught."
PROMPTS = (*SPECIALISTS.values(), AnswerQuestion)


@pytest.fixture
def other_prompts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Change the instruction and a field's description in every shipped prompt that pocket was taught."""
    shipped = [signature.instructions for signature in PROMPTS]
    for signature in PROMPTS:
        signature.instructions = f"{OTHER} {signature.__name__}"
        monkeypatch.setitem(signature.fields["core_memory"].json_schema_extra, "desc", f"{OTHER} Field")
    rendered_prompts._signature_by_structure.cache_clear()
    yield
    for signature, instructions in zip(PROMPTS, shipped, strict=True):
        signature.instructions = instructions
    rendered_prompts._signature_by_structure.cache_clear()


def state_of(module: dspy.Module) -> str:
    return json.dumps(module.dump_state())


def use_pocket() -> list[tuple[str, str, str]]:
    """Let pocket remember two sessions and answer five questions; give its prompts and replies, sorted."""
    lm = language_model(POCKET)
    recorder = RecordingEngine(lm.engine)
    recorded = lm.copy(engine=recorder)
    system = make_system("memory", SystemSettings(), writer_lm=recorded, reader_lm=recorded)
    conversation, space = sample_worlds()[0].conversation, MemorySpace("sample")
    for session in conversation.sessions[:2]:
        system.remember(space, session)
    for question in conversation.questions[:5]:
        assert system.ask(space, question.text).text
    return sorted((exchange.system, exchange.user, exchange.reply) for exchange in recorder.exchanges)


@pytest.fixture(scope="module")
def before() -> tuple[list[tuple[str, str, str]], list[str]]:
    """What pocket is asked and replies under the shipped prompts, and the oracle's replies to the same."""
    exchanges = use_pocket()
    oracle = Oracle(sample_worlds())
    return exchanges, [oracle.reply(system, user) for system, user, _ in exchanges]


def test_pocket_is_asked_and_replies_as_before_when_the_shipped_prompts_change(before, other_prompts):
    assert state_of(MemoryProgram()).count(OTHER) == 2 * len(PROMPTS)
    exchanges = use_pocket()
    assert len(exchanges) == 2 * 4 + 5
    assert exchanges == before[0]


def test_the_oracle_reads_pockets_prompts_when_the_shipped_prompts_change(before, other_prompts):
    oracle = Oracle(sample_worlds())
    assert [oracle.reply(system, user) for system, user, _ in before[0]] == before[1]


@pytest.mark.parametrize("model", [POCKET, POCKET_BASE])
def test_pockets_prompts_change_no_record_key(model):
    plain, loaded = (make_system("memory", SystemSettings()) for _ in range(2))
    load_model_prompts(loaded, writer=model, reader=model)
    assert state_of(loaded) == state_of(plain)
    of_plain, of_loaded = (
        identify_system(system, SystemName.MEMORY, EvaluateConfig(model=model)) for system in (plain, loaded)
    )
    assert of_plain == of_loaded


def trained_model(folder: Path, program: MemoryProgram) -> str:
    name = write_model(folder, b"weights")
    program.save(str(folder / "program.json"))
    return name


def taught_program(**writer: int) -> MemoryProgram:
    program = MemoryProgram(MemoryWriter(**writer))
    for predictor in program.predictors():
        predictor.signature = predictor.signature.with_instructions(TAUGHT)
    program.reader.answer.demos = [{"question": "Who?", "answer": "Ana"}]
    return program


def test_a_trained_model_brings_prompts_and_demos_for_the_agents_that_it_serves(tmp_path):
    taught, shipped = taught_program(), MemoryProgram()
    model = trained_model(tmp_path / "model", taught)
    writes, reads = MemoryProgram(), MemoryProgram()
    load_model_prompts(writes, writer=model, reader="openai/some-model")
    load_model_prompts(reads, reader=model)
    assert state_of(writes.writer) == state_of(taught.writer)
    assert state_of(writes.reader) == state_of(shipped.reader)
    assert state_of(reads.writer) == state_of(shipped.writer)
    assert state_of(reads.reader) == state_of(taught.reader)


def test_the_adapter_of_a_training_brings_the_prompts_beside_the_merged_weights(tmp_path):
    model = trained_model(tmp_path / "model", taught_program())
    write_model(tmp_path / "model" / "adapter", b"adapter")
    loaded = MemoryProgram()
    load_model_prompts(loaded, reader=f"{model}/adapter")
    assert loaded.reader.answer.demos == taught_program().reader.answer.demos


@pytest.mark.parametrize("saved_turns", [1, 2])
def test_prompts_for_another_number_of_turns_are_left_out(tmp_path, saved_turns):
    model = trained_model(tmp_path / "model", taught_program(max_turns=saved_turns))
    for turns in (1, 2):
        program = MemoryProgram(MemoryWriter(max_turns=turns))
        load_model_prompts(program, writer=model)
        assert (TAUGHT in state_of(program.writer.episodic)) == (turns == saved_turns)
        assert TAUGHT in state_of(program.writer.core)  # this agent has no tools for reading


def test_agents_that_the_model_was_not_trained_for_keep_the_shipped_prompt(tmp_path):
    model = trained_model(tmp_path / "model", taught_program())
    generalist = MemoryProgram(MemoryWriter("generalist"))
    load_model_prompts(generalist, writer=model)
    assert generalist.writer.generalist.signature.instructions != TAUGHT
    assert generalist.writer.consolidate.signature.instructions == TAUGHT


def test_a_folder_without_a_program_changes_nothing(tmp_path):
    program = MemoryProgram()
    load_model_prompts(program, writer=write_model(tmp_path / "model", b"weights"), reader="local:owner/name")
    assert state_of(program) == state_of(MemoryProgram())


def test_a_saved_prompt_keeps_its_fields_and_their_order_when_one_is_added_or_moved():
    state = dspy.Predict(WriteEpisodic).dump_state()
    moved = WriteEpisodic.delete("session_date").append("session_date", dspy.InputField(desc="moved"), str)
    added = moved.prepend("style", dspy.InputField(desc="how to write"), str)
    inputs = {name: f"<{name}>" for name in WriteEpisodic.input_fields}
    rebuilt = saved_signature(added, state, "m")
    assert list(rebuilt.fields) == list(WriteEpisodic.fields)
    assert ADAPTER.format(rebuilt, [], inputs) == ADAPTER.format(WriteEpisodic, [], inputs)
    assert next(iter(added.fields)) == "style"


@pytest.mark.parametrize(
    "signature",
    [WriteEpisodic.delete("related_memories"), WriteEpisodic.append("summary", dspy.OutputField(), str)],
    ids=["an input is gone", "an output is new"],
)
def test_a_model_whose_fields_are_not_those_of_the_agent_is_refused(signature):
    with pytest.raises(
        ConfigError, match=r"model 'm' was trained with the fields .*or train the model again"
    ):
        saved_signature(signature, dspy.Predict(WriteEpisodic).dump_state(), "m")


@pytest.mark.parametrize("text", ["{", "[1]", '{"reader.answer": 3}'])
def test_a_damaged_program_beside_weights_is_refused(tmp_path, text):
    model = write_model(tmp_path / "model", b"weights")
    (tmp_path / "model" / "program.json").write_text(text)
    with pytest.raises(ConfigError, match=r"prompts of model 'local:.* cannot be read .*put back"):
        load_model_prompts(MemoryProgram(), writer=model)
