"""Reports of recorded runs, without any model: of one run, or of several on one page."""

import json
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from rich.console import Console

from memory_program.bank.store import BankStore
from memory_program.configs.evaluate_config import EvaluateConfig, Mode, SystemName
from memory_program.core.errors import RecordError
from memory_program.core.json_files import Json
from memory_program.core.provenance import provenance_tags
from memory_program.core.run_folder import CONFIG_FILE
from memory_program.evaluation.console import print_plain
from memory_program.evaluation.item_records import Journals
from memory_program.evaluation.question_selection import Selection, load_selection
from memory_program.evaluation.report.mlflow_evaluation import EvaluationPublisher
from memory_program.evaluation.report.report_page import REPORT_FILE, ReportedRun, write_html_report
from memory_program.evaluation.report.results_json import EVALUATION_RESULTS_FILE, build_evaluation_results
from memory_program.evaluation.scoring.bank_growth import database_url
from memory_program.evaluation.scoring.score_signature import has_run, read_run
from memory_program.evaluation.scoring.system_records import SystemRecords
from memory_program.tracking import RunTracker, TrackedRun

_NEEDED_SETTINGS = ("dataset", "data", "split", "systems", "seed")
"""The settings that every version has recorded, and without which a run cannot be found."""


def report_runs(config: EvaluateConfig, console: Console) -> list[ReportedRun]:
    """Report the runs that a config names, each with the settings it was run with; several share a page.

    Raises:
        RecordError: a folder holds no run, or its records are damaged.
        ConfigError: the settings of a run are not of this version.
        DatasetError: the data of a run cannot be read.
        StoreError: the database fails.
        TrackingError: MLflow fails; the results and the page are written.
    """
    alone = len(config.runs) == 1
    settings = [load_run_config(folder, config) for folder in config.runs]
    reported: list[ReportedRun] = []
    for of_run in settings:
        selection = load_selection(of_run)
        print_plain(console, f"{of_run.output_dir}: {selection.summary}")
        own_page = of_run if alone else of_run.replace(report_file=None)
        oracle = _last_oracle(of_run.output_dir)
        reported.append(score_and_publish(own_page, selection, console, oracle))
    if not alone:
        page = config.report_file or config.runs[0].absolute().parent / REPORT_FILE
        tracked = next((of_run for of_run in settings if of_run.tracking.mlflow), settings[0])
        write_html_report(page, reported)
        print_plain(console, f"report of {len(reported)} runs: {page}")
        name = f"report of {', '.join(run.name for run in reported)}"
        tags = provenance_tags(reported[0].results["dataset"])
        with RunTracker(  # the page is a run of its own
            "evaluate.py",
            tracked.output_dir,
            tracked.tracking.tracking_uri,
            partial(print_plain, console),
            log_later=None,
            is_on=tracked.tracking.mlflow,
            keeps_receipt=False,
        ) as tracker:
            tracker.finish("", TrackedRun(name, {}, tags, artifacts=[page]))
    return reported


def score_runs(config: EvaluateConfig, console: Console) -> list[ReportedRun]:
    """Score the runs that a config names, each with the settings it was run with; nothing is written.

    Raises:
        RecordError: a folder holds no run, or its records are damaged.
        ConfigError: the settings of a run are not of this version.
        DatasetError: the data of a run cannot be read.
        StoreError: the database fails.
    """
    scored: list[ReportedRun] = []
    for folder in config.runs:
        of_run = load_run_config(folder, config)
        selection = load_selection(of_run)
        print_plain(console, f"{folder}: {selection.summary}")
        recorded = load_begun_systems(of_run, selection, console)
        with ExitStack() as stack:
            store = _open_banks(of_run, recorded, stack)
            systems = tuple(system.score_answers(store) for system in recorded)
        results = build_evaluation_results(of_run, selection, systems, _last_oracle(folder))
        scored.append(ReportedRun(folder, selection, results, systems))
    return scored


def score_and_publish(
    config: EvaluateConfig, selection: Selection, console: Console, oracle: Json | None = None
) -> ReportedRun:
    """Score the records in the folder of a config, and publish the results.

    Raises:
        RecordError: nothing was recorded there, or the records are damaged.
        StoreError: the database fails.
        TrackingError: MLflow fails; everything else is done.
    """
    recorded = load_begun_systems(config, selection, console)
    with ExitStack() as stack:
        store = _open_banks(config, recorded, stack)
        publisher = stack.enter_context(EvaluationPublisher(config, selection, console, oracle))
        return publisher.publish(recorded, store)


def load_begun_systems(config: EvaluateConfig, selection: Selection, console: Console) -> list[SystemRecords]:
    """Find the records of each system that has any: a run may have been stopped before it began the others.

    Raises:
        RecordError: nothing was recorded, or the records are damaged.
    """
    names = config.system_names
    begun = tuple(name for name in names if has_run(config.output_dir / name.value))
    for name in names if begun else ():
        if name not in begun:
            print_plain(
                console, f"{name.value}: left out, since nothing of it is recorded yet", style="bold red"
            )
    chosen = ",".join(name.value for name in begun)
    return load_system_records(config.replace(systems=chosen) if begun else config, selection)


def _open_banks(
    config: EvaluateConfig, recorded: Sequence[SystemRecords], stack: ExitStack
) -> BankStore | None:
    has_banks = any(SystemName(system.run.system.name).has_model_writer for system in recorded)
    return stack.enter_context(BankStore.open_existing(database_url(config))) if has_banks else None


def _last_oracle(folder: Path) -> Json | None:
    """Read the oracle's results as last reported: to compute them again takes the oracle."""
    try:
        results = json.loads((folder / EVALUATION_RESULTS_FILE).read_text(encoding="utf-8"))
        return results["ceiling"]
    except (FileNotFoundError, ValueError, KeyError, TypeError):  # not reported yet, or an older version
        return None


def load_system_records(config: EvaluateConfig, selection: Selection) -> list[SystemRecords]:
    """Find the records of the last answers of each system.

    Raises:
        RecordError: nothing was recorded, or the records are damaged.
    """
    folders = [config.output_dir / name.value for name in config.system_names]
    return [SystemRecords(folder, read_run(folder), Journals.read(folder), selection) for folder in folders]


def load_run_config(folder: Path, config: EvaluateConfig) -> EvaluateConfig:
    """Read the settings of a run; its folder, page and MLflow settings are those of ``config``.

    Raises:
        RecordError: the folder holds no settings, or they are damaged.
        ConfigError: they are not of this version.
    """
    path = folder / CONFIG_FILE
    try:
        recorded: Json = dict(json.loads(path.read_text(encoding="utf-8")))
        if missing := [name for name in _NEEDED_SETTINGS if name not in recorded]:
            raise ValueError(f"it lacks {', '.join(missing)}")  # the defaults would be of another run
    except (FileNotFoundError, NotADirectoryError) as error:
        raise RecordError(
            f"no run is recorded in {str(folder)!r}: name a folder that was an --output-dir of evaluate.py"
        ) from error
    except (ValueError, TypeError) as error:  # not JSON, not an object, or not one of settings
        raise RecordError(
            f"{str(path)!r} does not hold the settings of a run ({error}): run the same command again "
            "(records are kept), or give its flags and --output-dir to --mode report instead of the folder"
        ) from error
    here: Json = {
        "mode": Mode.REPORT,
        "output_dir": folder,
        "report_file": config.report_file,
        "mlflow": config.tracking.mlflow and recorded.get("mlflow", True),
        "tracking_uri": config.tracking.tracking_uri or recorded.get("tracking_uri"),
    }
    return EvaluateConfig(**{**recorded, **here})
