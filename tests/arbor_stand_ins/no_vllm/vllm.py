"""Stands in for vLLM in Arbor's environment: a model on the CPU behind the names that Arbor imports.

Arbor's own server of inference (``vllm_serve``) and its own client run on it unchanged. It serves where vLLM
itself is not installed, as in CI: compiling it takes minutes (``tests/arbor_vllm.sh``).
"""

import argparse
import asyncio
import enum
import importlib
import socket
import sys
import tempfile
import time
import types
from pathlib import Path

import torch
from pynccl import PyNcclCommunicator


class StatelessProcessGroup:
    """Sender and receiver of weights, told apart by their ranks; files take the place of a TCP store."""

    def __init__(self, port: int, rank: int) -> None:
        self.folder = Path(tempfile.gettempdir()) / f"arbor-weights-{port}"
        self.folder.mkdir(exist_ok=True)
        self.rank = rank
        self._count = 0

    @classmethod
    def create(cls, host: str, port: int, rank: int, world_size: int) -> "StatelessProcessGroup":
        return cls(port, rank)

    def barrier(self) -> None:
        pass

    def broadcast_obj(self, obj: torch.Tensor | None, src: int) -> torch.Tensor | None:
        path = self.folder / f"{self._count}.pt"
        self._count += 1
        if self.rank == src:
            torch.save(obj, path.with_suffix(".draft"))
            path.with_suffix(".draft").replace(path)
            return obj
        while not path.exists():
            time.sleep(0.005)
        found = torch.load(path)
        path.unlink()
        return found


class AsyncEngineArgs:
    worker_extension_cls = ""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> "AsyncEngineArgs":
        return cls(args)


class AsyncLLMEngine:
    """A model of transformers."""

    def __init__(self, source: str, extension: str) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.network = AutoModelForCausalLM.from_pretrained(source).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(source)
        self.parameters = dict(self.network.named_parameters())
        # Arbor's module runs as __main__: the class of that name is there already
        worker = getattr(sys.modules["__main__"], extension.rpartition(".")[2])()
        worker.device = "cpu"
        worker.model_runner = types.SimpleNamespace(model=types.SimpleNamespace(load_weights=self._load))
        self._worker = worker
        self._turn = asyncio.Lock()

    @classmethod
    def from_engine_args(cls, engine_args: AsyncEngineArgs, usage_context: object) -> "AsyncLLMEngine":
        return cls(engine_args.args.model, engine_args.worker_extension_cls)

    async def collective_rpc(self, method: str, args: tuple = ()) -> None:
        async with self._turn:  # in the order of the calls
            await asyncio.to_thread(getattr(self._worker, method), *args)

    async def reset_prefix_cache(self) -> None:
        pass

    async def get_vllm_config(self) -> None:
        return None

    def _load(self, weights: list) -> None:
        for name, weight in weights:
            with torch.no_grad():
                self.parameters[name].copy_(weight)  # a name that is not the model's is an error

    @torch.no_grad()
    def reply(self, body: dict, longest: int) -> dict | None:
        """Answer, or say None to a prompt that is too long."""
        assert (body["top_k"], body["top_p"]) == (-1, 1.0), "samples are to be the policy's own"
        text = self.tokenizer.apply_chat_template(
            body["messages"], tokenize=False, add_generation_prompt=True
        )
        tokens = self.tokenizer(text, add_special_tokens=False, return_tensors="pt")
        start = tokens["input_ids"].shape[1]
        if start + body["max_tokens"] > longest:
            return None
        if "seed" in body:
            torch.manual_seed(body["seed"])
        is_sampled = body["temperature"] > 0
        sampling = {"temperature": body["temperature"], "top_k": 0} if is_sampled else {}
        whole = self.network.generate(
            **tokens,
            max_new_tokens=body["max_tokens"],
            do_sample=is_sampled,
            repetition_penalty=body["repetition_penalty"],
            **sampling,
        )
        made = whole[0, start:]
        ends = bool(made[-1] == self.tokenizer.eos_token_id)
        message = {"role": "assistant", "content": self.tokenizer.decode(made, skip_special_tokens=True)}
        choice = {"index": 0, "message": message, "finish_reason": "stop" if ends else "length"}
        if body.get("logprobs"):
            logits = self.network(whole).logits[0, start - 1 : -1].log_softmax(-1)
            likely = logits.gather(1, made[:, None])[:, 0].tolist()
            content = [
                {"token": f"token_id:{int(a)}", "logprob": b} for a, b in zip(made, likely, strict=True)
            ]
            choice["logprobs"] = {"content": content}
        usage = {"prompt_tokens": start, "completion_tokens": len(made)}
        return {
            "id": "chatcmpl-0",
            "object": "chat.completion",
            "model": body["model"],
            "choices": [choice],
            "usage": {**usage, "total_tokens": sum(usage.values())},
        }


