"""Bytes to msgspec structs and back; nothing else knows the shape of a frame."""
