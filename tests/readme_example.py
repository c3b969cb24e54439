"""Run the README's example of the program against the test server: ``python tests/readme_example.py``.

It needs the installed package and nothing of this checkout but the test server and the README.
"""

import re
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
sys.path.append(str(CHECKOUT))  # at the end: the package is the installed one


def main() -> None:
    """Replace the model of the example by the test server, and run it."""
    from tests.model_server import ModelServer

    readme = (CHECKOUT / "README.md").read_text(encoding="utf-8")
    examples = re.findall(r"^```python\n(.*?)^```", readme, flags=re.DOTALL | re.MULTILINE)
    (code,) = (example for example in examples if "language_model(" in example)
    with ModelServer() as server:
        here = code.replace(
            'language_model("openai/gpt-4.1-mini")', f'language_model("openai/test", api_base="{server.url}")'
        )
        assert here != code
        exec(compile(here, "README.md", "exec"), {})
    assert "torch" not in sys.modules


if __name__ == "__main__":
    main()
