"""The reward server on a real port: many requests at once, some broken, each answered for itself."""

import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import dspy
import httpx
import pytest
import uvicorn
from dspy.clients import base_lm

from locomo.types import Question
from memory_program.bank.budget import count_tokens
from memory_program.bank.outcomes import Answer
from memory_program.bank.space import MemorySpace
from memory_program.configs.trainer_groups import LengthSettings
from memory_program.core.errors import ConfigError, QuotaExhaustedError
from memory_program.rl.episode_json import episode_to_json
from memory_program.rl.episodes import Episode
from memory_program.rl.rewards import AnswerMetric, RewardRule, build_answer_metric
from memory_program.serving import verl_reward
from memory_program.serving.reply_rewards import ReplyRewarder
from memory_program.serving.reward_server import RequestLimits, RewardServerConfig, make_app, serve_rewards
from tests.conftest import CHECKOUT
from tests.model_server import ModelServer
from tests.training_samples import reader_by_rules, reply, talk

pytestmark = pytest.mark.timeout(1200)  # ten seconds on an idle machine, minutes on a busy one

CONVERSATION = talk("talk")
EPISODE = episode_to_json(
    Episode(CONVERSATION, CONVERSATION.sessions[0], MemorySpace("talk"), CONVERSATION.questions)
)
TURNS = EPISODE["session"]["turns"]


def changed(**of_session: object) -> dict[str, object]:
    return {**EPISODE, "session": {**EPISODE["session"], **of_session}}


GOOD = {"agent": "episodic", "reply": reply("episodic", remembers=True), "episode": EPISODE}
EMPTY = {"agent": "episodic", "reply": reply("episodic", remembers=False), "episode": EPISODE}
BROKEN = [
    {**GOOD, "agent": "nobody"},
    {**GOOD, "reply": 7},
    {**GOOD, "episode": "/etc/passwd"},
    {**GOOD, "episode": {**EPISODE, "questions": []}},
    {**GOOD, "episode": changed(turns=[*TURNS, TURNS[0]])},
    {**GOOD, "episode": changed(turns=[{**TURNS[0], "text": 5}])},
    {**GOOD, "episode": changed(turns=[{**TURNS[0], "turn_id": []}])},
    {**GOOD, "episode": {**EPISODE, "questions": [{**EPISODE["questions"][0], "answer": None}]}},
    {**GOOD, "earlier": "a reply"},
    {**GOOD, "earlier": [7]},
    {**GOOD, "earlier": [""] * 31},
    {"reply": "x"},
    "not an object",
]


