"""The models behind the server: which there are, which of them are loaded, and who may go."""
