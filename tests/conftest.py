"""What holds for every test."""

import signal

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as in a background job of a script
    signal.signal(signal.SIGINT, signal.default_int_handler)
