"""What drafts tokens, how many, and how drafts are verified."""
