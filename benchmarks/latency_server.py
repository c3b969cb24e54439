"""A model endpoint that answers every call after the same time, whatever it is asked.

python benchmarks/latency_server.py [--latency-s 0.2] [--block-tokens 128 --least-tokens 1024]

It speaks OpenAI's chat completions over plain asyncio, so that on two cores it is not what is measured, and
prints its address. Its replies have the shape and the size of real ones: memories are lines of the session,
an answer is a memory that was shown, a verdict is a word. ``GET /traffic`` tells when calls came and went,
and what processor time the server took. It also writes the memories that mem0's library asks for, and embeds
texts for it, without the latency.

Its usage tells, as a provider's does, how much of a prompt a cache of prefixes would have served: the longest
beginning that an earlier prompt had too, in whole blocks and from some length on. The defaults are OpenAI's
(https://platform.openai.com/docs/guides/prompt-caching), and nothing is ever forgotten; a self-hosted server
(vLLM) has blocks of 16 tokens and no least length. A token is taken to be four characters.
"""

import argparse
import asyncio
import contextlib
import json
import re
import time
import zlib
from collections.abc import Sequence
from typing import Any

_MARKER = re.compile(r"`\[\[ ## (\w+) ## \]\]`")
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_CALLS = {"episodic": 6, "semantic": 6, "procedural": 2}
_MEMORY_CHARS = 80  # so that no conversation of LoCoMo comes to more than its budget, and is consolidated
_CHARS_PER_TOKEN = 4
DIMENSION = 64


def hashed_words(texts: Sequence[str]) -> list[list[float]]:
    """Embed texts without a model: how often each of 64 classes of words stands in a text."""
    rows = [[0.0] * DIMENSION for _ in texts]
    for row, text in zip(rows, texts, strict=True):
        for word in text.lower().split():
            row[zlib.crc32(word.encode()) % DIMENSION] += 1
    return rows


class PrefixCache:
    """The beginnings of all prompts so far."""

    def __init__(self, block_tokens: int, least_tokens: int) -> None:
        """Begin without any."""
        self._block_chars = block_tokens * _CHARS_PER_TOKEN
        self._least_chars = least_tokens * _CHARS_PER_TOKEN
        self._blocks: set[int] = set()

    def served(self, prompt: str) -> int:
        """Take a prompt in, and count the tokens of its beginning that were there before."""
        block, known_chars, is_known = 0, 0, True
        for end in range(self._block_chars, len(prompt) + 1, self._block_chars):
            block = hash((block, prompt[end - self._block_chars : end]))
            is_known = is_known and block in self._blocks
            known_chars = end if is_known else known_chars
            self._blocks.add(block)
        return known_chars // _CHARS_PER_TOKEN if known_chars >= self._least_chars else 0


class Traffic:
    """When calls came and went, by what they asked for; times in seconds of this machine's clock."""

    def __init__(self) -> None:
        """Begin with none."""
        self.calls: dict[str, int] = {}
        self.first_s: dict[str, float] = {}
        self.last_s: dict[str, float] = {}
        self.in_flight = self.most_in_flight = 0

    def begin(self, job: str) -> None:
        """Count a call that came."""
        self.calls[job] = self.calls.get(job, 0) + 1
        self.first_s.setdefault(job, time.monotonic())
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)

    def end(self, job: str) -> None:
        """Count a call that was answered."""
        self.last_s[job] = time.monotonic()
        self.in_flight -= 1

    def as_json(self) -> dict[str, Any]:
        """Give all of it."""
        return {
            "calls": self.calls,
            "first_s": self.first_s,
            "last_s": self.last_s,
            "most_in_flight": self.most_in_flight,
            "cpu_s": time.process_time(),
        }


