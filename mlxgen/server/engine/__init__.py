"""The engine behind the server: its thread, and what passes between that and the event loop."""
