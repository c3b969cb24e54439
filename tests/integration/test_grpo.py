"""GRPO with real gradients on a tiny model, from rollouts of the whole program."""

import itertools
import json
import resource
import shutil
import threading
from pathlib import Path

import dspy
import pytest
import torch
from dspy import lm15
from dspy.clients import base_lm

from memory_program.agents.program import MemoryProgram
from memory_program.bank.memory import MemoryKind
from memory_program.configs.trainer_groups import GRPOSettings, ReinforceSettings
from memory_program.core.errors import ConfigError, DivergenceError, RunFailedError
from memory_program.inference.engine import LocalSettings
from memory_program.models.local_model import LocalModel
from memory_program.rl.grpo import MemoryGRPO
from memory_program.rl.rewards import build_answer_metric
from memory_program.rl.rollouts import run_rollout
from memory_program.rl.validation import ValidationResult
from tests.training_samples import RuledReader, student, talk

pytestmark = pytest.mark.usefixtures("torch_on_one_thread")
EASY = {
    "num_train_steps": 18, "examples_per_step": 1, "group_size": 8, "curriculum": "", "refresh_every": 3,
    "val_every": 6, "save_every": 2, "concurrency": 8,
}  # fmt: skip
TRAINING = {
    "learning_rate": 2e-3, "warmup_steps": 0, "beta": 0.02, "max_completion_tokens": 40, "ema_decay": 0.5,
}  # fmt: skip
TRAIN, VAL = [talk("learned")], [talk("chosen on")]


@pytest.fixture(scope="module")
def folder(half_taught: Path) -> Path:
    return half_taught


def grpo(out: Path, on_entry=lambda entry: None, terms: dict | None = None, **settings: object) -> MemoryGRPO:
    return MemoryGRPO(
        build_answer_metric("f1"),
        out,
        GRPOSettings(**{**EASY, **settings}),
        ReinforceSettings(**TRAINING),
        extra_resume_settings=terms or {"answer_metric": "f1"},
        on_entry=on_entry,
    )


def weights(program: MemoryProgram) -> dict[str, torch.Tensor]:
    return program.writer.core.lm.engine.local.model.network.state_dict()


def has_weights(program: MemoryProgram, expected: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(weight, expected[name]) for name, weight in weights(program).items())


def read_entries(out: Path, kind: str) -> list[dict]:
    entries = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return [entry for entry in entries if entry["kind"] == kind]


@pytest.fixture(scope="module")
def trained(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, MemoryProgram]:
    out = tmp_path_factory.mktemp("trained")
    program = grpo(out).compile(student(folder), trainset=TRAIN, valset=VAL)
    return out, program


def test_scores_rise_on_training_and_validation(trained):
    out, program = trained
    steps, validations = read_entries(out, "step"), read_entries(out, "validation")
    assert [entry["step"] for entry in steps] == list(range(1, 19))
    first, last = (sum(e["score"] for e in part) / 3 for part in (steps[:3], steps[-3:]))
    assert last > first + 0.3
    assert [entry["step"] for entry in validations] == [0, 6, 12, 18]
    assert validations[-1]["score"] > validations[0]["score"] + 0.3
    space = program.deepcopy()  # the student itself has the trained weights
    assert space.writer.core.lm.engine is program.writer.core.lm.engine


def test_the_ema_weights_are_validated_and_kept(folder, tmp_path):
    slower = grpo(tmp_path, num_train_steps=6, save_every=6)
    slower.training = ReinforceSettings(**{**TRAINING, "learning_rate": 1e-3})
    program = slower.compile(student(folder), trainset=TRAIN, valset=VAL)
    assert read_entries(tmp_path, "validation")[-1]["best_step"] == 6
    state = torch.load(tmp_path / "checkpoints" / "000006" / "state.pt")
    kept = list(program.writer.core.lm.engine.local.model.network.parameters())
    for name, are_kept in (("average", True), ("weights", False)):
        same = [torch.equal(*pair) for pair in zip(kept, state[name], strict=True)]
        assert all(same) == are_kept


