"""Whole trainings: data, models, the loop of ``learning``, what comes out, and what it is worth."""
