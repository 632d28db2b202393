"""Wire protocols: messages, and the order in which they are legal.

Handles: the shape of every message, the limits on its fields, which event is legal in which state.
Does not handle: sockets, clocks, tasks, queues, engine or session calls. Bytes come in and events go out, or the
other way round; whatever waits, sends or closes is the transport's duty.
"""
