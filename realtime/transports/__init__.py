"""Thin asyncio shells: bytes and sockets on one side, the bridge on the other."""
