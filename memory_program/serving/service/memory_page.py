"""The page at ``/``: memories in a browser, with the design of the report. It asks the REST door for all."""

from base64 import b64encode
from hashlib import sha256
from importlib.resources import files

from fastapi.responses import HTMLResponse, Response
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from memory_program import __version__


class MemoryPageDocument:
    """The page, which holds no memory itself; anything that it shows is set as text, never as HTML."""

    def __init__(self) -> None:
        """Read its parts, and allow its own style and script by their hashes, and no other."""
        folder = files("memory_program.evaluation.report") / "templates"
        style, elements, page = (
            Markup((folder / name).read_text(encoding="utf-8"))
            for name in ("report.css", "elements.js", "memories.js")
        )
        script = elements + page
        template = (folder / "memories.html.j2").read_text(encoding="utf-8")
        environment = Environment(autoescape=True, undefined=StrictUndefined)
        self._html = environment.from_string(template).render(version=__version__, style=style, script=script)
        self._policy = (
            f"default-src 'none'; connect-src 'self'; style-src {_hash_source(style)}; "
            f"script-src {_hash_source(script)}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )

    def response(self) -> Response:
        """Return the page."""
        headers = {"Content-Security-Policy": self._policy, "X-Content-Type-Options": "nosniff"}
        return HTMLResponse(self._html, headers={**headers, "Referrer-Policy": "no-referrer"})


def _hash_source(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
