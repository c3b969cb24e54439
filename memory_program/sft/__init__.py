"""Supervised fine-tuning: expert trajectories, synthetic questions, training, exports."""
