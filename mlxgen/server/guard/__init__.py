"""Grammars are tried out in a process that may die of them, before this one compiles them."""
