"""The ceiling beside a score: what the same program scores when the oracle is its model."""

from rich.console import Console

from memory_program.configs.evaluate_config import EvaluateConfig, Mode, SystemName
from memory_program.core.errors import RecordError
from memory_program.core.json_files import Json
from memory_program.evaluation.datasets import load_worlds
from memory_program.evaluation.evaluation_run import evaluate
from memory_program.worlds.oracle import oracle_lm

ORACLE = "oracle"
"""Stands in signatures where a model's name does."""


def evaluate_oracle(config: EvaluateConfig) -> Json | None:
    """Evaluate the memory system with the oracle as writer and reader, under a run's own settings.

    It is a run like any other, in the folder ``ceiling`` of the run that it is measured for: what is
    recorded there is not done again.

    Returns:
        The results of the system, as they stand in results.json; None where nobody knows the truth of the
        dataset, where a report finds no ceiling recorded, and where the run does not get as far as scores or
        is not about memory.

    Raises:
        MemoryProgramError: as ``evaluate`` does.
    """
    is_scored = config.mode in (Mode.FULL, Mode.REPORT) and SystemName.MEMORY in config.system_names
    if not is_scored or config.runs:  # each of these runs has its own on record
        return None
    worlds = load_worlds(config.source, config.seed)
    if not worlds:
        return None
    of_oracle: Json = {
        "systems": SystemName.MEMORY.value,
        "model": None,
        "writer_model": ORACLE,
        "reader_model": ORACLE,
        "judge_model": None,
        "judge_program": None,
        "api_base": None,
        "temperature": 0.0,
        "program": None,  # its instructions and demos are a model's, and no prompt that the oracle knows
        "output_dir": config.output_dir / "ceiling",
        "report_file": None,
        "db_url": None,
        "executor": "threads",  # the oracle is in this process
        "max_cost": None,
        "max_errors": None,
        "mlflow": False,
        "traces": False,
    }
    try:
        results = evaluate(
            config.replace(**of_oracle),
            console=Console(quiet=True),
            models=lambda _name, _temperature: oracle_lm(worlds),
        )
    except RecordError:
        if config.mode is Mode.REPORT:
            return None
        raise
    assert results is not None, "both modes report"
    return results["systems"][SystemName.MEMORY.value]
