"""The vendors' wires, one sans-I/O codec each: their messages in and out, told in the words of ``base.py``.

A dialect owns no timer, queue or task, and knows no session: a new wire is its own file and a line in ``registry.py``.
"""
