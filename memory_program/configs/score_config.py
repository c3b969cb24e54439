"""The settings of ``memory-program score``. Docstrings are the help of the flags."""

from pathlib import Path
from typing import Annotated, Self

import tyro
from pydantic import model_validator

from memory_program.configs.evaluate_config import SplitName
from memory_program.configs.groups import Conversations, DatasetName, DataSettings, NumTest, Seed, SubsetFile
from memory_program.core.errors import ConfigError
from memory_program.core.settings import OutputFile, Settings


class ScoreConfig(Settings, init=False):
    """Score answers and rankings of any other system, in the tables and the report of evaluate.py.

    Each file has one JSON object a line: {"question_id": "conv-26:q0", "answer": "in May 2023", "ranking":
    ["D1:3", "D4:2"], "seconds": 1.2, "input_tokens": 900, "output_tokens": 12, "cost_usd": 0.0004}. Only
    question_id and an answer, a ranking or an error are required; a question without a line is missing. An
    entry of a ranking is a turn id, a list of the turn ids that a memory comes from, or {"sources": [...],
    "tokens": 31}. A failed answer has {"error": "why"} instead. A line may also describe how a session was
    written: {"conversation_id": "conv-26", "session_id": "session_1", "operations": 9, "seconds": 4.1,
    "calls": 2, "input_tokens": 5200, "output_tokens": 410}. Nothing is judged: no model is called.
    """

    files: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FILE [FILE ...]")] = ()
    """JSONL files, one per system. A system is named after its file."""

    source: DataSettings = DataSettings(dataset=DatasetName.LOCOMO.value)

    split: SplitName = "all"
    """Conversations to use, as in evaluate.py."""

    conversations: Conversations

    subset_file: SubsetFile

    num_test: NumTest

    beside: tuple[Path, ...] = ()
    """Folders of runs of evaluate.py to show on the same page, and to compare with on the same data."""

    output_dir: Path = Path("runs/score")
    """Folder of the results and the report."""

    report_file: OutputFile | None = None
    """File of the report, one HTML page. Default: report.html in the folder."""

    seed: Seed

    @model_validator(mode="after")
    def _check_files(self) -> Self:
        if not self.files:
            raise ConfigError("no file to score: name one or more JSONL files")
        names = [path.stem for path in self.files]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ConfigError(
                f"two files are named {twice!r}, and a system is named after its file: rename one"
            )
        taken = next((name for name in names if Path(name).suffix in (".json", ".html", ".png")), None)
        if taken is not None:
            raise ConfigError(
                f"a system is named after its file, and its folder {taken!r} may clash with a file of the "
                f"results: rename {taken}.jsonl"
            )
        return self
