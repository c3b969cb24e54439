"""Rows in MemoryAgentBench's schema, made up here."""

import json
from pathlib import Path
from typing import Any

MOVIES = {
    "<http://dbpedia.org/resource/The_Matrix>": 1,
    "<http://dbpedia.org/resource/Heat_(1995_film)>": 2,
    "<http://dbpedia.org/resource/Up_(film)>": 3,
}


def make_row(
    source: str,
    question: str,
    answers: list[str],
    context: str = "0. Ann lives in Rome.\n1. Ann lives in Oslo.",
    **metadata: object,
) -> dict[str, Any]:
    """Make a row of one question."""
    return {
        "context": context,
        "questions": [question],
        "answers": [answers],
        "metadata": {"demo": None, "source": source, **metadata},
    }


ROWS = [
    make_row("factconsolidation_sh_6k", "Where does Ann live?", ["Oslo"]),
    make_row(
        "icl_trec_coarse_6600shot_balance",
        "How far is it?",
        ["4"],
        "Who is it?\nlabel: 3\n\nHow many?\nlabel: 4",
    ),
    make_row("recsys_redial_full", "User: I like long shoot-outs.", ["2", "1"]),
    make_row(
        "infbench_sum_eng_shots2", "", ["Ann moves. She is glad."], keypoints=["Ann moves", "She is glad"]
    ),
    make_row(
        "longmemeval_s*",
        "Where is Ann?",
        ["In Oslo"],
        str(["Chat Time: 2023/05/30 (Tue) 23:32", [{"role": "user", "content": "Ann is in Oslo."}]]),
        question_types=["single-session-user"],
        question_ids=["q1"],
        question_dates=["2023/06/01 (Thu) 10:00"],
    ),
]


def write_memoryagentbench(folder: Path, *rows: dict[str, Any]) -> Path:
    """Write rows and the file of movies, and return the file of rows."""
    (folder / "entity2id.json").write_text(json.dumps(MOVIES))
    path = folder / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows or ROWS))
    return path
