"""The engine behind DSPy: threads, usage, saved programs, and the end of the interpreter."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dspy
import pytest
import torch
from dspy.utils.exceptions import ContextWindowExceededError, LMUnsupportedFeatureError

from memory_program.models.factory import check_model, language_model
from memory_program.models.local_model import LocalModel
from memory_program.models.usage import track_usage
from tests.interpreters import Interpreters
from tests.tiny_model import save_tiny_model

QUESTIONS = [f"What did Nate and Joanna say about the garden on the {n}. of June?" for n in range(16)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def interpreters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Interpreters]:
    with Interpreters(
        ["memory_program.inference.engine"], tmp_path_factory.mktemp("printed")
    ) as interpreters:
        yield interpreters


@pytest.fixture
def lm(folder: Path) -> Iterator[dspy.LM]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    lm = language_model(f"local:{folder}", max_tokens=12)
    yield lm
    local(lm).local.close()
    torch.set_num_threads(threads)


def local(lm: dspy.LM) -> LocalModel:
    assert isinstance(lm.engine, LocalModel)
    return lm.engine


class Asking(dspy.Module):
    """Ask the model without an adapter, since a random model follows no format."""

    def __init__(self, lm: dspy.LM) -> None:
        super().__init__()
        self.asked = lm

    def forward(self, question: str) -> dspy.Prediction:
        return dspy.Prediction(text=self.asked(question)[0])


def test_usage_records_the_tokens_of_a_call_and_no_cost(lm: dspy.LM) -> None:
    with track_usage() as meter:
        lm(QUESTIONS[0])
        lm(QUESTIONS[1])
    usage = meter.usage
    assert (usage.calls, usage.output_tokens, usage.failed_calls, usage.retries) == (2, 24, 0, 0)
    assert (usage.cost_usd, usage.unpriced_calls) == (0.0, 0)
    assert 0 < usage.cached_tokens < usage.input_tokens
    assert usage.cached_tokens % 16 == 0
    assert [call.is_truncated for call in meter.calls] == [True, True]
    assert usage.seconds > 0


def test_a_call_records_that_its_reply_repeats_itself(tmp_path: Path) -> None:
    save_tiny_model(tmp_path, tie_word_embeddings=True, loudness=1.0)  # its greedy text is one token
    lm = language_model(f"local:{tmp_path}")
    with track_usage() as meter:
        lm("Go on.")
    local(lm).local.close()
    assert [(call.finish_reason, call.is_repetitive) for call in meter.calls] == [("length", True)]


def test_usage_records_a_failed_call_which_is_not_retried(lm: dspy.LM) -> None:
    with track_usage() as meter, pytest.raises(ContextWindowExceededError, match="at most 512 together"):
        lm("turtle " * 600)
    assert (meter.usage.calls, meter.usage.failed_calls, meter.usage.retries) == (1, 1, 0)


def test_calls_from_dspy_threads_are_batched_and_change_no_text(lm: dspy.LM) -> None:
    passes = 0

    def count(*_: object) -> None:
        nonlocal passes
        passes += 1

    local(lm).local.model.network.register_forward_hook(count)
    alone = [lm(question)[0] for question in QUESTIONS]
    one_by_one, passes = passes, 0
    answers = dspy.Parallel(num_threads=16, disable_progress_bar=True)(
        [(Asking(lm), {"question": question}) for question in QUESTIONS]
    )
    assert [answer.text for answer in answers] == alone
    assert passes * 3 < one_by_one
    assert len(set(alone)) > 8


def test_sampled_answers_to_one_request_differ(lm: dspy.LM) -> None:
    assert len(set(lm(QUESTIONS[0], n=4, temperature=1.0))) == 4
    assert len(set(lm(QUESTIONS[0], n=3))) == 1


def test_sampling_settings_of_dspy_reach_the_model(lm: dspy.LM) -> None:
    greedy = lm(QUESTIONS[0])
    assert lm(QUESTIONS[0], temperature=2.0, top_k=1) == greedy
    assert lm(QUESTIONS[0], temperature=2.0, top_p=0.001) == greedy
    assert lm(QUESTIONS[0], temperature=1.0, seed=5) == lm(QUESTIONS[0], temperature=1.0, seed=5)
    assert lm(QUESTIONS[0], max_tokens=3)[0] == greedy[0][: len(lm(QUESTIONS[0], max_tokens=3)[0])]


def test_an_unsupported_feature_is_refused_through_dspy(lm: dspy.LM) -> None:
    refused = r"config\.frequency_penalty: an embedded model cannot do this"
    with pytest.raises(LMUnsupportedFeatureError, match=refused):
        lm(QUESTIONS[0], frequency_penalty=0.5)
    assert not lm.supports_function_calling


def test_stop_strings_and_schemas_of_dspy_reach_the_model(lm: dspy.LM) -> None:
    (whole,) = lm(QUESTIONS[0])
    assert lm(QUESTIONS[0], stop=[whole[5:8]]) == [whole[: whole.index(whole[5:8])]]
    schema = {"type": "object", "properties": {"is_told": {"type": "boolean"}}, "required": ["is_told"]}
    held = {"name": "told", "schema": {**schema, "additionalProperties": False}, "strict": True}
    response_format = {"type": "json_schema", "json_schema": held}
    (text,) = lm(QUESTIONS[0], max_tokens=60, response_format=response_format)
    assert text in ('{"is_told":true}', '{"is_told":false}')


def test_a_check_of_the_model_generates_few_tokens(lm: dspy.LM) -> None:
    with track_usage() as meter:
        check_model(lm)
    assert meter.usage.output_tokens <= 16


def test_a_copied_program_shares_the_engine(lm: dspy.LM) -> None:
    program = dspy.Predict("question -> answer")
    program.set_lm(lm)
    assert program.deepcopy().get_lm().engine is lm.engine
    assert lm.copy(temperature=1.0).engine is lm.engine


def test_a_saved_program_loads_its_model_again(lm: dspy.LM, folder: Path, tmp_path: Path) -> None:
    program = dspy.Predict("question -> answer")
    program.set_lm(lm)
    program.save(tmp_path / "program.json")
    loaded = dspy.Predict("question -> answer")
    loaded.load(tmp_path / "program.json", allow_unsafe_lm_state=True)
    again = loaded.get_lm()
    assert local(again).local is not local(lm).local
    assert local(again).local.settings == local(lm).local.settings
    assert again(QUESTIONS[0]) == lm(QUESTIONS[0])
    local(again).local.close()


@pytest.mark.parametrize(
    "ending",
    [
        "pass",
        # daemon threads are in the middle of calls
        "import threading, time; lm.kwargs['max_tokens'] = None\n"
        "for _ in range(4): threading.Thread(target=lm, args=('Go on.',), daemon=True).start()\n"
        "time.sleep(0.3)",
    ],
)
def test_the_interpreter_ends_without_closing_the_engine(
    interpreters: Interpreters, folder: Path, ending: str
) -> None:
    program = (
        "import time\nfrom memory_program.models.factory import language_model\n"
        f"lm = language_model('local:{folder}', max_tokens=4)\nlm('Hello')\n"
        f"print(time.monotonic(), flush=True)\n{ending}\n"
    )
    done = interpreters.run(program)
    ended = time.monotonic()
    assert done.status == 0, done.errors
    assert "Fatal Python error" not in done.errors  # threads that are cut off may say so
    assert ended - float(done.output) < 30


def test_calls_that_wait_while_the_main_thread_ends_are_finished(
    interpreters: Interpreters, folder: Path
) -> None:
    program = (
        "import threading\nfrom memory_program.models.factory import language_model\n"
        f"lm = language_model('local:{folder}', max_tokens=30)\n"
        # in one piece: replies end together, and print() writes the end of a line by itself
        "def ask(n): print(str(len(lm(f'Hello {n}'))) + chr(10), end='', flush=True)\n"
        "for n in range(3): threading.Thread(target=ask, args=(n,)).start()\n"
    )
    done = interpreters.run(program)
    assert (done.status, done.output) == (0, "1\n1\n1\n"), done.errors


def test_threads_that_come_and_go_get_every_answer(lm: dspy.LM) -> None:
    alone = {question: lm(question) for question in QUESTIONS}
    with ThreadPoolExecutor(9) as threads:
        for _ in range(3):
            assert dict(zip(QUESTIONS, threads.map(lm, QUESTIONS), strict=True)) == alone
