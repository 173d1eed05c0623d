"""Divide a bill among people."""


def split(total_cents, people):
    """Shares in cents, the larger ones first; together they are exactly `total_cents`."""
    if people < 1:
        raise ValueError("a bill needs at least one person")
    share, left_over = divmod(total_cents, people)
    return [share + 1 if seat > left_over else share for seat in range(people)]
