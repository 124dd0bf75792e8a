"""The host's half of a generation: its parts, the rules of acceptance, hooks and delivery."""
