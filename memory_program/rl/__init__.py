"""Reinforcement learning: episodes, rollouts, rewards, credit assignment, GRPO."""
