"""The KV of earlier prefixes, kept in memory and on disk."""
