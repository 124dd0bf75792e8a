"""One step: what runs, what is drawn, and what is accepted."""
