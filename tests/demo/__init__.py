"""Tests of the bundled demo model and of the code that makes it."""
