"""The clipped objective: worked examples, and losses and gradients of TRL's GRPOTrainer."""

import math

import pytest
import torch

from memory_program.rl.trainer.objective import (
    Objective,
    TokenTerms,
    importance_weights,
    kl_k3,
    token_entropies,
)

# TRL 1.16.0, GRPOTrainer._compute_loss with use_bias_correction_kl=False, epsilon=0.2, beta=0.04 and
# max_completion_length=8, on six completions of two groups in float64: the loss and its gradient with
# respect to each log-probability.
LENGTHS = [5, 2, 3, 4, 1, 3]
ADVANTAGES = [1.5, -0.5, -1.0, 2.0, -1.25, -0.75]
LOGPROBS = [
    -2.24, -1.9, -1.51, -0.62, -1.18, -1.09, -2.4, -1.38, -1.55, -1.68, -2.32, -1.09, -0.94, -1.92, -2.13,
    -0.52, -2.69, -3.44,
]  # fmt: skip
OLD_LOGPROBS = [
    -2.55, -2.3, -1.32, -0.85, -1.58, -1.27, -2.37, -0.98, -1.48, -1.79, -2.73, -1.56, -0.92, -2.29, -1.89,
    -0.83, -2.74, -2.95,
]  # fmt: skip
REFERENCE_LOGPROBS = [
    -2.33, -2.4, -1.0, -0.68, -2.08, -1.28, -2.0, -1.24, -1.65, -1.42, -3.04, -1.49, -1.18, -1.82, -1.59,
    -0.88, -3.16, -3.13,
]  # fmt: skip
TRL = {
    "grpo": (-0.11045011832717481, [
        0.000115, 0.000525, -0.042235, 0.000078, 0.000791, 0.050461, 0.038796, -0.000334, 0.052011, 0.061356,
        0.000855, 0.000549, -0.081328, -0.000175, -0.004773, 0.057481, 0.044636, -0.000808,
    ]),
    "dr_grpo": (-0.21250572479456564, [
        0.000072, 0.000328, -0.026397, 0.000049, 0.000495, 0.012615, 0.009699, -0.000125, 0.019504, 0.023008,
        0.000428, 0.000275, -0.040664, -0.000088, -0.000597, 0.021555, 0.016739, -0.000303,
    ]),
    "dapo": (-0.5666819327855084, [
        0.000191, 0.000874, -0.070392, 0.000129, 0.001319, 0.033641, 0.025864, -0.000334, 0.052011, 0.061356,
        0.001141, 0.000733, -0.108437, -0.000234, -0.001591, 0.057481, 0.044636, -0.000808,
    ]),
}  # fmt: skip


@pytest.mark.parametrize("loss_type", list(TRL))
def test_loss_and_gradients_are_those_of_trl(loss_type):
    objective = Objective(loss_type, beta=0.04, max_completion_tokens=8)
    samples_N = [sample for sample, length in enumerate(LENGTHS) for _ in range(length)]
    double = {"dtype": torch.float64}
    logprobs = torch.tensor(LOGPROBS, **double, requires_grad=True)
    terms = TokenTerms(
        logprobs=logprobs,
        old_logprobs=torch.tensor(OLD_LOGPROBS, **double),
        reference_logprobs=torch.tensor(REFERENCE_LOGPROBS, **double),
        entropies=torch.zeros(len(LOGPROBS)),
        advantages=torch.tensor(ADVANTAGES, **double)[samples_N],
        weights=torch.tensor(objective.token_weights(LENGTHS), **double)[samples_N],
        step_tokens=len(LOGPROBS),
    )
    loss = objective.loss(terms)
    loss.backward()
    expected_loss, expected_gradient = TRL[loss_type]
    assert loss.item() == pytest.approx(expected_loss, abs=1e-9)
    assert logprobs.grad.tolist() == pytest.approx(expected_gradient, abs=1e-6)


