"""LoCoMo and its kin: the benchmark, which knows nothing of the program that it scores."""
