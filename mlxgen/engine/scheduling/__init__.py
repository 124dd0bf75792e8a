"""Who runs, who waits, and with how much memory."""
