"""JSON schemas as grammars, and the check of what a grammar cannot hold."""
