"""Arbor's HTTP interface, as its routers have it: one method for each request, errors that say what to do."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import httpx

from memory_program.core.errors import ModelError
from memory_program.core.json_files import Json

START_COMMAND = "python -m memory_program.rl.backends.arbor serve --config arbor.yaml"
"""What starts a server."""

_SHORT_TIMEOUT_S = 60.0
_LONG_TIMEOUT_S = (
    1800.0  # a job that starts loads the model twice; a checkpoint of a large one is many gigabytes
)


class UnknownJobError(ModelError):
    """The server does not know the job: it was started anew since."""


@dataclass(frozen=True, slots=True)
class JobStatus:
    """The server's status of a job. ``pending_batch_ids`` are the groups that its trainer waits for."""

    job_id: str
    status: str
    pending_batch_ids: tuple[int, ...]
    checkpoints: Mapping[str, Json]
    last_checkpoint: str | None

    @classmethod
    def from_json(cls, answer: Json) -> "JobStatus":
        """Read Arbor's ``GRPOStatus``."""
        return cls(
            job_id=answer["job_id"],
            status=answer["status"] or "unknown",
            pending_batch_ids=tuple(answer["pending_batch_ids"]),
            checkpoints=answer["checkpoints"],
            last_checkpoint=answer["last_checkpoint"],
        )


class ArborClient:
    """Talks to one server; any thread may call. Nothing is tried twice: Arbor counts what it is sent."""

    def __init__(self, url: str, *, connections: int = 64) -> None:
        """Prepare; nothing is connected before the first request.

        Args:
            url: of the server, with ``/v1``.
            connections: requests that run at once at most.
        """
        self.url = url.rstrip("/")
        # A connection for each request: uvicorn closes one after an error inside Arbor, and one that idles,
        # and a request that was under way on it is lost.
        limits = httpx.Limits(max_connections=connections, max_keepalive_connections=0)
        self._http = httpx.Client(limits=limits)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def check(self) -> None:
        """Find out whether an Arbor server answers.

        Raises:
            ModelError: none does, or something else.
        """
        answer = self._send("GET", self.url.removesuffix("/v1") + "/openapi.json", None, _SHORT_TIMEOUT_S)
        content = answer.json() if answer.headers.get("content-type") == "application/json" else {}
        if "/v1/fine_tuning/grpo/initialize" not in content.get("paths", {}):
            raise ModelError(
                f"what answers at {self.url} is no Arbor server: check host and port, or {START_COMMAND}"
            )

    def initialize(self, request: Json) -> JobStatus:
        """Start a job; returns when its trainer is ready."""
        return self._job("initialize", request, _LONG_TIMEOUT_S)

    def status(self, job_id: str) -> JobStatus:
        """Ask how far a job is."""
        return self._job("status", {"job_id": job_id}, _SHORT_TIMEOUT_S)

    def step(self, job_id: str, number: int, group: list[Json]) -> JobStatus:
        """Send a group. The server counts for itself: ``number`` is only told."""
        body = {"job_id": job_id, "model": job_id, "batch_id": number, "batch": group}
        return self._job("step", body, _SHORT_TIMEOUT_S)

    def checkpoint(self, job_id: str, name: str, metadata: Json | None = None) -> JobStatus:
        """Write the weights on the server's machine, under a name that may be there already."""
        told = {} if metadata is None else {"metadata": metadata}
        return self._job("checkpoint", {"job_id": job_id, "checkpoint_name": name, **told}, _LONG_TIMEOUT_S)

    def terminate(self, job_id: str) -> JobStatus:
        """Write the last weights as ``checkpoint_final``, and end the trainer; vLLM goes on."""
        return self._job("terminate", {"job_id": job_id}, _LONG_TIMEOUT_S)

    def cancel(self, job_id: str) -> JobStatus:
        """End trainer and vLLM, and give their GPUs back."""
        return self._job("cancel", {"job_id": job_id}, _LONG_TIMEOUT_S)

    def chat(self, body: Json, timeout_s: float) -> Json | None:
        """Ask for a chat completion; None where vLLM gave none, of which Arbor says no more."""
        return cast(Json | None, self._post("chat/completions", body, timeout_s))

    def _job(self, action: str, body: Json, timeout_s: float) -> JobStatus:
        return JobStatus.from_json(cast(Json, self._post(f"fine_tuning/grpo/{action}", body, timeout_s)))

    def _post(self, path: str, body: Json, timeout_s: float) -> object:
        answer = self._send("POST", f"{self.url}/{path}", body, timeout_s)
        if answer.status_code == 200:
            return answer.json()
        try:
            content = answer.json()
        except ValueError:
            content = {"message": answer.text[:500]}
        detail = content.get("detail", content)
        kind, message = content.get("type", ""), str(content.get("message", detail))
        if isinstance(detail, list):  # FastAPI's error for a wrong key; Arbor's own has type and message
            wrong = [f"{'.'.join(map(str, one['loc'][1:]))}: {one['msg']}" for one in detail]
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
                f"no Arbor server answers at {self.url}: start one with: {START_COMMAND}"
            ) from error
        except httpx.TimeoutException as error:
            raise ModelError(
                f"the Arbor server at {self.url} has not answered within {timeout_s:.0f} s: its log says why"
            ) from error
        except httpx.HTTPError as error:
            raise ModelError(f"the call to the Arbor server at {self.url} broke off: {error!r}") from error
