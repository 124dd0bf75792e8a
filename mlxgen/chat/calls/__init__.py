"""Tool calls: how models write them, how they are read as they grow, and how they are enforced."""
