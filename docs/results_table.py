"""Print the tables of docs/results.md from docs/results, which has two files per run of ``evaluate.py``.

python docs/results_table.py                 prints the tables
python docs/results_table.py RUN NAME        first takes the results of a run's folder, as NAME

NAME.json is the run's ``results.json``. NAME.csv has the F1 of each question and system; it is empty where a
reply failed, and 1 or 0 for a question without an answer.
"""

import csv
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from locomo.statistics import paired_comparison

_FOLDER = Path(__file__).parent / "results"
_ANSWERABLE = 505  # questions of the test split with an answer
_NAMES = ("model", "training", "system")
_TYPES = ("multi-hop", "temporal", "open-domain", "single-hop")
_FAULTS = {  # in results.json, and as the head of a column
    "never stored": "never stored",
    "stored but not retrieved": "not retrieved",
    "retrieved but misread": "misread",
    "abstained although shown": "abstained",
    "should have abstained": "no abstention",
}

Row = tuple[str, str, str, str, str]
"""The name of a result, the system in it, and the model, its training and the system in a table."""

ROWS: tuple[Row, ...] = (
    ("extractive", "extractive", "none", "", "extractive"),
    ("smollm2-135m-prompted", "no-memory", "SmolLM2", "prompted", "no-memory"),
    ("smollm2-135m-full-context", "full-context", "SmolLM2", "prompted", "full-context"),
    ("smollm2-135m-prompted", "rag", "SmolLM2", "prompted", "rag"),
    ("smollm2-135m-prompted", "observations", "SmolLM2", "prompted", "observations"),
    ("smollm2-135m-sft", "rag", "SmolLM2", "SFT", "rag"),
    ("smollm2-135m-sft", "observations", "SmolLM2", "SFT", "observations"),
    ("smollm2-135m-sft-notes", "memory", "SmolLM2", "SFT", "notes"),
    ("smollm2-135m-sft-notes1", "memory", "SmolLM2", "SFT, seed 1", "notes"),
    ("smollm2-135m-sft-answerable", "memory", "SmolLM2", "SFT, answerable", "notes"),
    ("smollm2-135m-grpo", "rag", "SmolLM2", "SFT + GRPO", "rag"),
    ("smollm2-135m-grpo", "observations", "SmolLM2", "SFT + GRPO", "observations"),
    ("smollm2-135m-grpo-answerable", "memory", "SmolLM2", "SFT + GRPO, answerable", "notes"),
    ("smollm2-135m-grpo-answerable1", "memory", "SmolLM2", "SFT + GRPO, answerable, seed 1", "notes"),
    ("smollm2-135m-grpo-answerable30", "memory", "SmolLM2", "SFT + GRPO, answerable, 2e-4", "notes"),
    ("smollm2-135m-check", "memory", "SmolLM2", "SFT + GRPO, answerable, 2e-4, check", "notes"),
    ("smollm2-135m-sft-memory", "optimized", "SmolLM2", "SFT", "memory"),
    ("smollm2-135m-sft-memory-sampled", "memory", "SmolLM2", "SFT", "memory, sampled"),
    (
        "smollm2-135m-grpo-memory-sampled",
        "memory",
        "SmolLM2",
        "SFT + GRPO, answerable, 18 steps",
        "memory, sampled",
    ),
    ("qwen2.5-coder-0.5b-prompted", "no-memory", "Qwen", "prompted", "no-memory"),
    ("qwen2.5-coder-0.5b-prompted", "rag", "Qwen", "prompted", "rag"),
    ("qwen2.5-coder-0.5b-prompted", "observations", "Qwen", "prompted", "observations"),
    ("qwen2.5-coder-0.5b-prompted-notes", "memory", "Qwen", "prompted", "notes + turns"),
    ("qwen2.5-coder-0.5b-sft", "memory", "Qwen", "SFT", "notes + turns"),
    ("qwen2.5-coder-0.5b-sft-answerable", "memory", "Qwen", "SFT, answerable", "notes + turns"),
    ("qwen2.5-coder-0.5b-sft-answerable-rag", "rag", "Qwen", "SFT, answerable", "rag"),
    ("qwen2.5-coder-0.5b-sft-memory", "memory", "Qwen", "SFT, answerable", "memory, sampled"),
    (
        "qwen2.5-coder-0.5b-sft-memory-turns",
        "memory",
        "Qwen",
        "SFT, answerable",
        "memory, sampled + turns",
    ),
    ("qwen2.5-coder-0.5b-check", "memory", "Qwen", "SFT, answerable, check", "notes + turns"),
    ("qwen2.5-coder-0.5b-sft-dates", "rag", "Qwen", "SFT, answerable, dates", "rag"),
    ("qwen2.5-coder-0.5b-dates-hybrid", "rag", "Qwen", "SFT, answerable, dates", "rag, hybrid"),
    ("qwen2.5-coder-0.5b-dates-notes", "memory", "Qwen", "SFT, answerable, dates", "notes + turns"),
    ("qwen2.5-coder-0.5b-dates-check", "rag", "Qwen", "SFT, answerable, dates, check", "rag"),
    ("qwen2.5-coder-0.5b-dates-memory", "memory", "Qwen", "SFT, answerable, dates", "memory, sampled"),
    (
        "qwen2.5-coder-0.5b-dates-memory-turns",
        "memory",
        "Qwen",
        "SFT, answerable, dates",
        "memory, sampled + turns",
    ),
    ("qwen2.5-coder-0.5b-grpo", "memory", "Qwen", "SFT + GRPO", "notes + turns"),
    ("qwen2.5-coder-0.5b-grpo-rag", "rag", "Qwen", "SFT + GRPO", "rag"),
)
"""The rows of LoCoMo's test split, in their order."""

