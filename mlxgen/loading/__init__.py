"""From a name to mlx-lm's pair of model and tokenizer, with an error for each kind of failure."""
