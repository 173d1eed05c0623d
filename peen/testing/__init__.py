"""Fakes and faults that tests of Peen, and of programs built on it, may use."""
