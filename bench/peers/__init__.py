"""One piece of work for several durable engines, each in a process of its own that prints one JSON object.

The work: so many steps, each of which receives a growing context, appends a message of about 600 B of JSON to it, and
is durable before the next one begins. `bench.durable` runs them in turns, and installs the others into an environment
of their own.
"""
