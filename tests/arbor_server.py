"""Plays an Arbor server by arbor-ai 0.2.17's routes, with a policy that learns from what it is sent.

``test_arbor_server.py`` holds our client against the real one; this one is there in a moment, and can fail on
command. It knows the specialists of ``training_samples``: asked as one of them, it remembers or does not.
"""

import random
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastapi import FastAPI, HTTPException
from fastapi.responses import JSONResponse

from memory_program.agents.signatures import EMPTY_PLACEHOLDER, SPECIALISTS, with_read_tools
from memory_program.agents.tools import MEMORY_TOOLS
from tests.served_app import ServedApp
from tests.training_samples import REPLIES, reply, request, said

SEARCH = said("search_memory", query="Oslo")
NO_RESULTS = f"[[ ## tool_results ## ]]\n{EMPTY_PLACEHOLDER}"


class ArborServer(ServedApp):
    """The server in a thread of its own, from ``__enter__`` to ``__exit__``.

    Args:
        storage: where checkpoints are written.
        model: what every checkpoint holds, a folder in the format of transformers.
        fails_at: numbers of the steps at which the server breaks down, once each.
    """

    def __init__(self, storage: Path, model: Path, *, fails_at: Sequence[int] = ()) -> None:
        self.calls: list[str] = []
        self.initialized: list[dict[str, Any]] = []
        self.batches: list[list[dict[str, Any]]] = []
        self.asked: set[str] = set()
        """The names under which the policy was asked."""
        self.skill = dict.fromkeys(REPLIES, 0.5)
        """How likely each specialist is to remember."""
        self._storage, self._model, self._fails_at = storage, model, list(fails_at)
        self._lock = threading.Lock()
        super().__init__(self._app())

    @property
    def port(self) -> int:
        return self.address[1]

    def write_config(self, path: Path) -> Path:
        """Write the ``arbor.yaml`` that leads here."""
        path.write_text(
            f"port: {self.port}\nstorage_path: {self._storage}\n"
            "inference: {gpu_ids: [0]}\ntraining: {gpu_ids: [1]}\n",
            encoding="utf-8",
        )
        return path

    def _app(self) -> FastAPI:
        app = FastAPI()
        for name in ("initialize", "status", "step", "checkpoint", "terminate", "cancel"):
            app.post(f"/v1/fine_tuning/grpo/{name}", response_model=None)(getattr(self, f"_{name}"))
        app.post("/v1/chat/completions")(self._complete)
        return app

    def _initialize(self, body: dict[str, Any]) -> dict[str, Any]:
        self.calls.append("initialize")
        self.initialized.append(body)
        return self._job()

    def _check(self, body: dict[str, Any]) -> None:
        if not self.initialized or body["job_id"] != self._job_id:
            raise HTTPException(404, f"GRPO job {body['job_id']} not found")

    def _status(self, body: dict[str, Any]) -> dict[str, Any]:
        self._check(body)
        return self._job()

    def _step(self, body: dict[str, Any]) -> dict[str, Any] | JSONResponse:
        self._check(body)
        with self._lock:
            if len(self.batches) in self._fails_at:
                self._fails_at.remove(len(self.batches))
                return JSONResponse({"type": "RuntimeError", "message": "broken", "timestamp": ""}, 500)
            assert len(body["batch"]) == self.initialized[0]["trainer_config"]["num_generations"]
            self.calls.append("step")
            self.batches.append(body["batch"])
            self._learn(body["batch"])
            return self._job()

    def _learn(self, batch: list[dict[str, Any]]) -> None:
        for item in (item for item in batch if item["completion"]):  # others fill the batch
            agent = _agent_of(item["messages"])
            if item["completion"]["content"] == reply(agent, remembers=True):
                self.skill[agent] = min(1.0, max(0.0, self.skill[agent] + 0.04 * item["reward"]))

    def _checkpoint(self, body: dict[str, Any]) -> dict[str, Any]:
        self._check(body)
        self.calls.append(f"checkpoint {body['checkpoint_name']}")
        folder = self._storage / "checkpoints" / body["checkpoint_name"]
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self._model, folder)
        record = {"checkpoint_name": body["checkpoint_name"], "checkpoint_dir": str(folder)}
        return {
            **self._job(),
            "checkpoints": {body["checkpoint_name"]: record},
            "last_checkpoint": record["checkpoint_name"],
        }

    def _terminate(self, body: dict[str, Any]) -> dict[str, Any]:
        self._check(body)
        self.calls.append("terminate")
        return self._job()

    def _cancel(self, body: dict[str, Any]) -> dict[str, Any]:
        self._check(body)
        self.calls.append("cancel")
        return {**self._job(), "status": "cancelled"}

    def _complete(self, body: dict[str, Any]) -> dict[str, Any]:
        self.asked.add(body["model"])
        agent, is_sampled = _agent_of(body["messages"]), body["temperature"] > 0
        rng = random.Random(f"{body['messages']} {body.get('seed')}")
        chance = self.skill[agent] if is_sampled else round(self.skill[agent])
        text = reply(agent, remembers=rng.random() < chance)
        asked = "".join(message["content"] for message in body["messages"])
        if is_sampled and "search_memory" in asked and NO_RESULTS in asked and rng.random() < 0.5:
            text = SEARCH  # there is another turn
        return {
            "id": "chatcmpl-0",
            "choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 100, "completion_tokens": len(text) // 4, "total_tokens": 100},
        }

    @property
    def _job_id(self) -> str:
        return f"grpo:tiny:{self.initialized[0]['run_name']}:20260101"

    def _job(self) -> dict[str, Any]:
        return {
            "job_id": self._job_id,
            "status": "running",
            "current_model": self._job_id,
            "checkpoints": {},
            "last_checkpoint": None,
            "pending_batch_ids": [len(self.batches)],
        }


def _agent_of(messages: Sequence[dict[str, str]]) -> str:
    system = next(message["content"] for message in messages if message["role"] == "system")
    for agent, signature in SPECIALISTS.items():
        if system in (
            request(agent, of).system for of in (signature, with_read_tools(signature, MEMORY_TOOLS))
        ):
            return agent
    raise AssertionError(f"no specialist is asked so: {system}")
