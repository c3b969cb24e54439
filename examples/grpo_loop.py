"""GRPO for a memory writer, in one function: sample, grade, credit, step.

``python examples/grpo_loop.py`` trains the embedded model on generated conversations. It is the algorithm of
``train.py``, without the validation, early stopping, checkpoints, curriculum and tracking of ``rl/grpo.py``.

The four parts, and the modules that implement them:

1. sample: the writer remembers one session several times from the same memory (``rl/rollouts.py``);
2. grade: a frozen reader answers the questions about that session from each memory (``rl/rollouts.py``);
3. credit: each agent is rewarded for its own memories, against the other rollouts (``rl/rewards.py``);
4. step: a clipped policy gradient on the sampled tokens (``rl/trainer/policy_step.py``).
"""

import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean

from locomo.types import Conversation
from memory_program import BankStore, MemoryProgram, language_model
from memory_program.configs.trainer_groups import ReinforceSettings
from memory_program.core.parallel import run_parallel
from memory_program.rl.backends.local_backend import LocalReinforceJob
from memory_program.rl.episodes import make_episodes, memory_namespace, roll_in
from memory_program.rl.rewards import RewardRule, build_answer_metric
from memory_program.rl.rollouts import Grader, group_by_agent, run_rollout, sampling_program, training_items
from memory_program.worlds import generate_worlds


@dataclass(frozen=True)
class LoopSettings:
    """The settings of the loop; ``train.py --help`` explains them."""

    model: str = "pocket-base"
    reader: str = "pocket"
    steps: int = 10
    examples_per_step: int = 4
    group_size: int = 8
    max_questions: int = 10
    learning_rate: float = 3e-4
    max_completion_tokens: int = 256
    threads: int = 16
    seed: int = 0


def grpo(conversations: Sequence[Conversation], settings: LoopSettings) -> list[float]:
    """Train the writer on conversations, and return the mean answer score of each step."""
    # The policy writes the memories. The reader has weights of its own, which stay frozen.
    program = MemoryProgram()
    policy = language_model(settings.model, max_tokens=settings.max_completion_tokens)
    program.writer.set_lm(policy)
    program.reader.set_lm(language_model(settings.reader))
    training = ReinforceSettings(
        learning_rate=settings.learning_rate,
        warmup_steps=2,
        max_completion_tokens=settings.max_completion_tokens,
        seed=settings.seed,
    )
    job = LocalReinforceJob(policy, training.model_dump())
    job.initialize()
    sampler = sampling_program(program, training.temperature, settings.max_completion_tokens)
    greedy = sampling_program(program, 0.0, settings.max_completion_tokens)
    # leave-one-out: an agent's reward is the score minus the score without its memories
    rule = RewardRule("leave-one-out", format_weight=0.1)
    grader = Grader(program.reader, build_answer_metric("f1"), rule, settings.threads, greedy.writer)

    scores: list[float] = []
    rng = random.Random(settings.seed)
    with tempfile.TemporaryDirectory() as folder, BankStore(f"sqlite:///{folder}/banks.sqlite") as store:
        for step in range(settings.steps):
            # The memory before each session is the current policy's own work on a random conversation.
            conversation = rng.choice(conversations)
            spaces = roll_in(greedy, conversation, store, memory_namespace(conversation, step))
            episodes = make_episodes(conversation, spaces, max_questions=settings.max_questions, rng=rng)
            episodes = rng.sample(episodes, min(settings.examples_per_step, len(episodes)))

            # 1. Sample a group of rollouts of each episode; the seed makes the step repeatable.
            tasks = [
                partial(run_rollout, sampler, episode, f"{settings.seed}/{step}", number)
                for episode in episodes
                for number in range(settings.group_size)
            ]
            rollouts = run_parallel(tasks, settings.threads)

            # 2. Grade each memory by the reader's answers to the questions of its episode.
            graded = grader.grade(rollouts)
            known = [g.score.task for g in graded if g.score is not None]
            scores.append(fmean(known))

            # 3. Credit: rewards, and advantages within each agent's group. Equal rewards teach nothing.
            items = [
                training_items(group, has_own_logprobs=training.temperature == 1.0)
                for first in range(0, len(graded), settings.group_size)
                for group in group_by_agent(
                    graded[first : first + settings.group_size],
                    program.writer.agents,
                    rule,
                    alpha=1.0,
                    scale_rewards=True,
                ).groups
            ]

            # 4. Step: increase the probability of replies with a positive advantage.
            report = job.step([{"batch_id": n, "group": group} for n, group in enumerate(items)])
            update = "no group had a spread" if report is None else f"loss {report.loss:+.4f}"
            print(f"step {step + 1}: score {scores[-1]:.3f}, {len(items)} groups, {update}")
    job.terminate()
    return scores


def main() -> None:
    """Train on a few generated conversations."""
    worlds = generate_worlds(0, 4, sessions=(8, 10), questions_per_session=20.0)
    scores = grpo([world.conversation for world in worlds], LoopSettings())
    print(f"score of the first step {scores[0]:.3f}, of the last {scores[-1]:.3f}")


if __name__ == "__main__":
    main()