HEADLINE_ROWS: tuple[tuple[str, str, str, str], ...] = (
    ("extractive", "extractive", "`extractive`, no language model", "turns"),
    ("qwen2.5-coder-0.5b-prompted", "rag", "Qwen2.5-Coder-0.5B, prompted", "turns"),
    ("qwen2.5-coder-0.5b-sft-dates", "rag", "the same, SFT with `--add-dates`", "turns"),
    ("qwen2.5-coder-0.5b-dates-check", "rag", "this with `--answerability-check`", "turns"),
    ("qwen2.5-coder-0.5b-dates-notes", "memory", "the same SFT, without the check", "notes, turns"),
    ("qwen2.5-coder-0.5b-grpo", "memory", "Qwen2.5-Coder-0.5B, SFT + GRPO without dates", "notes, turns"),
    ("smollm2-135m-grpo-answerable30", "memory", "SmolLM2-135M, SFT + GRPO on answerable questions", "notes"),
    (
        "qwen2.5-coder-0.5b-dates-memory",
        "memory",
        "Qwen2.5-Coder-0.5B, SFT of writer and reader",
        "own memories",
    ),
    (
        "qwen2.5-coder-0.5b-dates-memory-turns",
        "memory",
        "the same, with dates in the turns",
        "own memories, turns",
    ),
)
"""The rows at the top of the page and in the README: a result, its system, reader, and what is shown."""

TRANSFER_ROWS: tuple[Row, ...] = (
    ("longmemeval-smollm2-135m-prompted", "no-memory", "SmolLM2", "prompted", "no-memory"),
    ("longmemeval-smollm2-135m-prompted", "rag", "SmolLM2", "prompted", "rag"),
    ("longmemeval-smollm2-135m-sft", "no-memory", "SmolLM2", "SFT", "no-memory"),
    ("longmemeval-smollm2-135m-sft", "rag", "SmolLM2", "SFT", "rag"),
)
"""The rows of LongMemEval."""

