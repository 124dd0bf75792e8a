"""What comes and goes over a connection, whatever is asked for: connections, bodies, who may call,
and the bytes of answers and events."""
