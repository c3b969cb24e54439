"""LLM judge: rubrics, verdicts, and the judge's measured error rates."""
