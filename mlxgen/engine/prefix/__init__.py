"""What is kept of finished prefixes, in memory and on disk."""
