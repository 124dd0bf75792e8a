"""What proposes tokens that may come next, how many, and how they are verified."""
