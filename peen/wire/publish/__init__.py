"""The published protocol: everything in `protocol/`, made from the structs and tables of `peen.wire`.

`python -m peen.wire.publish protocol` writes the folder. The same input gives the same bytes.
"""