DIFFERENCES: tuple[tuple[str, tuple[str, str], tuple[str, str]], ...] = (
    (
        "SmolLM2, prompted: no-memory to rag",
        ("smollm2-135m-prompted", "no-memory"),
        ("smollm2-135m-prompted", "rag"),
    ),
    (
        "SmolLM2 to Qwen, prompted, rag",
        ("smollm2-135m-prompted", "rag"),
        ("qwen2.5-coder-0.5b-prompted", "rag"),
    ),
    (
        "extractive to Qwen, prompted, rag",
        ("extractive", "extractive"),
        ("qwen2.5-coder-0.5b-prompted", "rag"),
    ),
    ("SmolLM2, rag: prompted to SFT", ("smollm2-135m-prompted", "rag"), ("smollm2-135m-sft", "rag")),
    (
        "SmolLM2, observations: prompted to SFT",
        ("smollm2-135m-prompted", "observations"),
        ("smollm2-135m-sft", "observations"),
    ),
    (
        "SmolLM2, observations: SFT to SFT + GRPO",
        ("smollm2-135m-sft", "observations"),
        ("smollm2-135m-grpo", "observations"),
    ),
    (
        "SmolLM2, notes: SFT to SFT + GRPO, answerable",
        ("smollm2-135m-sft-notes", "memory"),
        ("smollm2-135m-grpo-answerable", "memory"),
    ),
    (
        "the same, seed 1",
        ("smollm2-135m-sft-notes", "memory"),
        ("smollm2-135m-grpo-answerable1", "memory"),
    ),
    (
        "the same, 2e-4",
        ("smollm2-135m-sft-notes", "memory"),
        ("smollm2-135m-grpo-answerable30", "memory"),
    ),
    (
        "SmolLM2, notes: SFT + GRPO, answerable, 2e-4, to the check",
        ("smollm2-135m-grpo-answerable30", "memory"),
        ("smollm2-135m-check", "memory"),
    ),
    (
        "SmolLM2, notes: SFT to SFT, answerable",
        ("smollm2-135m-sft-notes", "memory"),
        ("smollm2-135m-sft-answerable", "memory"),
    ),
    (
        "SmolLM2, notes: SFT, answerable, to SFT + GRPO, answerable, 2e-4",
        ("smollm2-135m-sft-answerable", "memory"),
        ("smollm2-135m-grpo-answerable30", "memory"),
    ),
    (
        "extractive to SmolLM2, SFT + GRPO, answerable, 2e-4, notes",
        ("extractive", "extractive"),
        ("smollm2-135m-grpo-answerable30", "memory"),
    ),
    (
        "Qwen, notes + turns: prompted to SFT, answerable",
        ("qwen2.5-coder-0.5b-prompted-notes", "memory"),
        ("qwen2.5-coder-0.5b-sft-answerable", "memory"),
    ),
    (
        "Qwen, notes + turns: SFT to SFT, answerable",
        ("qwen2.5-coder-0.5b-sft", "memory"),
        ("qwen2.5-coder-0.5b-sft-answerable", "memory"),
    ),
    (
        "Qwen, SFT, answerable: rag to notes + turns",
        ("qwen2.5-coder-0.5b-sft-answerable-rag", "rag"),
        ("qwen2.5-coder-0.5b-sft-answerable", "memory"),
    ),
    (
        "Qwen, rag: prompted to SFT, answerable",
        ("qwen2.5-coder-0.5b-prompted", "rag"),
        ("qwen2.5-coder-0.5b-sft-answerable-rag", "rag"),
    ),
    (
        "Qwen, SFT, answerable: memory, sampled, to rag",
        ("qwen2.5-coder-0.5b-sft-memory", "memory"),
        ("qwen2.5-coder-0.5b-sft-answerable-rag", "rag"),
    ),
    (
        "Qwen, SFT, answerable: rag to memory, sampled + turns",
        ("qwen2.5-coder-0.5b-sft-answerable-rag", "rag"),
        ("qwen2.5-coder-0.5b-sft-memory-turns", "memory"),
    ),
    (
        "Qwen, SFT, answerable: memory, sampled + turns, to notes + turns",
        ("qwen2.5-coder-0.5b-sft-memory-turns", "memory"),
        ("qwen2.5-coder-0.5b-sft-answerable", "memory"),
    ),
    (
        "SmolLM2, SFT + GRPO, to Qwen, SFT: memory, sampled",
        ("smollm2-135m-grpo-memory-sampled", "memory"),
        ("qwen2.5-coder-0.5b-sft-memory", "memory"),
    ),
    (
        "Qwen, notes + turns: SFT, answerable, to SFT + GRPO",
        ("qwen2.5-coder-0.5b-sft-answerable", "memory"),
        ("qwen2.5-coder-0.5b-grpo", "memory"),
    ),
    (
        "extractive to Qwen, SFT, answerable, notes + turns",
        ("extractive", "extractive"),
        ("qwen2.5-coder-0.5b-sft-answerable", "memory"),
    ),
    (
        "Qwen, notes + turns: SFT, answerable, to the check",
        ("qwen2.5-coder-0.5b-sft-answerable", "memory"),
        ("qwen2.5-coder-0.5b-check", "memory"),
    ),
    (
        "extractive to Qwen, SFT, answerable, check, notes + turns",
        ("extractive", "extractive"),
        ("qwen2.5-coder-0.5b-check", "memory"),
    ),
    (
        "Qwen, rag: SFT, answerable, to SFT, answerable, dates",
        ("qwen2.5-coder-0.5b-sft-answerable-rag", "rag"),
        ("qwen2.5-coder-0.5b-sft-dates", "rag"),
    ),
    (
        "Qwen, SFT, answerable: notes + turns to rag with dates",
        ("qwen2.5-coder-0.5b-sft-answerable", "memory"),
        ("qwen2.5-coder-0.5b-sft-dates", "rag"),
    ),
    (
        "extractive to Qwen, SFT, answerable, dates, rag",
        ("extractive", "extractive"),
        ("qwen2.5-coder-0.5b-sft-dates", "rag"),
    ),
    (
        "Qwen, SFT, answerable, dates: rag to rag, hybrid",
        ("qwen2.5-coder-0.5b-sft-dates", "rag"),
        ("qwen2.5-coder-0.5b-dates-hybrid", "rag"),
    ),
    (
        "Qwen, SFT, answerable, dates: rag to the check",
        ("qwen2.5-coder-0.5b-sft-dates", "rag"),
        ("qwen2.5-coder-0.5b-dates-check", "rag"),
    ),
    (
        "Qwen, SFT, answerable, dates: rag to notes + turns",
        ("qwen2.5-coder-0.5b-sft-dates", "rag"),
        ("qwen2.5-coder-0.5b-dates-notes", "memory"),
    ),
    (
        "Qwen, SFT, answerable: notes + turns, to dates",
        ("qwen2.5-coder-0.5b-sft-answerable", "memory"),
        ("qwen2.5-coder-0.5b-dates-notes", "memory"),
    ),
    (
        "Qwen, notes + turns: SFT + GRPO to dates",
        ("qwen2.5-coder-0.5b-grpo", "memory"),
        ("qwen2.5-coder-0.5b-dates-notes", "memory"),
    ),
    (
        "extractive to Qwen, dates, notes + turns",
        ("extractive", "extractive"),
        ("qwen2.5-coder-0.5b-dates-notes", "memory"),
    ),
    (
        "Qwen, SFT, answerable: memory, sampled, to dates",
        ("qwen2.5-coder-0.5b-sft-memory", "memory"),
        ("qwen2.5-coder-0.5b-dates-memory", "memory"),
    ),
    (
        "Qwen, SFT, answerable: memory, sampled + turns, to dates",
        ("qwen2.5-coder-0.5b-sft-memory-turns", "memory"),
        ("qwen2.5-coder-0.5b-dates-memory-turns", "memory"),
    ),
    (
        "extractive to Qwen, dates, memory, sampled + turns",
        ("extractive", "extractive"),
        ("qwen2.5-coder-0.5b-dates-memory-turns", "memory"),
    ),
    (
        "Qwen, SFT, answerable, dates: rag to memory, sampled + turns",
        ("qwen2.5-coder-0.5b-sft-dates", "rag"),
        ("qwen2.5-coder-0.5b-dates-memory-turns", "memory"),
    ),
    (
        "Qwen, notes + turns: SFT to SFT + GRPO",
        ("qwen2.5-coder-0.5b-sft", "memory"),
        ("qwen2.5-coder-0.5b-grpo", "memory"),
    ),
    (
        "Qwen, rag: prompted to SFT + GRPO",
        ("qwen2.5-coder-0.5b-prompted", "rag"),
        ("qwen2.5-coder-0.5b-grpo-rag", "rag"),
    ),
    (
        "Qwen, SFT + GRPO: rag to notes + turns",
        ("qwen2.5-coder-0.5b-grpo-rag", "rag"),
        ("qwen2.5-coder-0.5b-grpo", "memory"),
    ),
    (
        "extractive to Qwen, SFT + GRPO, notes + turns",
        ("extractive", "extractive"),
        ("qwen2.5-coder-0.5b-grpo", "memory"),
    ),
    ("extractive to SmolLM2, SFT, notes", ("extractive", "extractive"), ("smollm2-135m-sft-notes", "memory")),
    (
        "SmolLM2, SFT: notes to memory",
        ("smollm2-135m-sft-notes", "memory"),
        ("smollm2-135m-sft-memory", "optimized"),
    ),
    (
        "SmolLM2, SFT: memory to memory, sampled",
        ("smollm2-135m-sft-memory", "optimized"),
        ("smollm2-135m-sft-memory-sampled", "memory"),
    ),
    (
        "SmolLM2, memory, sampled: SFT to SFT + GRPO, answerable",
        ("smollm2-135m-sft-memory-sampled", "memory"),
        ("smollm2-135m-grpo-memory-sampled", "memory"),
    ),
)
"""The differences between rows: what changes, and the result and system before and after."""


