"""The policy update: objective, packing, gradient step."""
