import unittest

from splitbill import split


class SplitTest(unittest.TestCase):
    def test_an_even_bill_gives_equal_shares(self):
        shares = split(900, 3)
        assert shares == [300, 300, 300], shares

    def test_no_cent_is_lost(self):
        for people in range(1, 8):
            shares = split(1000, people)
            assert sum(shares) == 1000, f"{people} people pay {sum(shares)} of 1000 cents"

    def test_shares_differ_by_a_cent_at_most(self):
        shares = split(1000, 3)
        assert shares == [334, 333, 333], shares


if __name__ == "__main__":
    unittest.main()
