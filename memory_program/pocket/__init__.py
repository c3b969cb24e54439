"""The embedded model ``pocket``: its weights, and the prompts that it was trained under."""
