"""A server of embeddings on loopback: a text's vector counts its words by theme, so synonyms are alike."""

from collections.abc import Callable, Iterator
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from tests.served_app import ServedApp

THEMES = {"dog": 0, "puppy": 0, "animal": 0, "sea": 1, "beach": 1, "piano": 2, "music": 2}


def theme_vector(text: str) -> list[float]:
    """Count the words of a text by theme."""
    vector = [0.0, 0.0, 0.0, 0.1]
    for word in text.lower().split():
        if word.strip(".,?!") in THEMES:
            vector[THEMES[word.strip(".,?!")]] += 1
    return vector


class EmbeddingServer(ServedApp):
    """The server. ``texts`` has all that was embedded, ``keys`` what was sent with each request.

    ``statuses`` are those of the next answers, which say ``message``. ``edit`` changes the vectors of others.
    """

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.keys: list[str] = []
        self.statuses: Iterator[int] = iter(())
        self.message = "out of memory"
        self.edit: Callable[[list[dict[str, Any]]], list[dict[str, Any]]] = list
        app = FastAPI()
        app.post("/v1/embeddings", response_model=None)(self._embed)
        super().__init__(app)

    @property
    def url(self) -> str:
        """The address, as --embedder-api-base takes it."""
        host, port = self.address
        return f"http://{host}:{port}/v1"

    def _embed(self, request: Request, body: dict[str, Any]) -> dict[str, Any] | JSONResponse:
        self.keys.append(request.headers["authorization"].removeprefix("Bearer "))
        status = next(self.statuses, 200)
        if status != 200:  # with the header that keeps OpenAI's client from retrying, too
            content = {"error": {"message": self.message}}
            return JSONResponse(content, status, {"x-should-retry": "false"})
        self.texts += body["input"]
        data = [
            {"object": "embedding", "index": place, "embedding": theme_vector(text)}
            for place, text in enumerate(body["input"])
        ]
        usage = {"prompt_tokens": 1, "total_tokens": 1}
        return {"object": "list", "data": self.edit(data), "model": body["model"], "usage": usage}
