"""The device's half of a generation: its KV cache, alone and in a batch, and its memory."""
