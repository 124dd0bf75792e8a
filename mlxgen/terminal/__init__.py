"""The conversation in a terminal, and coloured text."""
