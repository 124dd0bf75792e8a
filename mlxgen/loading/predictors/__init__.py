"""Multi-token-prediction heads: the weights beside a model's own that mlx-lm drops."""
