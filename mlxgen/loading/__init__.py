"""From a name to the pair of model and tokenizer that mlx-lm makes, each failure named."""
