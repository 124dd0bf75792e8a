"""OpenAI's Responses API: bodies -> what they mean, the events of a chat -> JSON."""