def build_app(args: argparse.Namespace) -> object:
    from fastapi import FastAPI, HTTPException, Request

    app = FastAPI()

    @app.get("/v1/models")
    async def models() -> dict:
        return {"data": [{"id": args.model}]}

    @app.post("/v1/chat/completions")
    async def complete(request: Request) -> dict:
        engine = request.app.state.engine
        answer = await asyncio.to_thread(engine.reply, await request.json(), args.max_model_len)
        if answer is None:
            raise HTTPException(400, "This model's maximum context length is shorter")
        return answer

    return app


async def init_app_state(engine: AsyncLLMEngine, config: object, state: object, args: object) -> None:
    state.engine = engine


async def serve_http(app: object, sock: socket.socket, **options: object) -> asyncio.Task:
    import uvicorn

    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    return asyncio.create_task(server.serve(sockets=[sock]))


def create_server_socket(address: tuple[str, int]) -> socket.socket:
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    found.bind(address)
    return found


def make_arg_parser(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Take what Arbor gives, by vLLM 0.10's names."""
    parser.add_argument("--model")
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--gpu-memory-utilization", type=float)
    for name in ("tensor-parallel-size", "data-parallel-size"):
        parser.add_argument(f"--{name}", type=int, default=1)
    parser.add_argument("--max_model_len", type=int)
    for name in ("--enable_prefix_caching", "--disable-log-stats"):
        parser.add_argument(name, action="store_true")
    for name in ("uvicorn-log-level", "ssl-keyfile", "ssl-certfile", "ssl-ca-certs", "ssl-cert-reqs"):
        parser.add_argument(f"--{name}")
    return parser


class UsageContext(enum.Enum):
    OPENAI_API_SERVER = "openai"


_MODULES: dict[str, dict[str, object]] = {
    "distributed.device_communicators.pynccl": {"PyNcclCommunicator": PyNcclCommunicator},
    "distributed.parallel_state": {"get_world_group": lambda: types.SimpleNamespace(rank=0)},
    "distributed.utils": {"StatelessProcessGroup": StatelessProcessGroup},
    "engine.arg_utils": {"AsyncEngineArgs": AsyncEngineArgs},
    "engine.async_llm_engine": {"AsyncLLMEngine": AsyncLLMEngine},
    "entrypoints.launcher": {"serve_http": serve_http},
    "entrypoints.openai.api_server": {
        "build_app": build_app,
        "create_server_socket": create_server_socket,
        "init_app_state": init_app_state,
    },
    "entrypoints.openai.cli_args": {
        "make_arg_parser": make_arg_parser,
        "validate_parsed_serve_args": lambda args: None,
    },
    "usage.usage_lib": {"UsageContext": UsageContext},
    "utils": {"FlexibleArgumentParser": argparse.ArgumentParser, "set_ulimit": lambda: None},
}
for _path, _names in _MODULES.items():
    _parts = _path.split(".")
    for _depth in range(1, len(_parts) + 1):
        _name = ".".join(["vllm", *_parts[:_depth]])
        sys.modules.setdefault(_name, types.ModuleType(_name))
    vars(importlib.import_module(f"vllm.{_path}")).update(_names)