def main() -> None:
    """Take the results of a run, if one is named, and print all tables."""
    if len(sys.argv) == 3:
        take_results(Path(sys.argv[1]), sys.argv[2])
    scores = (headline_table, scores_table, categories_table, cost_table)
    others = (differences_table, errors_table, memories_table, transfer_table, libraries_table)
    for table in (*scores, *others):
        print(f"{table()}\n")


def take_results(run: Path, name: str) -> None:
    """Copy the results of a run, and the F1 of each question."""
    shutil.copy(run / "results.json", _FOLDER / f"{name}.json")
    scores: dict[str, dict[str, str]] = {}
    systems = list(json.loads((run / "results.json").read_text(encoding="utf-8"))["systems"])
    for system in systems:
        for line in (run / system / "questions.jsonl").read_text(encoding="utf-8").splitlines():
            question = json.loads(line)
            row = scores.setdefault(question["question_id"], {"category": question["category"]})
            f1 = question["locomo_f1"]
            row[system] = "" if f1 is None else f"{f1:.6g}"
    with (_FOLDER / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, ["question_id", "category", *systems], lineterminator="\n")
        writer.writeheader()
        writer.writerows({"question_id": question_id, **row} for question_id, row in scores.items())


def headline_table() -> str:
    """Make the table of the main rows: F1, abstention, and the mean over all questions."""
    lines = [["reader", "is shown", "F1 (95 %)", "abstention", "all questions"]]
    for file, system, reader, shown in HEADLINE_ROWS:
        found = _system_results(file, system)
        others = [f"{found[key]['value']:.3f}" for key in ("abstention", "overall_with_abstention")]
        lines.append([reader, shown, _interval(found["locomo_f1"]["all"]), *others])
    return _join_cells(lines)


