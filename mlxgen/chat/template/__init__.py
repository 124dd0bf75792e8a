"""Renders chat messages to tokens with the model's template, which alone writes control tokens."""
