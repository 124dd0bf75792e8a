"""The operator's own programs, controllers and hooks: their names, arguments and threads."""
