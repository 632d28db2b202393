"""A decoder that never comes to an end."""

import time

time.sleep(60)
