"""A model hub on loopback: as much of the Hugging Face protocol as fetching or pushing one model takes."""

import base64
import contextlib
import hashlib
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path

_COMMIT = "0123456789abcdef0123456789abcdef01234567"


class ModelHub:
    """Serves the files of a folder as the model ``owner/tiny``, and keeps the paths that were asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[str] = []
        self.address = ""
        self.made: dict[str, object] = {}
        """What the repository was asked to be."""
        self.pushed: dict[str, bytes] = {}
        self.tokens: set[str] = set()
        self.refuses = False

    def find(self, path: str) -> tuple[bytes, str] | None:
        """Give the body and its content type."""
        self.asked.append(path)
        if path.startswith("/api/models/owner/tiny/revision/"):
            files = [{"rfilename": file.name} for file in sorted(self.folder.iterdir())]
            facts = {"id": "owner/tiny", "sha": _COMMIT, "siblings": files, "private": False}
            return json.dumps(facts).encode(), "application/json"
        if path == f"/api/models/owner/tiny/tree/{_COMMIT}":
            tree = [
                {
                    "type": "file",
                    "path": file.name,
                    "size": file.stat().st_size,
                    "oid": hashlib.sha1(file.read_bytes()).hexdigest(),
                }
                for file in sorted(self.folder.iterdir())
            ]
            return json.dumps(tree).encode(), "application/json"
        if path.startswith(f"/owner/tiny/resolve/{_COMMIT}/"):
            file = self.folder / path.rpartition("/")[2]
            if file.is_file():
                return file.read_bytes(), "application/octet-stream"
        return None

    def take(self, path: str, body: bytes) -> tuple[int, dict[str, object]]:
        """Take a request of somebody who pushes; give the status and the answer."""
        if self.refuses:
            return 403, {"error": "You don't have the rights to create a model under the namespace owner"}
        if path == "/api/repos/create":
            self.made = json.loads(body)
            return 200, {"url": f"{self.address}/owner/tiny"}
        if path == "/api/validate-yaml":  # that at the head of the card
            return 200, {"errors": [], "warnings": []}
        if path == "/api/models/owner/tiny/preupload/main":
            files = json.loads(body)["files"]
            return 200, {
                "files": [{**file, "uploadMode": "regular", "shouldIgnore": False} for file in files]
            }
        if path == "/api/models/owner/tiny/commit/main":
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.pushed[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            address = f"{self.address}/owner/tiny/commit/{_COMMIT}"
            return 200, {"commitUrl": address, "commitOid": _COMMIT, "success": True}
        return 404, {"error": path}


@contextlib.contextmanager
def hub_of(folder: Path) -> Iterator[ModelHub]:
    """Serve the hub while the block runs."""
    hub = ModelHub(folder)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = hub.find(self.path.partition("?")[0])
            body, kind = found or (b"{}", "application/json")
            self.send_response(200 if found else 404)
            self.send_header("X-Repo-Commit", _COMMIT)
            self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET

        def do_POST(self) -> None:
            sent = self.rfile.read(int(self.headers["Content-Length"]))
            hub.tokens.add(self.headers.get("Authorization", "").removeprefix("Bearer "))
            status, answer = hub.take(self.path.partition("?")[0], sent)
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Keep the test's output clean."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hub.address = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()
