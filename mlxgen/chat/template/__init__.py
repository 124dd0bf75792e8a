"""From chat messages to tokens, by the model's template, which alone writes control tokens."""
