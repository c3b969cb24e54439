"""Answers copied from turns: candidate spans and dates, and the linear models that rank them."""