@contextmanager
def served(limits: RequestLimits, metric: AnswerMetric | None = None) -> Iterator[str]:
    rewarder = ReplyRewarder(reader_by_rules(), metric or build_answer_metric("f1"), RewardRule("dense"))
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(make_app(rewarder, limits), log_level="error"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        until = time.monotonic() + 60
        while not server.started:
            assert time.monotonic() < until
            time.sleep(0.02)
        yield address
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served(RequestLimits(max_items=8, max_bytes=200_000)) as address:
        yield address


def asked(address: str, *items: object) -> list[dict]:
    content = json.dumps({"items": items})
    answer = httpx.post(f"{address}/reward", content=content, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()["items"]


def test_it_says_that_it_is_well(address):
    assert httpx.get(f"{address}/health").json()["status"] == "ok"
    assert httpx.head(f"{address}/health").status_code == 200


def test_concurrent_requests_one_in_twenty_broken_are_each_answered_rightly(address):
    rng = random.Random(0)
    whole = [{**rng.choice([GOOD, EMPTY]), "id": number} for number in range(19 * len(BROKEN))]
    sent = [*whole, *BROKEN]  # each kind once
    rng.shuffle(sent)
    with httpx.Client(timeout=900) as client, ThreadPoolExecutor(32) as pool:
        answers = list(
            pool.map(
                lambda item: client.post(f"{address}/reward", json={"items": [item]}).json()["items"][0], sent
            )
        )
    for item, answer in zip(sent, answers, strict=True):
        if item in BROKEN:
            assert set(answer) == {"error"}
        else:
            assert (answer["id"], answer["reward"]) == (
                item["id"],
                0.5 if item["reply"] == GOOD["reply"] else 0.0,
            )


def test_in_a_batch_a_broken_item_is_its_own_error(address):
    first, second, third = asked(address, GOOD, BROKEN[2], EMPTY)
    assert first["reward"] == 0.5
    assert "episode='/etc/passwd' is not an object" in second["error"]
    assert third["reward"] == 0.0


def test_an_exhausted_quota_is_the_error_of_its_items_alone():
    score = build_answer_metric("f1")

    def metric(question: Question, answer: Answer) -> float | None:
        if "Oslo" in question.text and not answer.shown:  # only after the empty reply
            raise QuotaExhaustedError("judge: no credit")
        return score(question, answer)

    with served(RequestLimits(), metric) as address:
        first, second, third = asked(address, GOOD, {**EMPTY, "id": 7}, GOOD)
    assert (first["reward"], third["reward"], second["id"]) == (0.5, 0.5, 7)
    assert "quota of the server's model provider is used up (judge: no credit)" in second["error"]


def test_dspy_holds_nothing_of_a_request(address):
    asked(address, {**GOOD, "episode": changed(turns=[{**TURNS[0], "text": "My word is xyzzyplugh."}])})
    assert "xyzzyplugh" not in str([base_lm.GLOBAL_HISTORY, dspy.settings.trace])


def test_half_a_surrogate_pair_in_an_item_does_not_affect_the_others(address):
    half = {**GOOD, "id": "half \ud83d", "reply": "half \ud83d"}
    first, second = asked(address, half, GOOD)
    assert (first["id"], first["reward"], first["is_valid"]) == (half["id"], 0.0, False)
    assert second["reward"] == 0.5


def test_the_answer_has_the_attribution_of_the_reply(address):
    good, empty = asked(address, GOOD, EMPTY)
    assert (good["weight"], empty["weight"]) == (4.0, 1.0)
    assert (good["retrieved"], empty["retrieved"]) == (1, 0)


def test_a_reply_is_compared_with_the_length_of_the_experts():
    lengths = LengthSettings(length_weight=0.5, core_length_start=1, core_length_max=11)
    rule = RewardRule("dense", lengths.length_weight)
    rewarder = ReplyRewarder(reader_by_rules(), build_answer_metric("f1"), rule, lengths)
    session_C = talk("talk")
    episode = Episode(session_C, session_C.sessions[0], MemorySpace("talk"), session_C.questions)
    same = rewarder.reward(episode, "episodic", str(GOOD["reply"]), {"episodic": 6})
    short = rewarder.reward(episode, "episodic", str(GOOD["reply"]), {"episodic": 600, "semantic": 9})
    assert (same.reward, same.length_penalty) == (0.5, 0.0)
    assert (short.reward, short.length_penalty) == (0.25, 1.0)
    core = rewarder.reward(episode, "core", reply("core", remembers=True))
    assert core.length_penalty == pytest.approx((core_tokens() - 1) / 10)


def core_tokens() -> int:
    return count_tokens("Mara lives in Oslo.")


def test_counts_of_tokens_are_checked(address):
    wrong = [{"episodic": -1}, {"nobody": 3}, {"episodic": "many"}, [6]]
    for answer in asked(address, *({**GOOD, "episode": {**EPISODE, "expert_tokens": w}} for w in wrong)):
        assert "are no counts by kind" in answer["error"]


def test_an_item_that_is_nested_too_deeply_is_its_own_error(address):
    for depth in (900, 990, 1000, 1015):
        deep = {**GOOD, "agent": json.loads("[" * 900 + "]" * 900)}
        body = (
            json.dumps({"items": [GOOD, deep]})
            .replace("[" * 900, "[" * depth)
            .replace("]" * 900, "]" * depth)
        )
        answer = httpx.post(f"{address}/reward", content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 200, depth
        first, second = answer.json()["items"]
        assert (first["reward"], list(second)) == (0.5, ["error"])


@pytest.mark.parametrize(
    ("body", "status", "complaint"),
    [
        (b"{", 400, "not JSON"),
        (b"[]", 400, "no items"),
        (b'{"items": []}', 400, "no items"),
        (json.dumps({"items": [{}] * 9}).encode(), 400, "9 items are more than the 8"),
        (b" " * 200_001, 413, "200,000 bytes"),
    ],
)
def test_a_request_that_is_none_is_refused_whole(address, body, status, complaint):
    answer = httpx.post(f"{address}/reward", content=body)
    assert answer.status_code == status
    assert complaint in answer.json()["error"]


def test_a_web_page_of_another_host_is_refused():
    with served(RequestLimits(is_local=True)) as address:
        for headers in ({"Origin": "https://evil.example"}, {"Host": "evil.example"}):
            refused = httpx.post(f"{address}/reward", json={"items": [GOOD]}, headers=headers)
            assert (refused.status_code, list(refused.json())) == (403, ["error"])
        assert httpx.post(f"{address}/reward", json={"items": [GOOD]}).is_success


def test_with_a_token_only_who_has_it_is_answered(monkeypatch):
    with served(RequestLimits(token="secret")) as address:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "secret"}):
            answer = httpx.post(f"{address}/reward", json={"items": [GOOD]}, headers=headers)
            assert answer.status_code == 401
        monkeypatch.setenv("MEMORY_PROGRAM_REWARD_URL", address)
        extra = {"episode": json.dumps(EPISODE), "agent": "episodic", "earlier": "[]"}
        with pytest.raises(RuntimeError, match="refused"):
            verl_reward.compute_score("x", GOOD["reply"], None, extra)
        monkeypatch.setenv("MEMORY_PROGRAM_REWARD_TOKEN", "secret")
        assert verl_reward.compute_score("x", GOOD["reply"], None, extra) == {
            **{"score": 0.5, "task_score": 0.5, "length_penalty": 0.0},
            **{"is_valid": 1.0, "retrieved": 1.0, "weight": 4.0},
        }
        earlier = json.dumps([EMPTY["reply"]])
        with pytest.raises(RuntimeError, match="no reward can be given: the earlier replies end the agent's"):
            verl_reward.compute_score("x", GOOD["reply"], None, {**extra, "earlier": earlier})
        with pytest.raises(RuntimeError, match="no reward: unknown agent 'nobody'"):
            verl_reward.compute_score("x", GOOD["reply"], None, {**extra, "agent": "nobody"})


def test_the_address_of_verl_s_reward_may_end_with_a_slash(address, monkeypatch):
    monkeypatch.setenv("MEMORY_PROGRAM_REWARD_URL", f"{address}/")
    extra = {"episode": json.dumps(EPISODE), "agent": "episodic"}
    assert verl_reward.compute_score("x", str(GOOD["reply"]), None, extra)["score"] == 0.5


def test_of_a_server_that_hangs_up_verl_is_told(monkeypatch):
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        thread = threading.Thread(target=lambda: listening.accept()[0].close())
        thread.start()
        monkeypatch.setenv("MEMORY_PROGRAM_REWARD_URL", f"http://127.0.0.1:{listening.getsockname()[1]}")
        with pytest.raises(RuntimeError, match="no reward from http"):
            verl_reward.compute_score("x", "reply", None, {"episode": "{}", "agent": "episodic"})
        thread.join()


def test_the_log_has_no_line_for_each_request(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    log = tmp_path / "log"
    with ModelServer() as model, log.open("wb") as written:
        command = [sys.executable, "-m", "memory_program.serving.reward_server", "--port", port]
        server = subprocess.Popen(
            [*command, "--reader-model", "openai/test", "--api-base", model.url],
            stdout=written,
            stderr=written,
            env={**os.environ, "OPENAI_API_KEY": "sk-0123456789"},
            cwd=CHECKOUT,
        )
        try:
            while b"running on" not in log.read_bytes():
                assert server.poll() is None, log.read_text()
                time.sleep(0.05)
            assert asked(f"http://127.0.0.1:{port}", GOOD)[0]["reward"] == 0.5
        finally:
            server.terminate()
            server.wait(30)
    assert "POST /reward" not in log.read_text()


def test_without_a_server_verl_is_told_how_to_start_one(monkeypatch):
    monkeypatch.setenv("MEMORY_PROGRAM_REWARD_URL", "http://127.0.0.1:9")
    with pytest.raises(RuntimeError, match="start one with python -m"):
        verl_reward.compute_score("x", "y", None, {"episode": {}, "agent": "episodic"})


@pytest.mark.parametrize("extra", [None, {}, {"index": 3, "split": "train"}])
def test_of_rows_that_are_no_export_verl_is_told(extra):
    with pytest.raises(RuntimeError, match="has no agent and episode: train on rows of"):
        verl_reward.compute_score("x", "y", None, extra)


def test_an_open_address_needs_a_token(monkeypatch):
    monkeypatch.delenv("MEMORY_PROGRAM_REWARD_TOKEN", raising=False)
    with pytest.raises(ConfigError, match=r"host='0\.0\.0\.0' is open to other machines: set a token"):
        serve_rewards(RewardServerConfig(host="0.0.0.0"))
