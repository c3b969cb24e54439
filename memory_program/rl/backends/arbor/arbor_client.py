"""A client of Arbor's HTTP interface: one method for each route."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import httpx

from memory_program.core.errors import ModelError
from memory_program.core.json_files import Json

START_COMMAND = "memory-program arbor serve --config arbor.yaml"
"""The command that starts a server."""

_SHORT_TIMEOUT_S = 60.0
_STEP_TIMEOUT_S = 300.0
_LONG_TIMEOUT_S = 1800.0  # a new job loads the model twice, and a checkpoint can be many gigabytes


class UnknownJobError(ModelError):
    """The server does not know the job, because it was restarted."""


@dataclass(frozen=True, slots=True)
class JobStatus:
    """The server's status of a job. Its trainer waits for the batches ``pending_batch_ids``."""

    job_id: str
    status: str
    pending_batch_ids: tuple[int, ...]
    checkpoints: Mapping[str, Json]
    last_checkpoint: str | None

    @classmethod
    def from_json(cls, answer: Json) -> "JobStatus":
        """Read Arbor's ``GRPOStatus``; raise ``ModelError`` if it is none."""
        try:
            return cls(
                job_id=answer["job_id"],
                status=answer["status"] or "unknown",
                pending_batch_ids=tuple(answer["pending_batch_ids"]),
                checkpoints=answer["checkpoints"],
                last_checkpoint=answer["last_checkpoint"],
            )
        except (KeyError, TypeError) as error:
            raise ModelError(
                f"this is no status of an Arbor job ({type(error).__name__}: {error}): {str(answer)[:200]}"
            ) from error


class ArborClient:
    """Calls one server; thread-safe. It never retries, because Arbor counts the batches it receives."""

    def __init__(self, url: str, *, connections: int = 64) -> None:
        """Take the address with ``/v1``, and the most concurrent requests; the first request connects."""
        self.url = url.rstrip("/")
        # One connection per request: uvicorn closes idle connections, and those on which Arbor failed. A
        # request in flight on a closed connection would be lost.
        limits = httpx.Limits(max_connections=connections, max_keepalive_connections=0)
        self._http = httpx.Client(limits=limits, trust_env=False)  # a proxy would be in the way

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def check(self) -> None:
        """Raise ``ModelError`` unless an Arbor server answers."""
        answer = self._send("GET", self.url.removesuffix("/v1") + "/openapi.json", None, _SHORT_TIMEOUT_S)
        try:
            routes = answer.json()["paths"]
            is_arbor = "/v1/fine_tuning/grpo/initialize" in routes
        except (ValueError, TypeError, KeyError):
            is_arbor = False
        if not is_arbor:
            raise ModelError(
                f"what answers at {self.url} is no Arbor server: check host and port, or {START_COMMAND}"
            )

    def initialize(self, request: Json) -> JobStatus:
        """Start a job, and wait until its trainer is ready."""
        return self._job("initialize", request, _LONG_TIMEOUT_S)

    def status(self, job_id: str) -> JobStatus:
        """Ask for the status of a job."""
        return self._job("status", {"job_id": job_id}, _SHORT_TIMEOUT_S)

    def step(self, job_id: str, number: int, batch: list[Json]) -> JobStatus:
        """Send a batch, which the server tokenizes. It ignores ``number`` and keeps its own count."""
        body = {"job_id": job_id, "model": job_id, "batch_id": number, "batch": batch}
        return self._job("step", body, _STEP_TIMEOUT_S)

    def checkpoint(self, job_id: str, name: str, metadata: Json | None = None) -> JobStatus:
        """Save the weights on the server's machine; an existing checkpoint is overwritten."""
        told = {} if metadata is None else {"metadata": metadata}
        return self._job("checkpoint", {"job_id": job_id, "checkpoint_name": name, **told}, _LONG_TIMEOUT_S)

    def terminate(self, job_id: str) -> JobStatus:
        """Save the last weights as ``checkpoint_final`` and end the trainer; vLLM keeps running."""
        return self._job("terminate", {"job_id": job_id}, _LONG_TIMEOUT_S)

    def cancel(self, job_id: str) -> JobStatus:
        """End the trainer and vLLM, and free their GPUs."""
        return self._job("cancel", {"job_id": job_id}, _LONG_TIMEOUT_S)

    def chat(self, body: Json, timeout_s: float) -> Json | None:
        """Ask for a chat completion; None if vLLM failed, for which Arbor gives no reason."""
        return cast(Json | None, self._post("chat/completions", body, timeout_s))

    def _job(self, action: str, body: Json, timeout_s: float) -> JobStatus:
        return JobStatus.from_json(cast(Json, self._post(f"fine_tuning/grpo/{action}", body, timeout_s)))

    def _post(self, path: str, body: Json, timeout_s: float) -> object:
        answer = self._send("POST", f"{self.url}/{path}", body, timeout_s)
        try:
            found: object = answer.json()
        except ValueError:
            found = answer.text[:500]
        if answer.status_code == 200 and (found is None or isinstance(found, dict)):
            return found
        content = cast(Json, found if isinstance(found, dict) else {"message": found})
        kind, message = content.get("type", ""), str(content.get("message", content.get("detail", content)))
        detail: Any = content.get("detail")  # Any: a list in FastAPI's own error, which names a wrong key
        if isinstance(detail, list):
            wrong = [f"{'.'.join(map(str, one['loc'][1:]))}: {one['msg']}" for one in cast(list[Any], detail)]
            kind, message = "schema", "; ".join(wrong)
        if answer.status_code == 404 or kind == "KeyError":
            raise UnknownJobError(f"the Arbor server at {self.url} does not know {message}")
        raise ModelError(f"the Arbor server at {self.url} refuses {path} ({answer.status_code}): {message}")

    def _send(self, method: str, url: str, body: Json | None, timeout_s: float) -> httpx.Response:
        timeout = httpx.Timeout(timeout_s, connect=10.0, pool=None)
        try:
            return self._http.request(method, url, json=body, timeout=timeout)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise ModelError(
                f"no Arbor server answers at {self.url}: start one with {START_COMMAND}, or train in this "
                "process with --backend local"
            ) from error
        except httpx.TimeoutException as error:
            raise ModelError(
                f"the Arbor server at {self.url} has not answered within {timeout_s:.0f} s: its log says why"
            ) from error
        except httpx.HTTPError as error:
            raise ModelError(f"the call to the Arbor server at {self.url} broke off: {error!r}") from error
