"""From chat messages to tokens, by the model's template; only it writes control tokens."""
