"""Power switches of machines, and the file that lists them."""
