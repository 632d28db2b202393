"""The conversation of OpenAI Realtime: its items in order, and the replies that are being spoken."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from realtime.errors import RemoteProtocolError
from realtime.protocol.agent_turns import ChatTurn, ToolCall
from realtime.protocol.dialects.openai_replies import OpenAIResponse

if TYPE_CHECKING:
    from realtime.protocol.dialects.openai_common import OpenAIItem

MAX_ITEMS = 256
# Maximum of parts of an item; more are refused.
MAX_PARTS = 256
# Maximum of characters of all items; beyond it the oldest items are dropped.
MAX_CHARS = 200_000
MAX_TOTAL_PARTS = 2_048
# Fields of items that are no messages.
CALL_FIELDS = {"function_call": ("call_id", "name", "arguments"), "function_call_output": ("call_id", "output")}


def check_parts(item: OpenAIItem, field: str) -> None:
    """Check the number of parts of an item; raises ``RemoteProtocolError``."""
    if len(item.content) > MAX_PARTS:
        message = f"{field} has {len(item.content)} parts, at most {MAX_PARTS}"
        raise RemoteProtocolError("invalid_event", message, field)


def check_items(items: list[OpenAIItem], field: str) -> None:
    """Check the number of items and of their parts; raises ``RemoteProtocolError``."""
    if len(items) > MAX_ITEMS:
        raise RemoteProtocolError("invalid_event", f"{field} has {len(items)} items, at most {MAX_ITEMS}", field)
    for item in items:
        check_parts(item, f"{field}.content")


@dataclass(frozen=True, slots=True)
class Size:
    """Size of an item, or of all items."""

    num_chars: int
    num_parts: int

    @classmethod
    def from_item(cls, item: dict[str, Any]) -> Size:
        parts = item.get("content", ())
        texts = (value for part in (item, *parts) for value in part.values() if isinstance(value, str))
        return cls(sum(map(len, texts)), len(parts))

    @property
    def is_too_large(self) -> bool:
        return self.num_chars > MAX_CHARS or self.num_parts > MAX_TOTAL_PARTS

    def plus(self, other: Size) -> Size:
        return Size(self.num_chars + other.num_chars, self.num_parts + other.num_parts)

    def minus(self, other: Size) -> Size:
        return Size(self.num_chars - other.num_chars, self.num_parts - other.num_parts)


class OpenAIConversation:
    def __init__(self, seed: str) -> None:
        self._seed = seed[:16]
        self._items: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._sizes: dict[str, Size] = {}
        self._total = Size(0, 0)
        # The user's, since the last response.
        self._unspoken: dict[str, str] = {}
        self._replies: dict[str, OpenAIResponse] = {}
        # Contexts by the ids of items that are replies.
        self._contexts: dict[str, str] = {}
        self._num_ids = 0

    @property
    def speaking(self) -> OpenAIResponse | None:
        """The reply that the conversation waits for."""
        return next((reply for reply in self._replies.values() if reply.in_conversation), None)

    @property
    def open_contexts(self) -> Iterable[str]:
        return self._replies

    def reply(self, context: str) -> OpenAIResponse | None:
        return self._replies.get(context)

    def replies(self, response_id: str | None) -> list[OpenAIResponse]:
        """The active one of that id; without an id, that of the conversation."""
        if response_id is None:
            return [] if self.speaking is None else [self.speaking]
        return [reply for reply in self._replies.values() if reply.response_id == response_id]

    def add(self, item: OpenAIItem, previous_item_id: str | None) -> tuple[str, str | None]:
        """Add an item and return its id and that of the item before; raises ``RemoteProtocolError``."""
        item_id = item.id or self.new_id("item")
        if item_id in self._items:
            raise RemoteProtocolError("item_already_exists", f"item {item_id[:40]!r} exists already", "item.id")
        if previous_item_id not in (None, "root"):
            self.item(previous_item_id or "")
        check_parts(item, "item.content")
        before = self._evict_old_items(item_id, _to_stored(item, item_id))
        if item.role == "user" and item.type == "message":
            self._unspoken[item_id] = item.text
        fields = {None: before, "root": None}
        return item_id, fields.get(previous_item_id, previous_item_id)

    def add_spoken(self, item_id: str) -> str | None:
        """Add the item of a spoken turn, without its transcript, and return that of the item before."""
        content = [{"type": "input_audio", "transcript": None}]
        about = {"id": item_id, "object": "realtime.item", "type": "message", "status": "completed"}
        return self._evict_old_items(item_id, {**about, "role": "user", "content": content})

    def add_transcript(self, item_id: str, text: str) -> None:
        """Set the transcript of a spoken turn, unless its item was deleted."""
        if item_id in self._items:
            self._store(item_id, self._items[item_id] | {"content": [{"type": "input_audio", "transcript": text}]})
            if text:
                self._unspoken[item_id] = text

    def add_call(self, item: dict[str, Any]) -> str | None:
        """Add the item of a function call and return that of the item before."""
        return self._evict_old_items(item["id"], item)

    def chat_turns(self) -> tuple[ChatTurn, ...]:
        """Return what the language model receives: of replies what was heard."""
        return tuple(turn for item in self._items.values() if (turn := _to_turn(item)) is not None)

    def item(self, item_id: str) -> dict[str, Any]:
        """Return an item; raises ``RemoteProtocolError`` if it does not exist."""
        if item_id not in self._items:
            raise RemoteProtocolError("item_not_found", f"item {item_id[:40]!r} is unknown", "item_id")
        return self._items[item_id]

    def delete(self, item_id: str) -> None:
        del self._items[item_id]
        self._total = self._total.minus(self._sizes.pop(item_id))
        self._unspoken.pop(item_id, None)
        self._contexts.pop(item_id, None)

    def pending_text(self, clear: bool) -> list[str]:
        """Return the user's texts since the last response."""
        texts = list(self._unspoken.values())
        if clear:
            self._unspoken.clear()
        return texts

    def begin(self, in_conversation: bool, metadata: dict[str, Any] | None) -> OpenAIResponse:
        context = self.new_id("ctx")
        reply = OpenAIResponse(context, self.new_id("resp"), self.new_id("item"), in_conversation, metadata)
        self._replies[context] = reply
        return reply

    def add_reply(self, reply: OpenAIResponse) -> str | None:
        self._contexts[reply.item_id] = reply.context
        return self._evict_old_items(reply.item_id, reply.item("in_progress"))

    def end(self, reply: OpenAIResponse) -> None:
        del self._replies[reply.context]

    def update(self, reply: OpenAIResponse, item: dict[str, Any]) -> None:
        if reply.item_id in self._items:
            self._store(reply.item_id, item)

    def context_of(self, item_id: str) -> str | None:
        return self._contexts.get(item_id)

    def record_heard(self, context: str, heard: str) -> None:
        for item_id, other in self._contexts.items():
            if other == context and item_id in self._items:
                content = [{"type": "output_audio", "transcript": heard}]
                self._store(item_id, {**self._items[item_id], "content": content})

    def _evict_old_items(self, item_id: str, item: dict[str, Any]) -> str | None:
        before = next(reversed(self._items), None)
        self._store(item_id, item)
        while len(self._items) > MAX_ITEMS or (len(self._items) > 1 and self._total.is_too_large):
            self.delete(next(iter(self._items)))
        return before

    def _store(self, item_id: str, item: dict[str, Any]) -> None:
        size = Size.from_item(item)
        self._total = self._total.minus(self._sizes.get(item_id, Size(0, 0))).plus(size)
        self._sizes[item_id] = size
        self._items[item_id] = item

    def new_id(self, kind: str) -> str:
        self._num_ids += 1
        return f"{kind}_{self._seed}{self._num_ids:06}"


def _to_stored(item: OpenAIItem, item_id: str) -> dict[str, Any]:
    about = {"id": item_id, "object": "realtime.item", "type": item.type, "status": "completed"}
    if item.type in CALL_FIELDS:
        return about | {name: getattr(item, name) or "" for name in CALL_FIELDS[item.type]}
    content = [{"type": part.type, "text": part.text} for part in item.content]
    return {**about, "role": item.role, "content": content}


def _to_turn(item: dict[str, Any]) -> ChatTurn | None:
    match item:
        case {"type": "function_call"}:
            return ChatTurn("assistant", call=ToolCall(item["call_id"], item["name"], item["arguments"]))
        case {"type": "function_call_output"}:
            return ChatTurn("tool", item["output"], call_id=item["call_id"])
        case {"type": "message", "role": "system" | "user" | "assistant" as role, "content": content}:
            texts = (part.get("text") or part.get("transcript") or "" for part in content)
            text = " ".join(filter(None, map(str.strip, texts)))
            return ChatTurn(role, text) if text else None
    return None