def test_token_weights_follow_the_papers():
    lengths = [2, 6]
    assert Objective("grpo").token_weights(lengths) == [1 / 4, 1 / 12]
    assert Objective("dapo").token_weights(lengths) == [1 / 8, 1 / 8]
    assert Objective("dr_grpo", max_completion_tokens=10).token_weights(lengths) == [1 / 20, 1 / 20]


@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "dr_grpo"])
def test_agents_weigh_the_same_whatever_the_length_of_their_replies(loss_type):
    lengths, agents = [2, 90, 6, 110], ["core", "episodic", "core", "episodic"]
    apart = Objective(loss_type, loss_per_agent=True).sample_token_weights(lengths, agents)
    alone = {agent: Objective(loss_type).token_weights(own) for agent, own in
             {"core": [2, 6], "episodic": [90, 110]}.items()}  # fmt: skip
    assert apart == pytest.approx([w / 2 for pair in zip(*alone.values(), strict=True) for w in pair])
    together = Objective(loss_type).sample_token_weights(lengths, agents)
    assert together == Objective(loss_type).token_weights(lengths)


def test_dapo_per_agent_gives_each_agent_half_of_the_loss():
    weights = Objective(loss_per_agent=True).sample_token_weights([2, 90, 6], ["core", "episodic", "core"])
    assert 2 * weights[0] + 6 * weights[2] == pytest.approx(0.5) == 90 * weights[1]


def test_kl_and_entropy_follow_their_formulas():
    logprobs, reference = torch.tensor([-1.0, -0.5]), torch.tensor([-1.0, -1.5])
    assert kl_k3(logprobs, reference).tolist() == pytest.approx([0.0, math.exp(-1) + 1 - 1])
    assert token_entropies(torch.zeros(1, 4)).item() == pytest.approx(math.log(4))


def token_terms(ratios: list[float], advantages: list[float], entropies: list[float]) -> TokenTerms:
    logprobs, count = torch.tensor(ratios).log().requires_grad_(), len(ratios)
    by_token = (torch.tensor(entropies), torch.tensor(advantages), torch.ones(count))
    return TokenTerms(logprobs, torch.zeros(count), None, *by_token, count)


def test_a_ratio_is_clipped_where_that_lowers_the_objective():
    terms = token_terms([1.5, 0.5, 1.5, 0.5], [1.0, -1.0, -1.0, 1.0], [0.0] * 4)
    loss = Objective(clip_low=0.2, clip_high=0.3).loss(terms)
    assert loss.item() == pytest.approx(-(1.3 - 0.8 - 1.5 + 0.5))
    loss.backward()
    assert terms.logprobs.grad.tolist() == pytest.approx([0.0, 0.0, 1.5, -0.5])


def test_the_entropy_bonus_lowers_the_loss():
    terms = token_terms([1.0, 1.0], [1.0, 1.0], [0.5, 1.5])
    assert Objective(entropy_weight=0.1).loss(terms).item() == pytest.approx(-2.0 - 0.1 * 2.0 / 2)


def test_importance_weights_scale_the_policy_loss_up_to_their_limit_and_leave_the_kl():
    def losses(weights: torch.Tensor | None, beta: float = 0.0) -> float:
        ones = torch.ones(2)
        terms = TokenTerms(
            logprobs=-ones,
            old_logprobs=-ones,
            reference_logprobs=-2 * ones,
            entropies=torch.zeros(2),
            advantages=torch.tensor([1.0, -3.0]),
            weights=ones,
            step_tokens=2,
            importance_weights=weights,
        )
        return float(Objective(beta=beta).loss(terms))

    sampled = torch.tensor([-1 - math.log(3), -1 + math.log(2)])  # trainer over sampler: 3, and one half
    ratios, weights = importance_weights(-torch.ones(2), sampled)
    assert ratios.tolist() == pytest.approx([3.0, 0.5])
    assert losses(weights) == pytest.approx(-1.0 * 2 + 3.0 * 0.5)
    assert losses(None) == pytest.approx(2.0)
    assert losses(weights, beta=0.1) - losses(weights) == pytest.approx(losses(None, beta=0.1) - losses(None))