def test_a_step_logs_its_metrics(trained):
    out, _ = trained
    entry = read_entries(out, "step")[0]
    assert entry["rollouts"] == 8
    assert entry["groups"] + entry["zero_variance_groups"] == 4
    assert entry["samples"] == 8 * entry["groups"]
    assert entry["kl"] == pytest.approx(0.0, abs=1e-6)
    assert entry["sampler_logprob_gap"] < 1e-3
    assert entry["entropy"] > 0
    assert entry["tools/manage_memory"] > 0
    assert {"reward_std", "advantage_std", "copied_words", "truncated", "repetitive"} <= entry.keys()
    assert {"learning_rate", "clip_ratio/low", "completion_tokens/p95", "time_left_s"} <= entry.keys()
    assert "api_calls" not in entry, "no API model was called"
    assert {"reward", "reward/episodic", "valid", "completion_tokens", "grad_norm"} <= entry.keys()
    assert entry["tokens_per_s/sampled"] > 0
    phases = sum(entry[f"seconds/{phase}"] for phase in ("roll_in", "write", "read", "update"))
    assert phases == pytest.approx(entry["seconds/step"] * (1 - entry["overhead"]))


class Killed(Exception):
    pass


def killed_at(step: int):
    def on_entry(entry: dict) -> None:
        if entry["step"] == step and entry["kind"] == "step":
            raise Killed

    return on_entry


def test_a_killed_training_ends_with_the_same_weights(folder, trained, tmp_path):
    straight, program = trained
    for step in (1, 5, 17):  # in the first window, between two checkpoints, and in the last window
        with pytest.raises(Killed):
            grpo(tmp_path, killed_at(step)).compile(student(folder), trainset=TRAIN, valset=VAL)
    again = grpo(tmp_path, minutes=60, concurrency=4)  # these two may change
    resumed = again.compile(student(folder), trainset=TRAIN, valset=VAL)
    assert [e["step"] for e in read_entries(tmp_path, "step")] == list(range(1, 19))
    for one, other in zip(read_entries(straight, "step"), read_entries(tmp_path, "step"), strict=True):
        assert all(one[name] == other[name] for name in ("reward", "score", "samples"))
    assert has_weights(resumed, weights(program))


def test_a_kill_after_a_validation_does_not_repeat_it(folder, tmp_path):
    with pytest.raises(Killed):
        grpo(tmp_path, killed_at(1), num_train_steps=1).compile(student(folder), trainset=TRAIN, valset=VAL)
    entries: list[dict] = []
    grpo(tmp_path, entries.append, num_train_steps=1).compile(student(folder), trainset=TRAIN, valset=VAL)
    assert [(entry["kind"], entry["step"]) for entry in entries] == [("step", 1), ("validation", 1)]


def test_a_finished_training_is_not_saved_again(folder, trained):
    out, _ = trained
    state = out / "checkpoints" / "000018" / "state.pt"
    written = state.stat().st_mtime_ns
    grpo(out).compile(student(folder), trainset=TRAIN, valset=VAL)
    assert state.stat().st_mtime_ns == written


def test_a_rollout_is_read_while_others_are_written(folder, tmp_path, monkeypatch):
    first_is_read, written = threading.Event(), itertools.count()

    def write(*given, **named):
        if next(written) == 7:  # the last rollout of the step waits for the first answer
            assert first_is_read.wait(60), "nothing was read before all was written"
        return run_rollout(*given, **named)

    def metric(question, answer):
        first_is_read.set()
        return build_answer_metric("f1")(question, answer)

    monkeypatch.setattr("memory_program.rl.grpo.run_rollout", write)
    training = grpo(tmp_path, num_train_steps=1)
    training.metric = metric
    (groups,) = training.dry_run(student(folder), trainset=TRAIN)
    assert all(len(rewards) == 8 for rewards in groups.rewards.values())


def test_settings_of_memory_speed_and_length_may_change_on_resume(folder, tmp_path):
    grpo(tmp_path, num_train_steps=2).compile(student(folder), trainset=TRAIN, valset=VAL)
    changed = {"save_every": 2, "val_every": 3, "patience": 4, "max_calls": 10, "max_cost": 1.0}
    again = grpo(tmp_path, num_train_steps=2, **changed)
    again.training = ReinforceSettings(
        **{**TRAINING, "batch_tokens": 700, "bf16": True, "gradient_checkpointing": True,
           "learning_rate": 1e-4, "max_kl": 3.0, "diagnostics_every": 5},
    )  # fmt: skip
    again.compile(student(folder), trainset=TRAIN, valset=VAL)
    assert again.ended_by == "num_train_steps=2 is reached"