def scores_table() -> str:
    """Make the table of scores: official F1 with its interval, abstention, the mean of both, and recall."""
    lines = [[*_NAMES, "F1 (95 %)", "abstention", "all questions", "recall@10"]]
    for system, *names in _systems():
        recall = (system["recall"] or {}).get("10")
        found = "" if recall is None else f"{recall:.3f}"
        others = [f"{system[key]['value']:.3f}" for key in ("abstention", "overall_with_abstention")]
        lines.append([*names, _interval(system["locomo_f1"]["all"]), *others, found])
    return _join_cells(lines)


def categories_table() -> str:
    """Make the table of official F1 by category."""
    lines = [[*_NAMES, *_TYPES]]
    for system, *names in _systems():
        lines.append([*names, *(f"{system['locomo_f1'][kind]['value']:.3f}" for kind in _TYPES)])
    return _join_cells(lines)


def cost_table() -> str:
    """Make the table of cost: tokens, calls, seconds and failures."""
    lines = [[*_NAMES, "prompt tokens", "calls", "failed", "F1, failed as 0", "seconds"]]
    for system, *names in _systems():
        seconds = system["latency"]["seconds"]["question"]["p50"]
        f1 = system["locomo_f1"]["all"]
        strict = f"{f1['value'] * f1['n'] / _ANSWERABLE:.3f}"
        tokens = f"{system['tokens_per_question']:,.0f}"
        counts = [system["usage"][stage]["calls"] for stage in ("build", "answer")]
        calls = " + ".join(f"{count}" for count in counts if count) or "0"
        failed = f"{system['failures']['all']:,}"
        lines.append([*names, tokens, calls, failed, strict, f"{seconds:.2f}"])
    return _join_cells(lines)


def errors_table() -> str:
    """Make the table of errors: the wrong answers of each row, by their cause."""
    lines = [[*_NAMES, "wrong", *_FAULTS.values()]]
    for system, *names in _systems():
        found = system["diagnosis"]["all"]
        if names[-1] in ("no-memory", "full-context"):  # these retrieve nothing
            continue
        faults = [f"{found['faults'][fault]}" for fault in _FAULTS]
        lines.append([*names, f"{found['wrong']} of {found['answers']}", *faults])
    return _join_cells(lines)


