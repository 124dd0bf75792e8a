"""JSON schemas as grammars, and the check of keywords that a grammar cannot enforce."""
