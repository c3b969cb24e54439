"""A model hub on loopback: as much of the Hugging Face protocol as fetching one model takes."""

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
