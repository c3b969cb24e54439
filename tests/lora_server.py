"""An HTTP server that speaks the part of vLLM's API that a training samples with; its model is a real one.

It answers ``/v1/models``, ``/v1/completions`` (token ids in, token ids and log-probabilities out),
``/v1/load_lora_adapter`` and ``/v1/unload_lora_adapter`` as vLLM 0.32 does. Each adapter is a copy of the
base model with the PEFT adapter of the named folder. Like a real server it has defaults of its own for
sampling settings that a request leaves out; they are greedy, so a test sees when one is used.
"""

import json
import threading
import zlib
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel

from memory_program.inference.batcher import Batcher, Ending, GenerationRequest, NumericalTolerance
from memory_program.inference.decoder import Decoder
from memory_program.inference.loading import load_model
from memory_program.inference.prefix_cache import PrefixCache
from memory_program.inference.sampling import SamplingParams
from memory_program.inference.stop_strings import StopStrings

BASE = "tiny-base"
NEUTRAL = {"min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
ENDINGS = {Ending.LIMIT: "length", Ending.REPETITION: "repetition"}


@dataclass
class LoraServer:
    """Serves the model of a folder while it is entered.

    ``refuses_from`` is the number of the first adapter that is refused. The next ``unavailable`` completions
    are answered with HTTP 503. ``loaded`` lists the names of all adapters in the order of their loading,
    ``requests`` the bodies of all completions.
    """

    folder: Path
    dtype: torch.dtype = torch.float32
    context: int = 1024
    refuses_from: int | None = None
    unavailable: int = 0
    port: int = 0
    loaded: list[str] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)

    def __enter__(self) -> "LoraServer":
        self.batchers = {BASE: self._batcher(None)}
        self._lock = threading.Lock()
        self._asked = Counter[tuple[tuple[int, ...], int]]()
        handler = type("Handler", (_Handler,), {"of": self})
        self._http = ThreadingHTTPServer(("127.0.0.1", self.port), handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}/v1"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        for batcher in self.batchers.values():
            batcher.close()

    def _batcher(self, adapter: str | None) -> Batcher:
        self.model = load_model(str(self.folder), "cpu", self.dtype)
        if adapter is not None:
            PeftModel.from_pretrained(self.model.network, adapter).eval()
        decoder = Decoder(self.model.network, self.model.kv_shape, PrefixCache(4096))
        exact = NumericalTolerance(0.0, 0.0)
        return Batcher(decoder, self.model.stop_ids, slots=32, tolerance=exact, threads=1)

    def models(self) -> tuple[int, object]:
        entry = {"id": BASE, "parent": None, "max_model_len": self.context}
        adapters = [{"id": name, "parent": BASE} for name in self.batchers if name != BASE]
        return 200, {"data": [entry, *adapters]}

    def load_lora_adapter(self, body: dict[str, Any]) -> tuple[int, object]:
        name = body["lora_name"]
        if name in self.batchers:
            return 400, {"error": {"message": f"The lora adapter '{name}' has already been loaded."}}
        if self.refuses_from is not None and len(self.loaded) >= self.refuses_from:
            return 500, {"error": {"message": "LoRA rank 32 is greater than max_lora_rank 16."}}
        self.batchers[name] = self._batcher(body["lora_path"])
        self.loaded.append(name)
        return 200, f"Success: LoRA adapter '{name}' added successfully."

    def unload_lora_adapter(self, body: dict[str, Any]) -> tuple[int, object]:
        name = body["lora_name"]
        if name not in self.batchers:
            return 404, {"error": {"message": f"The lora adapter '{name}' cannot be found."}}
        self.batchers.pop(name).close()
        return 200, f"Success: LoRA adapter '{name}' removed successfully."

    def completions(self, body: dict[str, Any]) -> tuple[int, object]:
        with self._lock:
            self.requests.append(body)
            if self.unavailable > 0:
                self.unavailable -= 1
                return 503, {"error": {"message": "The engine is starting."}}
            asked = (tuple(body["prompt"]), len(self.loaded))
            self._asked[asked] += 1
            seed = zlib.crc32(f"{asked} {self._asked[asked]}".encode())
        batcher = self.batchers.get(body["model"])
        if batcher is None:
            return 404, {"error": {"message": f"The model `{body['model']}` does not exist."}}
        prompt = body["prompt"]
        if len(prompt) + body["max_tokens"] > self.context:
            said = f"This model's maximum context length is {self.context} tokens."
            return 400, {"error": {"message": said, "code": 400}}
        assert all(body.get(name) == value for name, value in NEUTRAL.items())
        top_k = body.get("top_k", 1) or None
        sampling = SamplingParams(body.get("temperature", 0.0), body.get("top_p", 1.0), top_k)
        stops = StopStrings(body["stop"], self.model.tokenizer) if body.get("stop") else None
        reply = batcher.generate(
            GenerationRequest(tuple(prompt), body["max_tokens"], sampling, seed, None, stops)
        )
        choice = {
            "token_ids": reply.tokens,
            "logprobs": {"token_logprobs": reply.logprobs},
            "finish_reason": ENDINGS.get(reply.ending or Ending.LIMIT, "stop"),
        }
        return 200, {"choices": [choice], "usage": {"prompt_tokens": len(prompt)}}


class _Handler(BaseHTTPRequestHandler):
    of: LoraServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        pages = {"/v1/models": self.of.models(), "/health": (200, "")}
        self._send(*pages.get(self.path, (404, {"detail": "Not Found"})))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        actions = {
            f"/v1/{action.__name__}": action
            for action in (self.of.completions, self.of.load_lora_adapter, self.of.unload_lora_adapter)
        }
        action = actions.get(self.path)
        self._send(*(action(body) if action is not None else (404, {"detail": "Not Found"})))

    def _send(self, status: int, body: object) -> None:
        sent = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)

    def log_message(self, format: str, *arguments: object) -> None:
        pass
