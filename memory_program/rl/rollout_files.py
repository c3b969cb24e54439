"""The rollouts that a training keeps in its folder, and ``memory-program rollouts``, which shows them.

A step has a file of its own, ``rollouts/step-000001.jsonl.gz``: a step that is repeated after a kill writes
the same file again, so no line is there twice and none is missing.
"""

import gzip
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich import box
from rich.console import Console
from rich.table import Table

from locomo.atomic_files import atomic_write_bytes
from memory_program.core.command_line import run_script
from memory_program.core.errors import ConfigError, RecordError
from memory_program.core.json_files import Json

_FOLDER = "rollouts"
_SHOWN_CHARS = 160
_OPTIONAL = tyro.conf.arg(help_behavior_hint="")  # without it, all rollouts are shown


def write_rollouts(folder: Path, step: int, lines: Iterable[Json]) -> None:
    """Write the lines of a step (see ``rollout_lines``) into the folder of a training, all or nothing."""
    path = _path(folder, step)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    atomic_write_bytes(path, gzip.compress(text.encode(), mtime=0))


def drop_rollouts_after(folder: Path, step: int) -> None:
    """Delete the files of steps that a training which resumes after ``step`` takes again."""
    for path in (folder / _FOLDER).glob("step-*.jsonl.gz"):
        if path > _path(folder, step):
            path.unlink()


def read_rollouts(folder: Path, step: int | None = None) -> list[Json]:
    """Read the lines of a step, or of all steps in order; an empty list if there are none.

    Raises:
        RecordError: a file is damaged.
    """
    pattern = "step-*.jsonl.gz" if step is None else _path(folder, step).name
    lines: list[Json] = []
    for path in sorted((folder / _FOLDER).glob(pattern)):
        try:
            lines += [json.loads(line) for line in gzip.decompress(path.read_bytes()).decode().splitlines()]
        except (OSError, EOFError, ValueError) as error:
            raise RecordError(
                f"{str(path)!r} cannot be read ({error}): delete it; the others stay"
            ) from error
    return lines


def sample_columns(folder: Path, step: int, rows: int) -> dict[str, list[object]]:
    """Return rollouts of a step as columns, spread from the best reward to the worst; empty without any."""
    ranked = sort_rollouts(read_rollouts(folder, step), "reward")
    places = sorted({number * (len(ranked) - 1) // max(1, rows - 1) for number in range(rows)})
    chosen = [ranked[place] for place in places if ranked]
    flat = [
        {name: json.dumps(v) if isinstance(v, list | dict) else v for name, v in line.items()}
        for line in chosen
    ]
    return {name: [line[name] for line in flat] for name in (flat[0] if flat else ())}


def sort_rollouts(lines: Sequence[Json], by: str, *, lowest_first: bool = False) -> list[Json]:
    """Sort rollouts by a number, highest first by default; those without it come last."""
    known = [line for line in lines if line[by] is not None]
    ranked = sorted(known, key=lambda line: line[by], reverse=True)
    return (ranked[::-1] if lowest_first else ranked) + [line for line in lines if line[by] is None]


def main(arguments: Sequence[str] | None = None, prog: str = "memory-program rollouts") -> int:
    """Show the rollouts that the arguments select, and return the exit status."""
    return run_script(lambda: tyro.cli(_command, args=arguments, prog=prog))


def _command(
    run: tyro.conf.Positional[Path],
    agent: Annotated[str | None, _OPTIONAL] = None,
    step: Annotated[int | None, _OPTIONAL] = None,
    sort: Literal["reward", "advantage", "step"] = "reward",
    reverse: bool = False,
    limit: int = 20,
    full: bool = False,
) -> None:
    """Show what a training sampled: the replies of its agents, their rewards, and the answers they led to.

    A row is the work of one agent in one rollout. Its reward is missing if a call was lost. The advantage is
    relative to the other rollouts of the same prompt. It is missing if all of these have equal rewards: then
    they teach nothing.

    Args:
        run: Folder of the training, for example runs/train.
        agent: Show only this agent: core, episodic, semantic, procedural, generalist or reader.
        step: Show only this step.
        sort: Order of the rows, highest first; step shows the latest first.
        reverse: Lowest first: the worst rollouts, or the first steps.
        limit: Maximum number of rows.
        full: Show everything of each rollout: whole replies, tool calls, parts of the reward, all answers.
    """
    if limit < 1:
        raise ConfigError(f"--limit {limit} must be at least 1")
    folders = (run, *sorted(run.glob("*-training")))  # of a second part, where both agents are trained
    lines = [line for folder in folders for line in read_rollouts(folder)]
    if not lines:
        raise RecordError(
            f"no rollouts are in {str(run)!r}: name the --output-dir of a train.py that has taken a step"
        )
    for name, value in (("agent", agent), ("step", step)):
        known = sorted({line[name] for line in lines})
        if value is not None and value not in known:
            choices = f"{known[0]} to {known[-1]}" if name == "step" else ", ".join(known)
            raise RecordError(f"--{name} {value}: there is none in {str(run)!r}, choose from {choices}")
        lines = [line for line in lines if value is None or line[name] == value]
    shown = sort_rollouts(lines, sort, lowest_first=reverse)[:limit]
    console = Console()
    if full:
        for line in shown:
            console.print_json(json.dumps(line))
        return
    table = Table(box=box.SIMPLE_HEAD, title=f"{len(shown)} of {len(lines)} rollouts in {run}")
    for heading in ("step", "prompt", "agent", "no.", "reward", "advantage"):
        table.add_column(heading, no_wrap=True)
    for heading in ("reply", "answers"):
        table.add_column(heading, ratio=1)
    for line in shown:
        answers = "; ".join(f"{answer['answer']} (gold: {answer['gold']})" for answer in line["answers"])
        texts = list[str]()
        for text in (" | ".join(line["replies"]), answers):
            printable = "".join(c if c.isprintable() else " " for c in text)
            texts.append(" ".join(printable.split())[:_SHOWN_CHARS])
        numbers = ("" if line[name] is None else f"{line[name]:+.3f}" for name in ("reward", "advantage"))
        table.add_row(
            str(line["step"]), line["prompt_id"], line["agent"], str(line["rollout"]), *numbers, *texts
        )
    console.print(table, markup=False)


def _path(folder: Path, step: int) -> Path:
    return folder / _FOLDER / f"step-{step:06d}.jsonl.gz"


if __name__ == "__main__":
    sys.exit(main())