def test_a_resumed_training_rebuilds_the_memories_that_are_newer_than_its_checkpoint(folder, tmp_path):
    with pytest.raises(Killed):
        grpo(tmp_path, killed_at(4), save_every=2).compile(student(folder), trainset=TRAIN, valset=VAL)
    program = student(folder)
    engine = Listening(LocalSettings(source=str(folder), dtype="float32", device="cpu"))
    program.writer.set_lm(program.writer.core.lm.copy(engine=engine))
    with pytest.raises(Killed):  # the checkpoint of step 2 is in the first window, the kill in the second
        grpo(tmp_path, killed_at(4), save_every=2).compile(program, trainset=TRAIN, valset=VAL)
    assert engine.greedy == 4  # the second window's session again, and not that of the first


@pytest.mark.parametrize(
    ("limit", "complaint"),
    [
        (
            {"max_kl": 1e-12},
            r"the KL divergence of step \d is .* more than --max-kl 1e-12; a checkpoint",
        ),
        ({"max_sampler_gap": 1e-12}, r"sampler and trainer differ by .* more than --max-sampler-gap 1e-12"),
    ],
)
def test_a_training_that_diverges_stops_and_keeps_its_last_checkpoint(folder, tmp_path, limit, complaint):
    limited = grpo(tmp_path, save_every=1, num_train_steps=3)
    limited.training = ReinforceSettings(**{**TRAINING, "beta": 0.01, **limit})
    with pytest.raises(RunFailedError, match=complaint):
        limited.compile(student(folder), trainset=TRAIN, valset=VAL)
    stopped = read_entries(tmp_path, "step")[-1]["step"]
    kept = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    # the KL of a step is that of the weights that it began with, so their checkpoint is deleted
    assert kept[-1] == f"{stopped - (2 if 'max_kl' in limit else 1):06d}"
    resumed = grpo(tmp_path, save_every=1, num_train_steps=3)
    resumed.training = ReinforceSettings(**{**TRAINING, "beta": 0.01, "learning_rate": 1e-4})
    resumed.compile(student(folder), trainset=TRAIN, valset=VAL)
    assert [entry["step"] for entry in read_entries(tmp_path, "step")] == [1, 2, 3]


def test_a_training_with_a_rate_that_ruined_it_goes_on_with_a_lower_one(folder, tmp_path):
    def train(rate):
        training = grpo(tmp_path, save_every=1, num_train_steps=3)
        training.training = ReinforceSettings(**{**TRAINING, "learning_rate": rate})
        training.compile(student(folder), trainset=TRAIN, valset=VAL)

    with pytest.raises(DivergenceError, match="lower --learning-rate"):
        train(1e30)
    train(1e-4)
    assert [entry["step"] for entry in read_entries(tmp_path, "step")] == [1, 2, 3]


@pytest.mark.parametrize("save", ["save_state", "save_weights", "save_model"])
def test_weights_that_do_not_fit_on_the_disk_are_one_error(folder, tmp_path, save):
    training = grpo(tmp_path / "run", num_train_steps=1)
    training.compile(student(folder), trainset=TRAIN, valset=VAL)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
        with pytest.raises(OSError, match=r"File too large|make room"):
            getattr(training.job.trainer, save)(tmp_path / "full")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_training_after_which_no_reply_can_be_used_stops(folder, tmp_path):
    training = grpo(tmp_path, num_train_steps=9, val_every=9)
    training.training = ReinforceSettings(**{**TRAINING, "learning_rate": 1e5})
    with pytest.raises(RunFailedError, match=r"no reply of the last 3 steps could be used.*--output-dir"):
        training.compile(student(folder), trainset=TRAIN, valset=VAL)
    assert [entry["valid"] > 0 for entry in read_entries(tmp_path, "step")] == [True, False, False, False]


def test_groups_without_spread_are_replaced_by_those_of_other_episodes(folder, tmp_path):
    refilling = grpo(tmp_path, num_train_steps=1, examples_per_step=1, group_size=2, refill_rounds=3)
    refilling.compile(student(folder), trainset=TRAIN, valset=VAL)
    (entry,) = read_entries(tmp_path, "step")
    assert entry["rollouts"] == 2 * (1 + entry["refilled_episodes"])
    assert 0 < entry["refilled_episodes"] <= 3


