"""A base installation is small, complete, and names the extra that a feature needs."""

import ast
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest

from tests.conftest import CHECKOUT
from tests.model_server import ModelServer

PYPROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
EXTRAS = {
    "accelerate",
    "datasets",
    "fastapi",
    "gguf",
    "huggingface_hub",
    "llguidance",
    "matplotlib",
    "mcp",
    "peft",
    "prometheus_client",
    "pyarrow",
    "ray",
    "safetensors",
    "torch",
}
EXTRAS |= {"sentence_transformers", "starlette", "transformers", "trl", "uvicorn"}
BLOCK = (
    "import sys\n"
    "class Blocked:\n"
    "    def find_spec(self, name, path=None, target=None):\n"
    "        if name.partition('.')[0] in BLOCKED:\n"
    "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
    "BLOCKED = {'fastapi', 'peft', 'pyarrow', 'ray', 'safetensors', 'torch', 'transformers', 'uvicorn'}\n"
    "sys.meta_path.insert(0, Blocked())\n"
    "sys.modules['matplotlib'] = None\n"
)

USE_OF_THE_BASE = """
from datetime import UTC, datetime
from memory_program import MemoryProgram, MemorySpace, Session, Turn, language_model
from memory_program.cli import main

program = MemoryProgram()
program.set_lm(language_model("openai/gpt-4.1-mini", api_base=URL))
space = MemorySpace("ana")
turn = Turn("D1:1", "Ana", "I moved to Lisbon in May.")
program.remember(space, Session(1, datetime(2024, 6, 1, tzinfo=UTC), (turn,)))
assert len(space.bank), "nothing was remembered"
assert program.ask(space, "Where does Ana live?").text
flags = ["--model", "openai/gpt-4.1-mini", "--api-base", URL, "--num-test", "1", "--no-mlflow"]
sys.exit(main(["evaluate", *flags, "--systems", "memory,extractive"]))
"""


def names(requirements: list[str]) -> set[str]:
    found = (re.match(r"[A-Za-z0-9._-]+", requirement) for requirement in requirements)
    return {re.sub(r"[-_.]+", "-", match[0]).lower() for match in found if match}


def imported_modules() -> dict[str, str]:
    """Every library that the package imports, with a file that does."""
    found: dict[str, str] = {}
    for path in (*CHECKOUT.glob("memory_program/**/*.py"), *CHECKOUT.glob("locomo/**/*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                modules = [node.module]
            found |= {module.partition(".")[0]: path.name for module in modules}
    return {name: path for name, path in found.items() if name not in sys.stdlib_module_names}


def test_uv_resolves_the_package_without_the_older_libraries_of_arbors_server():
    pinned = {line for line in PYPROJECT["dependency-groups"]["arbor-server"] if line.startswith("torch==")}
    assert pinned.isdisjoint(line for extra in PROJECT["optional-dependencies"].values() for line in extra)
    kept_apart = [{"group": "arbor-server"}, {"package": PROJECT["name"]}]
    assert kept_apart in PYPROJECT["tool"]["uv"]["conflicts"]


def run_base(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", f"{BLOCK}sys.path.insert(0, {str(CHECKOUT)!r})\n{code}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=250, cwd=folder)


def test_the_base_has_few_dependencies_and_no_heavy_one():
    base = names(PROJECT["dependencies"])
    assert len(base) <= 18
    assert not base & {"torch", "transformers", "fastapi", "matplotlib", "peft"}


def test_every_module_and_package_is_in_the_layers_of_imports():
    (contract,) = (one for one in PYPROJECT["tool"]["importlinter"]["contracts"] if one["type"] == "layers")
    layers = {name for layer in contract["layers"] for name in layer.split(" | ")}
    folder = CHECKOUT / "memory_program"
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    packages = {path.parent.name for path in folder.glob("*/__init__.py")}
    assert layers == {"locomo", *(f"memory_program.{name}" for name in modules | packages)}


def test_every_import_comes_from_a_dependency_or_from_what_a_dependency_needs():
    base = names(PROJECT["dependencies"])
    brought = base | {name for one in base for name in names(requires(one) or [])}
    extras = {
        name for requirements in PROJECT["optional-dependencies"].values() for name in names(requirements)
    }
    distributions = packages_distributions()
    for module, path in imported_modules().items():
        if module in ("arbor", "locomo", "memory_program"):  # arbor: in the server's own environment
            continue
        owners = names(distributions[module])
        assert owners & (brought | extras), f"{module} of {path} is not declared"
        if module not in EXTRAS:
            assert owners & brought, f"{module} of {path} is in an extra, and not listed here"


@pytest.mark.parametrize(
    ("code", "extra", "library"),
    [
        ("from memory_program import language_model; language_model('pocket')", "local", "torch"),
        ("from memory_program import train", "train", ""),
        ("from memory_program.cli import main; sys.exit(main(['evaluate']))", "local", "torch"),
        ("from memory_program.cli import main; sys.exit(main(['train', '--mode', 'sft']))", "train", ""),
        ("from memory_program.cli import main; sys.exit(main(['reward-server']))", "serve", "uvicorn"),
        (
            "from memory_program.cli import main; sys.exit(main(['serve', '--model', 'x']))",
            "serve",
            "uvicorn",
        ),
    ],
)
def test_a_missing_extra_is_named_in_one_line(code, extra, library, tmp_path):
    done = run_base(code, tmp_path)
    assert done.returncode in (1, 2)
    expected = f'this needs the extra "{extra}" ({library}'
    (line,) = [line for line in done.stderr.splitlines() if expected in line]
    assert line.endswith(f"pip install 'memory-program[{extra}]'")


def test_a_base_installation_remembers_and_answers_through_an_api(tmp_path):
    with ModelServer() as server:
        done = run_base(f"URL = {server.url!r}\n{USE_OF_THE_BASE}", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "plots are left out" in done.stdout
