"""How an answer is found in words that were said, without a model: question, passages, features, ranking."""