class FailsAfter(LocalModel):
    """Fails each sampled call after the first ones."""

    def __init__(self, settings: LocalSettings, calls: int) -> None:
        super().__init__(settings)
        self.left = itertools.count(calls, -1)

    def complete(self, request: lm15.Request) -> lm15.Response:
        if request.config.temperature and next(self.left) <= 0:
            raise lm15.ContextLengthError("the session is too long")
        return super().complete(request)


def test_a_training_goes_on_when_every_rollout_of_a_refill_fails(folder, tmp_path):
    program = student(folder)
    settings = LocalSettings(source=str(folder), dtype="float32", device="cpu")
    engine = FailsAfter(settings, 2 * 4)  # the calls of both rollouts of the step's own episode
    program.writer.set_lm(program.writer.core.lm.copy(engine=engine))
    refilling = grpo(tmp_path, num_train_steps=1, group_size=2, refill_rounds=1)
    refilling.compile(program, trainset=TRAIN, valset=VAL)
    (entry,) = read_entries(tmp_path, "step")
    assert entry["refilled_episodes"] >= 1
    assert entry["lost"] == 2 * entry["refilled_episodes"]


def test_a_step_without_any_score_ends_the_training(folder, tmp_path):
    judged = grpo(tmp_path, group_size=2)
    judged.metric = lambda question, answer: None
    with pytest.raises(RunFailedError, match="no rollout of step 1 has a score"):
        judged.dry_run(student(folder), trainset=TRAIN)


def test_the_folder_of_another_training_is_refused(folder, trained):
    out, _ = trained
    with pytest.raises(ConfigError, match=r"holds a training with group_size=8: give the same settings"):
        grpo(out, group_size=4).compile(student(folder), trainset=TRAIN, valset=VAL)


def test_a_training_resumes_with_the_same_metric_reader_and_program_only(folder, trained):
    out, _ = trained
    other_score = grpo(out, terms={"answer_metric": "judge"})
    with pytest.raises(
        ConfigError, match=r"holds a training with answer_metric='f1': give the same settings"
    ):
        other_score.compile(student(folder), trainset=TRAIN, valset=VAL)
    other_reader = student(folder)
    other_reader.reader.set_lm(dspy.LM("test/other", engine=RuledReader(), cache=False, num_retries=0))
    with pytest.raises(ConfigError, match=r"holds a training with reader='test/ruled': give the same"):
        grpo(out).compile(other_reader, trainset=TRAIN, valset=VAL)
    other_program = student(folder)
    asked = other_program.writer.core.signature
    other_program.writer.core.signature = asked.with_instructions("Write nothing.")
    with pytest.raises(ConfigError, match=r"holds a training with program='\w+': give the same settings"):
        grpo(out).compile(other_program, trainset=TRAIN, valset=VAL)


class Listening(LocalModel):
    """Keeps the seeds of its requests, and counts those without sampling."""

    def __init__(self, settings: LocalSettings) -> None:
        super().__init__(settings)
        self.seeds: list[int] = []
        self.greedy = 0

    def complete(self, request: lm15.Request) -> lm15.Response:
        if request.config.temperature:
            self.seeds.append(request.config.seed)
        self.greedy += not request.config.temperature
        return super().complete(request)


def test_copies_of_an_episode_in_a_step_have_their_own_seeds(folder, tmp_path):
    program = student(folder)
    engine = Listening(LocalSettings(source=str(folder), dtype="float32", device="cpu"))
    program.writer.set_lm(program.writer.core.lm.copy(engine=engine))
    twice = grpo(tmp_path, num_train_steps=1, examples_per_step=2, group_size=2, refresh_every=1)
    twice.compile(program, trainset=TRAIN, valset=VAL)
    assert len(engine.seeds) == 2 * 2 * 4
    assert len(set(engine.seeds)) == len(engine.seeds)


def test_early_stopping_returns_the_best_weights(folder, tmp_path):
    stopped = grpo(tmp_path, num_train_steps=50, val_every=1, patience=1, group_size=2)
    stopped.training = ReinforceSettings(**{**TRAINING, "learning_rate": 1e-12})
    program = stopped.compile(student(folder), trainset=TRAIN, valset=VAL)
    assert [entry["step"] for entry in read_entries(tmp_path, "validation")] == [0, 1]
    assert stopped.ended_by == "patience=1 is exhausted after 1 of 50 steps"
    assert has_weights(program, weights(student(folder)))


