"""Split LoCoMo by conversation: ``python -m locomo.split_data``."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from locomo.exit_status import run_with_exit_status
from locomo.locomo import download_locomo, load_locomo
from locomo.splits import MANIFEST_FILE, SPLITS, select_split, split_file, verify_splits, write_splits
from locomo.types import all_questions


@dataclass(frozen=True, slots=True)
class SplitConfig:
    """Split LoCoMo by conversation into train.json, val.json, test.json and splits.json."""

    data: Annotated[Path | None, tyro.conf.arg(help_behavior_hint="")] = None
    """A copy of locomo10.json; by default, it is downloaded."""

    out: Path = Path("splits")
    """The folder of the splits."""

    verify: bool = False
    """Check that the splits in the folder are disjoint, complete and true to the data. They are not
    rewritten; a folder without splits gets them first."""

    allow_modified: bool = False
    """Accept a copy of the data that is not the official file."""


def main(arguments: Sequence[str] | None = None, prog: str = "python -m locomo.split_data") -> int:
    """Write or verify the splits as the command line says, and return the exit status."""

    def split() -> None:
        config = tyro.cli(tyro.conf.FlagCreatePairsOff[SplitConfig], args=arguments, prog=prog)
        source = config.data or download_locomo()
        dataset = load_locomo(source, allow_modified=config.allow_modified)
        if not (config.verify and (config.out / MANIFEST_FILE).exists()):
            write_splits(dataset, source, config.out)
        if config.verify:
            verify_splits(dataset, config.out)
        for name in SPLITS:
            conversations = select_split(dataset.conversations, name)
            count = len(all_questions(conversations))
            where = split_file(config.out, name)
            print(f"{name:5}  conversations: {len(conversations)}  questions: {count:4}  {where}")
        if config.verify:
            print("verified: the splits are disjoint and complete")

    return run_with_exit_status(split)


if __name__ == "__main__":
    sys.exit(main())
