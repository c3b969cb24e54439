"""How the program gets better: a model in this process that generates, and that can be trained."""
