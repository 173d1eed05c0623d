"""The durable engine: one workflow for root and child, made of steps whose input and output are saved."""
