"""Compare two checkouts: scores, every answer, 600 F1 scores, and one step of GRPO.

Shows that a refactoring changed no behaviour. The extractive baseline answers all of LoCoMo, pocket answers
the made-up sample, the official F1 scores 600 pairs of answers, and ``train.py --dry-run`` prints the rewards
and advantages of one step. Needs no network; about ten minutes on two cores.

    python benchmarks/same_results.py --before OLD --before-python OLD/.venv/bin/python --locomo locomo10.json
"""

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

HERE = Path(__file__).resolve().parents[1]
ANSWER_FIELDS = ("question_id", "answer", "outcome", "locomo_f1", "recall")
_ROLLOUT = re.compile(r"rollout \d+: reward \S+, weight \S+, advantage \S+: .*")
_F1 = """
import json, sys
from locomo.metrics import locomo_f1
qa = [q for c in json.load(open(sys.argv[1])) for q in c["qa"] if "answer" in q][:601]
pairs = [(f'{a["answer"]}, {b["answer"]} {b["question"]}', b["answer"], b["category"])
    for a, b in zip(qa, qa[1:])]
print(json.dumps([locomo_f1(*pair) for pair in pairs]))
"""
"""Scores answers made of two golds and a question: partly right, in every category that has an answer."""


class Checkout:
    """One version of the program, run by its own interpreter."""

    def __init__(self, folder: Path, python: str, output: Path) -> None:
        """Remember where it is."""
        self.folder, self.output = folder.resolve(), output
        self.python = os.path.abspath(python)  # resolved, the link of an environment would leave it

    def run(self, *arguments: str) -> str:
        """Run Python in the checkout and return its standard output."""
        done = subprocess.run(
            [self.python, *arguments], cwd=self.folder, capture_output=True, text=True, check=False
        )
        if done.returncode:
            sys.exit(f"{self.folder}: {' '.join(arguments)} failed:\n{done.stderr[-2000:]}")
        return done.stdout

    def evaluate(self, name: str, *flags: str) -> dict[str, Any]:
        """Evaluate and return scores and answers by system."""
        folder = self.output / name
        self.run("evaluate.py", "--output-dir", str(folder), "--no-mlflow", *flags)
        systems = json.loads((folder / "results.json").read_text(encoding="utf-8"))["systems"]
        found: dict[str, Any] = {}
        for system in sorted(path.parent.name for path in folder.glob("*/questions.jsonl")):
            lines = (folder / system / "questions.jsonl").read_text(encoding="utf-8").splitlines()
            questions = [json.loads(line) for line in lines]
            found[system] = {
                "F1": systems[system]["locomo_f1"]["all"]["value"],
                "recall": {k: v for k, v in (systems[system]["recall"] or {}).items() if k in ("10", "50")},
                "answers": [{field: question[field] for field in ANSWER_FIELDS} for question in questions],
            }
        return found

    def measure(self, locomo: Path) -> dict[str, Any]:
        """Make everything that is compared."""
        results: dict[str, Any] = {}
        extractive = self.evaluate(
            "extractive", "--dataset", "locomo", "--data", str(locomo), "--systems", "extractive"
        )
        for system, result in {**extractive, **self.evaluate("default")}.items():
            results |= {f"{system}: {part}": value for part, value in result.items()}
        results["locomo_f1"] = json.loads(self.run("-c", _F1, str(locomo)))
        dry_run = self.run("train.py", "--dry-run", "--output-dir", str(self.output / "train"))
        results["train.py --dry-run: rewards and advantages"] = _ROLLOUT.findall(dry_run)
        return results


def main() -> int:
    """Measure both checkouts and print each result side by side."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--before", type=Path, required=True, help="checkout of the older version")
    parser.add_argument("--before-python", required=True, help="interpreter that has the older dependencies")
    parser.add_argument("--locomo", type=Path, required=True, help="locomo10.json")
    arguments = parser.parse_args()
    locomo = arguments.locomo.resolve()
    with TemporaryDirectory() as scratch:
        old = Checkout(arguments.before, arguments.before_python, Path(scratch) / "before").measure(locomo)
        new = Checkout(HERE, sys.executable, Path(scratch) / "after").measure(locomo)
    differ = 0
    print(f"{'':44} {'before':>22} {'after':>22}")
    for name in {**old, **new}:
        before, after = old.get(name), new.get(name)
        differ += before != after
        verdict = "equal" if before == after else "DIFFERS"
        print(f"{name:44} {_shown(before):>22} {_shown(after):>22}  {verdict}")
    return 1 if differ else 0


def _shown(value: object) -> str:
    if isinstance(value, list):
        return f"{len(value)} values"
    if isinstance(value, dict):
        return " / ".join("-" if v is None else f"{v:.3f}" for v in value.values()) or "none"
    return str(value)


if __name__ == "__main__":
    sys.exit(main())
