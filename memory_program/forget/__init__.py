"""Forgetting a conversation: taking it out of everything that runs have left of it."""