def test_a_validation_with_many_lost_questions_is_not_the_best(folder, tmp_path, monkeypatch):
    results = iter(ValidationResult(*r, {}) for r in ((0.5, 20, 0), (1.0, 1, 19), (0.75, 18, 2)))
    monkeypatch.setattr("memory_program.rl.grpo.validate_policy", lambda *_args, **_settings: next(results))
    grpo(tmp_path, num_train_steps=2, val_every=1, group_size=2).compile(
        student(folder), trainset=TRAIN, valset=VAL
    )
    assert [entry["best_step"] for entry in read_entries(tmp_path, "validation")] == [0, 0, 2]


def test_a_whole_validation_replaces_a_best_one_that_lost_most_questions(folder, tmp_path, monkeypatch):
    results = iter(ValidationResult(*r, {}) for r in ((1.0, 1, 19), (0.9, 1, 19), (0.6, 20, 0), (0.5, 20, 0)))
    monkeypatch.setattr("memory_program.rl.grpo.validate_policy", lambda *_args, **_settings: next(results))
    grpo(tmp_path, num_train_steps=3, val_every=1, group_size=2).compile(
        student(folder), trainset=TRAIN, valset=VAL
    )
    assert [entry["best_step"] for entry in read_entries(tmp_path, "validation")] == [0, 0, 2, 2]


def test_a_training_does_not_resume_from_changed_base_weights(folder, tmp_path):
    copied = Path(shutil.copytree(folder, tmp_path / "model"))

    def of_the_copy() -> MemoryProgram:
        program = student(copied)
        program.writer.set_lm(program.writer.core.lm.copy(model=f"local:{copied}"))
        return program

    short = {"num_train_steps": 1, "group_size": 2}
    grpo(tmp_path / "run", **short).compile(of_the_copy(), trainset=TRAIN, valset=VAL)
    weights_of = copied / "model.safetensors"
    *most, last = weights_of.read_bytes()
    weights_of.write_bytes(bytes([*most, last ^ 1]))
    with pytest.raises(ConfigError, match="holds a training with model="):
        grpo(tmp_path / "run", **short).compile(of_the_copy(), trainset=TRAIN, valset=VAL)


def test_a_dry_run_returns_groups_and_changes_nothing(folder, tmp_path):
    program = student(folder)
    before = {name: weight.clone() for name, weight in weights(program).items()}
    (grouping,) = grpo(tmp_path).dry_run(program, trainset=TRAIN)
    assert {group.agent for group in grouping.groups} <= {kind.value for kind in MemoryKind}
    for group in grouping.groups:
        assert group.episode_id == "learned/session_1"
        rewards = [part.reward for part in group.samples]
        assert max(rewards) > min(rewards)
        best = max(group.samples, key=lambda part: part.reward)
        assert best.advantage > 0
    assert has_weights(program, before)


def test_dspy_keeps_no_history_of_a_training(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(base_lm, "GLOBAL_HISTORY", [])
    grpo(tmp_path / "dry").dry_run(student(folder), trainset=TRAIN)
    grpo(tmp_path / "run", num_train_steps=1).compile(student(folder), trainset=TRAIN, valset=VAL)
    assert (base_lm.GLOBAL_HISTORY, dspy.settings.trace) == ([], [])


class Failing(RuledReader):
    def complete(self, request: lm15.Request) -> lm15.Response:
        raise lm15.ServerError("down")


def test_a_failing_reader_is_an_error(folder, tmp_path):
    with pytest.raises(RunFailedError, match="none of 2 validation questions has a score"):
        grpo(tmp_path).compile(student(folder, Failing()), trainset=TRAIN, valset=VAL)


def test_a_reader_with_the_trained_weights_is_refused(folder, tmp_path):
    program = student(folder)
    program.reader.set_lm(program.writer.core.lm)
    with pytest.raises(ConfigError, match="the reader shares the model that is trained"):
        grpo(tmp_path).compile(program, trainset=TRAIN, valset=VAL)


def test_one_conversation_in_both_sets_is_refused(folder, tmp_path):
    with pytest.raises(
        ConfigError, match="conversation 'learned' is in both the training and the validation set"
    ):
        grpo(tmp_path).compile(student(folder), trainset=TRAIN, valset=TRAIN)
