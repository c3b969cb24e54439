"""The project is written in the plain English that practitioners of the field use (AGENTS.md, "English")."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

from tests.conftest import CHECKOUT

BANNED = (
    "as many as you like",
    "dearer",
    "gone through",
    "has it that",
    "in vain",
    "is no day",
    "makes likelier",
    "of before",
    "of now",
    "of old",
    "of one's own",
    "of then",
    "so many",
    "taken up",
    "told of",
    "what became of",
    "who did what",
)
"""Phrases of the project's former dialect."""

DATA = (
    "memory_program/agents/signatures.py",  # prompts
    "memory_program/worlds/",  # what speakers say
    "locomo/judge/",  # rubrics, and answers to judge
    "tests/unit/test_language.py",
    "tests/golden/",
    "LOG.md",  # history
)
"""Files that hold prompts, conversations or history: data, which this test does not read."""

FIRST_WORDS = re.compile(r"(What|Who|Whom|Whose|Which|Whether|How)\b")


def _tracked(*patterns: str) -> list[Path]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns]
    listed = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout
    return [CHECKOUT / name for name in listed.splitlines() if (CHECKOUT / name).exists()]


def _name(path: Path) -> str:
    return path.relative_to(CHECKOUT).as_posix()


PYTHON = [path for path in _tracked("*.py") if not _name(path).startswith(DATA)]
TEXTS = [*PYTHON, *(path for path in _tracked("*.md", "*.j2", "*.js") if not _name(path).startswith(DATA))]
PACKAGES = [
    path for path in _tracked("*.py") if _name(path).startswith(("locomo/", "memory_program/", "recipes/"))
]
DOCUMENTED = [*PACKAGES, *_tracked("benchmarks/*.py", "examples/*.py")]


def test_no_file_has_a_banned_phrase():
    pattern = re.compile(r"\b(" + "|".join(map(re.escape, BANNED)) + r")\b", re.IGNORECASE)
    found = [
        f"{_name(path)}:{number}: {match.group(0)}"
        for path in TEXTS
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        for match in pattern.finditer(line)
    ]
    assert not found, "\n".join(found)


def test_no_docstring_begins_with_a_question_word():
    found = []
    for path in DOCUMENTED:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                first = (ast.get_docstring(node) or "").partition("\n")[0]
                if FIRST_WORDS.match(first) and _name(path) not in DATA:
                    found.append(f"{_name(path)}:{getattr(node, 'lineno', 1)}: {first}")
    assert not found, "\n".join(found)


def test_no_public_function_is_named_with_of_at_its_end():
    found = [
        f"{_name(path)}:{node.lineno}: {node.name}"
        for path in DOCUMENTED
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.endswith("_of")
        and not node.name.startswith("_")
    ]
    assert not found, "\n".join(found)


def test_no_public_class_or_function_has_the_name_of_another():
    places: dict[str, list[str]] = {}
    for path in (path for path in PACKAGES if "/tests/" not in _name(path)):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                name = node.name
            elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).startswith("Json"):
                name = ast.unparse(node.targets[0])  # a type of JSON
            else:
                continue
            if not name.startswith("_"):
                places.setdefault(name, []).append(_name(path))
    twice = {name: where for name, where in places.items() if len(where) > 1 and name != "main"}
    assert not twice


def test_no_two_modules_have_one_name():
    names: dict[str, list[str]] = {}
    for path in PACKAGES:
        if path.stem not in ("__init__", "__main__"):
            names.setdefault(path.stem, []).append(_name(path))
    assert not {name: where for name, where in names.items() if len(where) > 1}


@pytest.mark.parametrize(
    "name", ["README.md", "CHANGELOG.md", *(f"docs/{p.name}" for p in _tracked("docs/*.md"))]
)
def test_pages_are_not_wider_than_110_columns(name):
    wide = [
        number
        for number, line in enumerate((CHECKOUT / name).read_text(encoding="utf-8").splitlines(), start=1)
        if len(line) > 110
    ]
    assert not wide, f"{name}: lines {wide}"


def test_the_readme_has_at_most_250_lines():
    assert len((CHECKOUT / "README.md").read_text(encoding="utf-8").splitlines()) <= 250