class Connection(asyncio.Protocol):
    """One connection that is kept alive: requests one after the other, each answered after the latency."""

    def __init__(self, latency_s: float, traffic: Traffic, cache: PrefixCache) -> None:
        """Begin with nothing received."""
        self._latency_s, self._traffic, self._cache = latency_s, traffic, cache
        self._received = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep what is written to."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer every request that is there as a whole."""
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            head = bytes(self._received[:end])
            length = _LENGTH.search(head)
            size = end + 4 + (int(length[1]) if length else 0)
            if len(self._received) < size:
                return
            body = bytes(self._received[end + 4 : size])
            del self._received[:size]
            if head.startswith(b"GET"):
                self._send(self._traffic.as_json())
            elif b"/embeddings " in head.partition(b"\r\n")[0]:
                self._send(_embeddings(json.loads(body)))
            else:
                self._answer(json.loads(body))

    def _answer(self, body: dict[str, Any]) -> None:
        system, user = _prompt(body["messages"])
        job, text = reply(system, user)
        self._traffic.begin(job)
        loop = asyncio.get_running_loop()
        due = loop.time() + self._latency_s  # what is worked out here is part of the latency
        completion = _completion(str(body["model"]), text, self._usage(system, user, text))
        loop.call_at(due, self._finish, job, completion, bool(body.get("stream")))

    def _usage(self, system: str, user: str, text: str) -> dict[str, Any]:
        prompt_tokens = (len(system) + len(user)) // _CHARS_PER_TOKEN
        cached_tokens = self._cache.served(system + user)
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": len(text) // _CHARS_PER_TOKEN,
            "total_tokens": prompt_tokens + len(text) // _CHARS_PER_TOKEN,
            "prompt_tokens_details": {"cached_tokens": cached_tokens},
        }

    def _finish(self, job: str, completion: dict[str, Any], is_streamed: bool) -> None:
        self._traffic.end(job)
        if is_streamed:
            self._stream(completion)
        else:
            self._send(completion)

    def _stream(self, completion: dict[str, Any]) -> None:
        """Send a completion as events of one token each, all at once."""
        text = completion["choices"][0]["message"]["content"]
        tokens = [text[start : start + _CHARS_PER_TOKEN] for start in range(0, len(text), _CHARS_PER_TOKEN)]
        deltas = [{"index": 0, "delta": {"content": token}, "finish_reason": None} for token in tokens]
        events = [{**completion, "choices": [delta], "usage": None} for delta in deltas]
        end = {"index": 0, "delta": {}, "finish_reason": "stop"}
        events.append({**completion, "choices": [end]})
        sent = [f"data: {json.dumps(event)}\n\n".encode() for event in events] + [b"data: [DONE]\n\n"]
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        chunks = [b"%x\r\n%b\r\n" % (len(event), event) for event in sent]
        self._transport.write(b"".join([head, *chunks, b"0\r\n\r\n"]))

    def _send(self, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        self._transport.write(head.encode() + body)


def reply(system: str, user: str) -> tuple[str, str]:
    """Name what a prompt asks for (``write``, ``answer``, ``judge``, ``extract``, ``other``), and do it.

    ``extract`` is the one prompt of mem0's ``add``; the others are the program's.
    """
    told = user.partition("## New Messages\n")[2].partition("\n\n## Observation Date")[0]
    if told:
        texts = [{"text": line[:_MEMORY_CHARS]} for line in told.splitlines() if line]
        return "extract", json.dumps({"memory": texts})
    fields, _, asked = user.rpartition("\n\nRespond with")
    wanted = [name for name in _MARKER.findall(asked) if name != "completed"]
    if "verdict" in wanted:
        return "judge", _written(reasoning="The answer has what the gold requires.", verdict="CORRECT")
    if wanted == ["answer"]:
        memories = _field(fields, "memories").splitlines()
        return "answer", _written(answer=memories[0][:60] if memories else "nothing")
    if wanted == ["tool_calls"]:
        return "write", _written(tool_calls=json.dumps({"tool_calls": _calls(system, fields)}))
    return "other", "ready"


def _calls(system: str, fields: str) -> list[dict[str, Any]]:
    lines = _field(fields, "session").splitlines()
    told = re.search(r"write (\w+) memories", system)
    if not lines:
        return []
    if told is None:
        line = {"action": "append", "text": lines[0][:_MEMORY_CHARS]}
        return [{"name": "edit_core", "args": line}]
    count = _CALLS[told[1]]
    chosen = [line for line in lines if len(line) > 20][:: max(1, len(lines) // count)][:count]
    return [
        {"name": "manage_memory", "args": {"action": "create", "text": line[:_MEMORY_CHARS]}}
        for line in chosen
    ]


def _field(fields: str, name: str) -> str:
    return fields.partition(f"[[ ## {name} ## ]]\n")[2].partition("\n\n[[ ## ")[0].strip()


def _written(**fields: str) -> str:
    sections = [f"[[ ## {name} ## ]]\n{value}" for name, value in fields.items()]
    return "\n\n".join([*sections, "[[ ## completed ## ]]"])


def _prompt(messages: Sequence[dict[str, Any]]) -> tuple[str, str]:
    system = [m["content"] for m in messages if m["role"] in ("system", "developer")]
    return "\n\n".join(system), str(messages[-1]["content"])


def _embeddings(body: dict[str, Any]) -> dict[str, Any]:
    data = [
        {"object": "embedding", "index": place, "embedding": row}
        for place, row in enumerate(hashed_words(body["input"]))
    ]
    usage = {"prompt_tokens": 1, "total_tokens": 1}
    return {"object": "list", "data": data, "model": body["model"], "usage": usage}


def _completion(model: str, text: str, usage: dict[str, Any]) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    return {
        "id": "chatcmpl-0",
        "object": "chat.completion",
        "created": 1_683_554_160,
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": usage,
    }


async def _serve(latency_s: float, cache: PrefixCache) -> None:
    traffic, loop = Traffic(), asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: Connection(latency_s, traffic, cache), "127.0.0.1", 0, backlog=1024
    )
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", flush=True)
    await server.serve_forever()


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--latency-s", type=float, default=0.2, help="how long a reply takes")
    parser.add_argument("--block-tokens", type=int, default=128, help="tokens that a cache keeps together")
    parser.add_argument("--least-tokens", type=int, default=1024, help="tokens that a cache serves at least")
    options = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(options.latency_s, PrefixCache(options.block_tokens, options.least_tokens)))


if __name__ == "__main__":
    main()
