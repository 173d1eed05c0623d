"""Content-addressed storage: what a growing value says twice is stored once, and a step costs what it appended.

`text`, `runs`, `encoder` and `decode` are pure; `codec` compresses; `rows` holds the SQL. A packed text is JSON in
which some strings are references:

    "~s<hash>"   a string of 512 bytes or more: the blob holds what stood between its quotes
    "~r<hash>"   in an array, a run of elements: the blob holds them, joined by commas, themselves packed
    "~~..."      a string that began with "~" by itself
    ["~l<depth>.<check>",<before>,<after>,...]   a growing list: see `encoder`

<hash> is the SHA-256 of the blob's bytes in base64, without its padding: 43 characters.
"""
