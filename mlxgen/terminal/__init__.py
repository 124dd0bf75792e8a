"""The conversation in a terminal, and text as a terminal shows it."""
