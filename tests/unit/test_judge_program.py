"""Optimised judges: which files are some, whose prompts they replace, and what is cited of them."""

from pathlib import Path

import pytest

from locomo.judge.calibration import calibration_answers
from locomo.judge.rubrics import Grading, Rubric, Verdict, judge_instruction
from locomo.types import Benchmark
from memory_program.agents.systems import make_system
from memory_program.bank.outcomes import Outcome
from memory_program.configs.evaluate_config import EvaluateConfig, SystemName
from memory_program.core.errors import ConfigError
from memory_program.evaluation.item_records import JudgeRecord
from memory_program.evaluation.judge_program import make_judges, read_judge_program
from memory_program.evaluation.scoring.judge_errors import (
    calibration_cases,
    compute_judge_error_rates,
    format_judge_error_rates,
)
from memory_program.evaluation.scoring.question_scores import BootstrapSampler
from memory_program.evaluation.scoring.score_signature import (
    JudgeIdentity,
    SystemRun,
    identify_judge,
    identify_system,
    read_run,
    write_run,
)
from memory_program.models.usage import Usage
from tests.judge_samples import write_judge
from tests.scripted_lm import ScriptedLM, fields

ANSWERS = calibration_answers(Benchmark.LOCOMO)
ADDED = "\nBe careful."


def config_of(program: Path | None, **more: object) -> EvaluateConfig:
    return EvaluateConfig(judge_model="openai/judge", judge_program=program, **more)


def identity(program: Path | None, **more: object) -> JudgeIdentity:
    found = identify_judge(config_of(program, **more))
    assert found is not None
    return found


def test_only_the_prompts_of_its_rubric_are_replaced(tmp_path: Path) -> None:
    judges = make_judges(config_of(write_judge(tmp_path / "judge.json", instruction=ADDED)))
    told = {
        rubric: judges[rubric].by_grading[Grading.LOCOMO].predict.signature.instructions for rubric in Rubric
    }
    assert told == {
        Rubric.LENIENT: judge_instruction(Rubric.LENIENT, Grading.LOCOMO),
        Rubric.STRICT: judge_instruction(Rubric.STRICT, Grading.LOCOMO) + ADDED,
    }


def test_the_model_gets_the_replaced_prompt(tmp_path: Path) -> None:
    program = write_judge(tmp_path / "judge.json", instruction=ADDED)
    with ScriptedLM([fields(reasoning="Same.", verdict="CORRECT")]) as lm:
        judged = make_judges(config_of(program), lm)[Rubric.STRICT].grade(ANSWERS[0].question, "7 May 2023")
    assert judged.verdict is Verdict.CORRECT
    assert "Be careful." in lm.requests[0].system


def test_verdicts_by_other_prompts_have_other_keys(tmp_path: Path) -> None:
    plain, changed = identity(None), identity(write_judge(tmp_path / "a.json", instruction=ADDED))
    same = identity(write_judge(tmp_path / "b.json"))  # nothing was better: the built-in prompts were saved
    question, text = ANSWERS[0].question, ANSWERS[0].text
    keys = [[judge.key(rubric, question, text) for judge in (plain, changed, same)] for rubric in Rubric]
    lenient, strict = keys
    assert len(set(lenient)) == 1
    assert strict[0] == strict[2] != strict[1]


def test_the_name_of_a_judge_identifies_its_prompts(tmp_path: Path) -> None:
    assert identity(None).name == "openai/judge"
    first = identity(write_judge(tmp_path / "a.json", instruction=ADDED)).name
    second = identity(write_judge(tmp_path / "b.json", instruction="\nBe quick.")).name
    assert first.startswith("openai/judge+strict@")
    assert first != second


