"""The options of a generation. No MLX here."""
