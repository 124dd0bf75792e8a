"""What can be asked of a generation. No MLX here."""