def test_a_run_records_the_prompts_of_its_judge(tmp_path: Path) -> None:
    judge = identity(write_judge(tmp_path / "a.json", made_on=[ANSWERS[0].question.text]))
    config, name = config_of(None), SystemName.EXTRACTIVE
    system = make_system(name.value, config.system)
    write_run(tmp_path, SystemRun(identify_system(system, name, config), judge))
    assert read_run(tmp_path).judge == judge


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "is not an optimised judge (FileNotFoundError"),
        ("not JSON", "is not an optimised judge (JSONDecodeError"),
        ("[]", "is not an optimised judge (TypeError"),
        ('{"metadata": {"optimization": {"dataset": {"train": [], "val": []}}}}', "(KeyError: 'rubric')"),
    ],
)
def test_a_file_that_is_not_a_judge_is_refused(content: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "judge.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError) as caught:
        identity(path)
    assert message in str(caught.value)
    assert "name a file that optimize.py --target judge saved" in str(caught.value)


def test_a_judge_file_that_lacks_a_prompt_is_refused(tmp_path: Path) -> None:
    path = write_judge(tmp_path / "judge.json", Benchmark.LONGMEMEVAL)
    path.write_text(path.read_text().replace('"longmemeval-update"', '"longmemeval-other"'))
    with pytest.raises(ConfigError, match="KeyError: 'longmemeval-update'"):
        read_judge_program(path).judges()


def test_a_judge_of_another_benchmark_or_rubric_is_refused(tmp_path: Path) -> None:
    path = write_judge(tmp_path / "judge.json", Benchmark.PERLTQA)
    with pytest.raises(ConfigError, match="for questions of perltqa, and these are of locomo"):
        identity(path)
    with pytest.raises(ConfigError, match="for the strict rubric, and this run uses lenient"):
        identity(path, dataset="perltqa", model="openai/m", rubrics="lenient")
    assert identity(path, dataset="perltqa", model="openai/m", rubrics="strict").optimized is not None


def test_a_model_in_the_file_is_never_loaded(tmp_path: Path) -> None:
    path = write_judge(tmp_path / "judge.json")
    path.write_text(path.read_text().replace('"lm": null', '"lm": {"model": "openai/elsewhere"}'))
    assert "elsewhere" in path.read_text()
    judges = read_judge_program(path).judges()
    assert [predictor.lm for predictor in judges.predictors()] == [None]


def test_optimised_prompts_without_a_judge_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"judge_program='judge.json' needs a model that judges"):
        EvaluateConfig(judge_program=Path("judge.json"))


def test_error_rates_on_untouched_questions_are_cited(tmp_path: Path) -> None:
    seen = {answer.question.text for answer in ANSWERS[:100]}
    path = write_judge(tmp_path / "judge.json", made_on=sorted(seen))
    judge = identity(path, rubrics="strict")
    tried = [answer for answer in ANSWERS if Rubric.STRICT in answer.verdicts]
    records: dict[str, JudgeRecord] = {}
    for answer, case in zip(tried, calibration_cases(judge, Benchmark.LOCOMO)[Rubric.STRICT], strict=True):
        known = answer.verdicts[Rubric.STRICT]  # learned by heart; what is new is accepted whatever it is
        verdict = known if answer.question.text in seen else Verdict.CORRECT
        record = JudgeRecord(
            case.key, answer.question.question_id, Rubric.STRICT, verdict, Outcome.OK, "", Usage(), 0.0
        )
        records[case.key] = record
    quality = compute_judge_error_rates(judge, Benchmark.LOCOMO, records, BootstrapSampler(0))
    rates, untouched = quality["strict"], quality["strict"]["untouched"]
    assert 0 < rates["false_accept"]["value"] < 1
    assert (untouched["false_accept"]["value"], untouched["false_reject"]["value"]) == (1.0, 0.0)
    assert untouched["questions"] == len({answer.question for answer in ANSWERS}) - len(seen)
    wrong = [a for a in tried if a.question.text not in seen and a.verdicts[Rubric.STRICT] is Verdict.WRONG]
    assert untouched["false_accept"]["n"] == len(wrong)
    assert format_judge_error_rates(quality) == "strict(untouched)=1.00/0.00"
