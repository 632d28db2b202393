"""Streamed answers of a language model: ``POST /v1/chat/completions`` of an OpenAI-compatible server."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import Struct

from realtime.agent.agent_file import AgentFile, AgentTool
from realtime.agent.backend import Backend, BackendFailed, as_json
from realtime.agent.thought_filter import ThoughtFilter
from realtime.integration_config import AgentSettings
from realtime.protocol.agent_turns import ChatTurn, StartAnswer, ToolCall

MAX_TOOL_NAME_CHARS = 128
MAX_CALL_ID_CHARS = 128


class _FunctionDelta(Struct):
    name: str | None = None
    arguments: str | None = None


class _CallDelta(Struct):
    index: int | None = None
    id: str | None = None
    function: _FunctionDelta | None = None


class _Delta(Struct):
    content: str | None = None
    tool_calls: list[_CallDelta] | None = None


class _Choice(Struct):
    delta: _Delta | None = None
    finish_reason: str | None = None


class _AnswerChunk(Struct):
    choices: list[_Choice] = []
    error: Any = None


@dataclass(slots=True)
class PartialCall:
    call_id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)
    num_chars: int = 0


class LanguageModel:
    def __init__(self, backend: Backend, settings: AgentSettings, file: AgentFile) -> None:
        self._backend, self._settings, self._file = backend, settings, file
        self._model = settings.llm_model

    async def aclose(self) -> None:
        await self._backend.aclose()

    async def check(self) -> None:
        """Check that the server can be reached, and find the model if none is configured. Raises ``BackendFailed``."""
        try:
            first = await self._backend.first_model()
        except BackendFailed as error:
            if self._model is None or error.may_retry:
                raise
        else:
            self._model = self._model or first

    async def answer(self, request: StartAnswer) -> AsyncGenerator[str | ToolCall, None]:
        """Give the answer as it comes: pieces of text, then calls of tools. Raises ``BackendFailed``.

        Until the first piece, what may succeed is tried again.
        """
        for num_left in range(self._settings.num_retries, -1, -1):
            has_begun = False
            try:
                async with aclosing(self._attempt(request)) as pieces:
                    async for piece in pieces:
                        has_begun = True
                        yield piece
                return
            except BackendFailed as error:
                if has_begun or not error.may_retry or not num_left:
                    raise
            await asyncio.sleep(self._settings.retry_pause_s)

    async def _attempt(self, request: StartAnswer) -> AsyncGenerator[str | ToolCall, None]:
        calls: dict[int, PartialCall] = {}
        thoughts = ThoughtFilter()
        num_chars, max_chars = 0, self._settings.max_answer_chars
        loop = asyncio.get_running_loop()
        end_s = loop.time() + self._settings.max_answer_s
        try:
            async with asyncio.timeout(self._settings.first_token_timeout_s) as deadline:
                body = self._body(request, await self._model_name())
                async with self._backend.post("/chat/completions", **as_json(body)) as pieces:
                    async for delta in self._deltas(pieces):
                        deadline.reschedule(min(loop.time() + self._settings.token_timeout_s, end_s))
                        for part in delta.tool_calls or ():
                            self._add_call(calls, part)
                        if text := thoughts.push(delta.content or "")[: max_chars - num_chars]:
                            num_chars += len(text)
                            yield text
                        if num_chars >= max_chars:
                            break
                if text := thoughts.finish()[: max_chars - num_chars]:
                    num_chars += len(text)
                    yield text
        except TimeoutError:
            raise self._backend.failed("did not answer in time") from None
        if not num_chars and not calls:
            raise self._backend.failed("gave an empty answer")
        for call in calls.values():
            yield ToolCall(call.call_id, call.name, "".join(call.arguments) or "{}")

    async def _model_name(self) -> str:
        if self._model is None:
            self._model = await self._backend.first_model()
        return self._model

    async def _deltas(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[_Delta]:
        """Read server-sent events up to ``[DONE]``, which some servers leave out."""
        is_finished = False
        async for line in self._backend.read_lines(pieces):
            data = line.removeprefix(b"data:").strip()
            if data == b"[DONE]":
                return
            if line.startswith(b"data:") and data:
                choice = self._read_chunk(data)
                is_finished = is_finished or choice.finish_reason is not None
                yield choice.delta or _Delta()
        if not is_finished:
            raise self._backend.failed("broke off its answer", may_retry=True)

    def _read_chunk(self, data: bytes) -> _Choice:
        try:
            chunk = msgspec.json.decode(data, type=_AnswerChunk, strict=False)
        except msgspec.DecodeError:
            raise self._backend.failed("sent what is no chat completion") from None
        if chunk.error is not None:
            raise self._backend.failed("reported an error in its answer", may_retry=True)
        return chunk.choices[0] if chunk.choices else _Choice()

    def _add_call(self, calls: dict[int, PartialCall], part: _CallDelta) -> None:
        settings, function = self._settings, part.function or _FunctionDelta()
        # Without an index a new id begins a new call.
        index = part.index if part.index is not None else len(calls) - (not part.id and bool(calls))
        call = calls.setdefault(index, PartialCall())
        if len(calls) > settings.max_tool_calls:
            raise self._backend.failed(f"called more than {settings.max_tool_calls} tools")
        call.call_id = (call.call_id or part.id or f"call_{index}")[:MAX_CALL_ID_CHARS]
        call.name = (call.name + (function.name or ""))[:MAX_TOOL_NAME_CHARS]
        arguments = function.arguments or ""
        call.arguments.append(arguments)
        call.num_chars += len(arguments)
        if call.num_chars > settings.max_argument_chars:
            raise self._backend.failed(f"sent tool arguments of more than {settings.max_argument_chars} characters")

    def _body(self, request: StartAnswer, model: str) -> dict[str, Any]:
        instructions = request.instructions or self._file.instructions
        turns = newest_turns(request.turns, self._settings.max_history_chars)
        # Templates of models demand that the user begins.
        opening = [*itertools.takewhile(lambda turn: turn.role == "assistant" and turn.call is None, turns)]
        system = "\n".join([instructions, *(f"You have said: {turn.text}" for turn in opening)])
        messages = [{"role": "system", "content": system}, *chat_messages(turns[len(opening) :])]
        body: dict[str, Any] = {"model": model, "stream": True, "messages": messages}
        tools = [*request.tools] or [*map(tool_schema, self._file.tools)]
        if tools and request.tool_choice != "none":  # some servers ignore that choice
            body |= {"tools": tools, "tool_choice": request.tool_choice}
        options = {"temperature": self._file.temperature, "max_tokens": self._file.max_tokens}
        return body | {name: value for name, value in options.items() if value is not None}


def tool_schema(tool: AgentTool) -> dict[str, Any]:
    parameters = tool.parameters or {"type": "object", "properties": {}}
    function = {"name": tool.name, "description": tool.description, "parameters": parameters}
    return {"type": "function", "function": function}


def newest_turns(turns: Iterable[ChatTurn], max_chars: int) -> list[ChatTurn]:
    """Return the newest turns up to a number of characters, the last one always."""
    chosen: list[ChatTurn] = []
    for turn in reversed([*turns]):
        max_chars -= len(turn.text) + (0 if turn.call is None else len(turn.call.arguments))
        if chosen and max_chars < 0:
            break
        chosen.append(turn)
    return chosen[::-1]


def chat_messages(turns: Iterable[ChatTurn]) -> Iterator[Mapping[str, Any]]:
    """Give turns as messages of a chat. Turns of one role are joined, because templates of models demand that roles
    alternate. A call without a result, and a result without a call, is left out, because servers refuse it.
    """
    turns = [*turns]
    results = {turn.call_id for turn in turns if turn.role == "tool"}
    calls = {turn.call.call_id for turn in turns if turn.call is not None}
    message: dict[str, Any] = {}
    for turn in turns:
        if (turn.call is not None and turn.call.call_id not in results) or (
            turn.role == "tool" and turn.call_id not in calls
        ):
            continue
        if message and (turn.role != message["role"] or turn.role == "tool"):
            yield message
            message = {}
        message = message or {"role": turn.role, "content": ""}
        _add_turn(message, turn)
    if message:
        yield message


def _add_turn(message: dict[str, Any], turn: ChatTurn) -> None:
    message["content"] = "\n".join(filter(None, (message["content"], turn.text)))
    if turn.role == "tool":
        message["tool_call_id"] = turn.call_id
    if turn.call is not None:
        function = {"name": turn.call.name, "arguments": turn.call.arguments}
        calls = message.setdefault("tool_calls", [])
        calls.append({"id": turn.call.call_id, "type": "function", "function": function})
