"""A chat format of a model: how its template renders, and what only the template may write."""
