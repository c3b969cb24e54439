"""The embedded model: a small causal language model that speaks the program's own prompts.

``tokenizer`` turns the rendered prompts into few tokens, ``model`` lays the network out, ``examples`` and
``worlds`` make training text from generated conversations, ``training`` is the recipe.
"""