def memories_table() -> str:
    """Make the table of what the model's own memories are, compared with LoCoMo's own notes."""
    found_in = ["memories", "tokens", "repaired", "matched", "duplicates", "precision", "recall"]
    lines, shown = [["writer", *_NAMES[1:], *found_in]], list[dict[str, Any]]()
    for system, *names in _systems():
        is_writer = "GRPO" not in names[1]  # GRPO trained readers, which share the memories of another row
        if names[-1].startswith("notes") or not is_writer or not (found := system["stored_facts"]):
            continue
        facts, tokens = found["all"], system["growth"][-1]["tokens"]
        if found in shown:  # the memories of an earlier row, read in another way
            continue
        shown.append(found)
        repaired = system["memory"]["repaired"]
        counts = [facts["memories"], tokens, repaired, facts["correct"], facts["duplicate"]]
        names[1] = names[1].partition(",")[0]  # what follows is of the reader
        lines.append(
            [
                *names,
                *(f"{count:,.0f}" for count in counts),
                f"{facts['precision']['value']:.3f}",
                f"{facts['recall']['value']:.3f}",
            ]
        )
    return _join_cells(lines)


def differences_table() -> str:
    """Make the table of paired differences in F1 over the questions with an answer; failures count as 0."""
    lines = [["change", "F1 before", "after", "difference (95 %)"]]
    for change, before, after in DIFFERENCES:
        old, new = _question_scores(*before), _question_scores(*after)
        ids = sorted(old.keys() & new.keys())
        paired = paired_comparison(
            [new[i] for i in ids],
            [old[i] for i in ids],
            [i.partition(":")[0] for i in ids],
            rng=np.random.default_rng(0),
        )
        means = [f"{sum(scores[i] for i in ids) / len(ids):.3f}" for scores in (old, new)]
        lines.append([change, *means, f"{paired.difference:+.3f} ({paired.low:+.3f}..{paired.high:+.3f})"])
    return _join_cells(lines)


def transfer_table() -> str:
    """Make the table of LongMemEval: F1 over all questions that have an answer of the system."""
    lines = [[*_NAMES, "F1 (95 %)", "n", "failed", "tokens"]]
    for system, *names in _systems(TRANSFER_ROWS):
        f1 = system["locomo_f1"]["all"]
        failed, tokens = f"{system['failures']['all']}", f"{system['tokens_per_question']:,.0f}"
        lines.append([*names, _interval(f1), f"{f1['n']}", failed, tokens])
    return _join_cells(lines)


def libraries_table() -> str:
    """Make the table of memory libraries with one model: scores, and the traffic that a proxy counted."""
    lines = [
        ["system", "F1 (95 %)", "abstention", "operations", "calls", "tokens in", "out", "failed", "seconds"]
    ]
    traffic = json.loads((_FOLDER / "libraries-traffic.json").read_text(encoding="utf-8"))
    for name, counted in traffic.items():
        system = _system_results("libraries-memory" if name == "memory" else "libraries", name)
        counts = [
            sum(stage[key] for stage in counted.values())
            for key in ("calls", "input_tokens", "output_tokens", "failed")
        ]
        lines.append(
            [
                {"memory": "`memory`", "langmem": "LangMem", "mem0": "mem0"}[name],
                _interval(system["locomo_f1"]["all"]),
                f"{system['abstention']['value']:.3f}",
                *(f"{count:,}" for count in (system["memory"]["operations"], *counts)),
                f"{system['seconds']:,.0f}",
            ]
        )
    return _join_cells(lines)


def _systems(rows: Sequence[Row] = ROWS) -> list[tuple[dict[str, Any], str, str, str]]:
    return [
        (_system_results(file, system), model, training, name) for file, system, model, training, name in rows
    ]


def _system_results(name: str, system: str) -> dict[str, Any]:
    """Read the scores of a system, by the name of a result."""
    results = json.loads((_FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return results["systems"][system]


def _question_scores(name: str, system: str) -> dict[str, float]:
    """Read the F1 of each question that has an answer; 0 where the reply failed."""
    with (_FOLDER / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["category"] != "adversarial"]
    return {row["question_id"]: float(row[system] or 0) for row in rows}


def _interval(score: dict[str, float]) -> str:
    return f"{score['value']:.3f} ({score['low']:.2f}..{score['high']:.2f})"


def _join_cells(lines: Sequence[Sequence[str]]) -> str:
    lines = [lines[0], ["---"] * len(lines[0]), *lines[1:]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


if __name__ == "__main__":
    main()
