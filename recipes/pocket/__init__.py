"""The training of the embedded model ``pocket``: ``python -m recipes.pocket.train``."""
