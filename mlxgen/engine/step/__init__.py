"""One step: what runs, what is drawn, and what becomes of it."""
