"""From a model's name to a dspy.LM: names, endpoints, rate limits, usage."""
