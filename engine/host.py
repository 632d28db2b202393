"""The engine in a process of its own: one loop, and a socket on which gateways send commands and get events.

Run as ``python -m engine.host`` by ``engine.child``; settings arrive as JSON on the command line, and the process ends
when its standard input closes, so that it never outlives its parent. ``engine.standalone`` runs one without a parent.
PCM travels behind the messages: a socket moves the 7.7 kB of a frame in tens of microseconds, and nothing has to be
freed when either side dies.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from engine.address import EngineAddress
from engine.api import ClonedVoice, EngineInfo, FinishReason, ReferenceAudio, RequestFinished, SpeechChunk
from engine.config import EngineConfig, speech_options
from engine.errors import EngineError, InvalidRequest
from engine.gateway_connection import READ_AHEAD_BYTES, GatewayConnection, MessageSplitter, read_messages
from engine.ipc import (
    PROGRESS,
    READY,
    STATS_EVERY_S,
    CancelEncodeVoice,
    CancelRequest,
    Command,
    DrainMessage,
    EncodeVoice,
    HelloMessage,
    IpcError,
    PrefetchVoice,
    RequestCommand,
    StatsMessage,
    SubmitRequest,
    VoiceEncoded,
    decode_command,
    encode,
    pack_events,
)
from engine.listener import EngineListener
from engine.loop import EngineLoop, VoiceEncodingThread
from engine.runtime.request import Emitted, RequestReleased
from engine.tls_socket import ByteSocket
from engine.validation import check_request, check_sample, check_sample_size

if TYPE_CHECKING:
    from engine.runtime.engine import Engine

log = logging.getLogger(__name__)

# A gateway's own epochs fill the low bits; its number stands above them.
EPOCH_BITS = 40
# Connections; another one is closed.
MAX_GATEWAYS = 1024
# A drained engine ends once it has been idle for so long: a gateway may have sent a request before it knew.
DRAIN_SETTLE_S = 0.5
DRAIN_POLL_S = 0.05
MAX_READ_PAUSE_S = 0.01
# What the engine's thread makes must not wait for the writing thread's turn: Python's own 5 ms are half a step.
SWITCH_INTERVAL_S = 0.0005


class EngineHost:
    """Routes commands in and events out by the number in the high bits of an epoch."""

    def __init__(
        self,
        make_engine: Callable[[], Engine],
        info: EngineInfo,
        config: EngineConfig,
        encode_voice: Callable[[ReferenceAudio], ClonedVoice] | None = None,
        on_exit: Callable[[BaseException], None] | None = None,
        fingerprint: str = "",
    ) -> None:
        self.encoding = VoiceEncodingThread(partial(encode_checked, info, encode_voice)) if encode_voice else None
        self.info, self.config = info, config
        self.hello = encode(HelloMessage(info, fingerprint=fingerprint, options=speech_options(config)))
        self.gateways: dict[int, GatewayConnection] = {}
        self.numbers = itertools.count(1)
        self.on_exit = on_exit or exit_process
        self._ended = threading.Event()
        # Held while a gateway is added with its reader, so that the end finds started readers only.
        self._attaching = threading.Lock()
        self.is_draining = False
        self.loop = EngineLoop(make_engine, self.deliver, self.on_engine_exit)

    def deliver(self, events: list[Emitted]) -> None:
        """Called on the engine's thread."""
        by_gateway: dict[int, list[Emitted]] = {}
        for epoch, event in events:
            number, own = epoch >> EPOCH_BITS, epoch & ((1 << EPOCH_BITS) - 1)
            by_gateway.setdefault(number, []).append((own, event))
            gateway = self.gateways.get(number)
            if gateway and isinstance(event, RequestReleased):
                gateway.active.discard(own)
        for number, own_events in by_gateway.items():
            if gateway := self.gateways.get(number):
                gateway.send(*pack_events(own_events), at_once=self._holds_first_chunk(own_events))

    def _holds_first_chunk(self, events: list[Emitted]) -> bool:
        """Return whether a listener waits for its first audio, which is to be sent at once."""
        if not self.config.send_first_chunks_at_once:
            return False
        return any(isinstance(event, SpeechChunk) and event.timings is not None for _, event in events)

    def on_engine_exit(self, error: BaseException) -> None:
        """Called on the engine's thread."""
        self.on_exit(error)
        with self._attaching:
            self.close_gateways()
            self._end_gateways()

    def _end_gateways(self) -> None:
        """Forget those that the engine's thread has read."""
        for gateway in list(self.gateways.values()):
            if gateway.reading is None:
                self._end_gateway(gateway)

    def close_gateways(self) -> None:
        self._ended.set()
        for gateway in list(self.gateways.values()):
            gateway.close()

    def start(self) -> None:
        """Returns when the engine stands."""
        self.loop.start()

    def stop(self) -> None:
        """End the engine and its connections; returns when the step and the encoding in flight are done."""
        with self._attaching:  # from here on no gateway is added to what the loop reads
            self._ended.set()
        self.loop.stop()
        with self._attaching:
            readers = [gateway.reading for gateway in list(self.gateways.values())]
            self.close_gateways()
        for reader in filter(None, readers):  # the last to queue recordings
            reader.join()
        self.loop.join()
        with self._attaching:
            self._end_gateways()
        if self.encoding is not None:
            self.encoding.close()

    def serve(self, listener: EngineListener) -> None:
        """Serve gateways until the listener is closed."""
        reporting = threading.Thread(target=self._report_stats, name="voicewire-stats", daemon=True)
        reporting.start()
        listener.serve(self.attach)
        reporting.join()

    def drain(self, timeout_s: float) -> None:
        """Ask all gateways to move their requests; returns when none is left, or after the timeout."""
        self.is_draining = True
        message = encode(DrainMessage())
        for gateway in list(self.gateways.values()):
            gateway.send(message)
        now_s = idle_since_s = time.monotonic()
        deadline_s = now_s + timeout_s
        while now_s < min(deadline_s, idle_since_s + DRAIN_SETTLE_S):
            time.sleep(DRAIN_POLL_S)
            now_s = time.monotonic()
            if not all(gateway.is_idle for gateway in list(self.gateways.values())):
                idle_since_s = now_s

    def attach(self, connection: ByteSocket) -> None:
        """Serve a gateway: on the engine's thread, or one behind TLS on a thread of its own."""
        if len(self.gateways) >= MAX_GATEWAYS:
            log.warning("a gateway was closed: %d are connected", MAX_GATEWAYS)
            connection.close()
            return
        gateway = GatewayConnection(next(self.numbers), connection)
        with self._attaching:
            gateway.send(self.hello)
            self.gateways[gateway.number] = gateway
            if self.is_draining:
                gateway.send(encode(DrainMessage()))
            if self._ended.is_set():
                self._end_gateway(gateway)
            elif isinstance(connection, socket.socket) and self.config.commands_on_engine_thread:
                self.loop.sockets.add(connection, partial(self._read_gateway, gateway, connection, MessageSplitter()))
            else:
                gateway.reading = threading.Thread(
                    target=self._serve_gateway, args=(gateway,), name="voicewire-gateway-read", daemon=True
                )
                gateway.reading.start()

    def _read_gateway(self, gateway: GatewayConnection, connection: socket.socket, splitter: MessageSplitter) -> None:
        """Called on the engine's thread when something has come."""
        try:
            part = connection.recv(READ_AHEAD_BYTES, socket.MSG_DONTWAIT)
            for payload in splitter.push(part):
                self._execute_command(gateway, decode_command(payload))
            is_open = bool(part)
        except BlockingIOError:
            return
        except Exception as error:
            log_gateway_error(gateway.number, error)
            is_open = False
        if not is_open:
            self.loop.sockets.remove(connection)
            self._end_gateway(gateway)

    def _serve_gateway(self, gateway: GatewayConnection) -> None:
        try:
            for messages in read_messages(gateway.connection):
                for payload in messages:
                    self._execute_command(gateway, decode_command(payload))
                if messages and (pause_s := self._read_pause_s):
                    time.sleep(pause_s)
        except Exception as error:
            log_gateway_error(gateway.number, error)
        finally:
            self._end_gateway(gateway)

    def _end_gateway(self, gateway: GatewayConnection) -> None:
        """Forget a gateway that has left, and what it asked for."""
        self.gateways.pop(gateway.number, None)
        gateway.close_when_sent()
        for encoding in list(gateway.encodings.values()):
            encoding.cancel()
        for epoch in list(gateway.active):
            self.loop.send(CancelRequest(gateway.number << EPOCH_BITS | epoch))
        gateway.connection.close()

    @property
    def _read_pause_s(self) -> float:
        """Commands are read once a step, and for each reading the engine's thread has to stand back."""
        reads_per_step = self.config.command_reads_per_step
        if not reads_per_step or not self.loop.is_stepping:
            return 0.0
        return min(self.loop.engine.times.last_s / reads_per_step, MAX_READ_PAUSE_S)

    def _execute_command(self, gateway: GatewayConnection, command: Command) -> None:
        match command:
            case PrefetchVoice():
                self.loop.send(command)
            case EncodeVoice():
                self._encode(gateway, command)
            case CancelEncodeVoice(number):
                if encoding := gateway.encodings.get(number):
                    encoding.cancel()
            case _:
                self._execute_request_command(gateway, command)

    def _execute_request_command(self, gateway: GatewayConnection, command: RequestCommand) -> None:
        if not 0 < command.epoch < 1 << EPOCH_BITS:
            raise IpcError(f"epoch is {command.epoch}; it must lie in 1..{(1 << EPOCH_BITS) - 1}")
        if isinstance(command, SubmitRequest) and not self._validate_request(gateway, command):
            return
        self.loop.send(msgspec.structs.replace(command, epoch=gateway.number << EPOCH_BITS | command.epoch))

    def _validate_request(self, gateway: GatewayConnection, command: SubmitRequest) -> bool:
        """Check a request, here and nowhere else; a bad one ends with its terminal event."""
        if command.epoch in gateway.active:
            raise IpcError(f"epoch {command.epoch} is in use")
        request = command.request
        try:
            check_request(request, self.info, self.config.max_text_chars)
        except Exception as error:
            described = error if isinstance(error, EngineError) else EngineError(type(error).__name__)
            if described is not error:
                log_internal_error("checking a request failed", error)
            end = RequestFinished(request.request_id, FinishReason.ERROR, error=described.info)
            gateway.send(*pack_events([(command.epoch, end), (command.epoch, RequestReleased(request.request_id))]))
            return False
        gateway.active.add(command.epoch)
        return True

    def _encode(self, gateway: GatewayConnection, command: EncodeVoice) -> None:
        """Send the answer from the encoding thread; it is dropped if the gateway has left."""

        def answer(future: Future[ClonedVoice]) -> None:
            gateway.encodings.pop(command.number, None)
            if not future.cancelled():
                gateway.send(encode(encoding_result(command.number, future)))

        try:
            if self.encoding is None:
                raise InvalidRequest("no encoders are loaded", "voice")
            check_sample_size(command.sample, self.info)  # before it takes a place in the queue
            future = gateway.encodings[command.number] = self.encoding.submit(command.sample)
            future.add_done_callback(answer)
        except EngineError as error:
            gateway.send(encode(encoding_error(command.number, error)))

    def _report_stats(self) -> None:
        while not self._ended.wait(STATS_EVERY_S):
            message = encode(StatsMessage(self.loop.stats()))
            for gateway in list(self.gateways.values()):
                gateway.send(message)


def exit_process(error: BaseException) -> None:
    """End the process after the loop died; the parent starts a new one."""
    os._exit(70)


def encode_checked(
    info: EngineInfo, encode_voice: Callable[[ReferenceAudio], ClonedVoice], sample: ReferenceAudio
) -> ClonedVoice:
    """Check a recording where it is encoded: that takes milliseconds. Raises ``EngineError``."""
    check_sample(sample, info)
    return encode_voice(sample)


def encoding_result(number: int, future: Future[ClonedVoice]) -> VoiceEncoded:
    error = future.exception()
    return VoiceEncoded(number, future.result()) if error is None else encoding_error(number, error)


def encoding_error(number: int, error: BaseException) -> VoiceEncoded:
    """Describe an unexpected exception by its type alone."""
    if not isinstance(error, EngineError):
        log_internal_error("voice encoding failed", error)
        error = EngineError(f"encoding failed: {type(error).__name__}")
    return VoiceEncoded(number, error=error.info)


def log_gateway_error(number: int, error: Exception) -> None:
    """Log why a gateway's connection ends: it broke, what came was invalid, or the engine has a fault."""
    if isinstance(error, OSError | msgspec.DecodeError | IpcError):
        log.warning("gateway %d: %s", number, error)
    else:
        log_internal_error(f"reading gateway {number} failed", error)


def log_internal_error(event: str, error: BaseException) -> None:
    """Log type and frames of an exception that nothing raises on purpose."""
    # Its message may quote a client, and the log of an engine process is not redacted.
    log.error("%s: %s\n%s", event, type(error).__name__, "".join(traceback.format_tb(error.__traceback__)).rstrip())


class ProgressHandler(logging.Handler):
    """Loading progress goes to the parent process, line by line, and not here."""

    def __init__(self) -> None:
        super().__init__()
        logging.getLogger("engine.weights").propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        print(PROGRESS + record.getMessage(), flush=True)


def load_host(settings: Mapping[str, Any], config: EngineConfig) -> EngineHost:
    """Load the checkpoint. Raises ``EngineError``."""
    from engine.weights.hub import check_folder, resolve_folder

    folder = resolve_folder(Path(settings["folder"]))
    check_folder(folder)  # torch is imported next, which takes a second
    from engine.load import load_engine

    loaded = load_engine(folder, config, settings["device"], settings["dtype"], settings["is_embedded"])
    make_engine, encode_voice = loaded.make_engine, loaded.encode_voice
    return EngineHost(make_engine, loaded.info, loaded.config, encode_voice, fingerprint=loaded.fingerprint)


def exit_with_parent() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os._exit(0)


def main() -> None:
    logging.basicConfig(level=logging.WARNING)
    logging.getLogger("engine.weights").setLevel(logging.INFO)
    logging.getLogger("engine.weights").addHandler(ProgressHandler())
    for number in (signal.SIGINT, signal.SIGTERM):  # are for the server, which first lets what is spoken end
        signal.signal(number, signal.SIG_IGN)
    settings = json.loads(sys.argv[1])
    config = msgspec.convert(settings["config"], EngineConfig)
    os.nice(config.process_nice)  # before there is a second thread: it is of this one, and of those that it makes
    threading.Thread(target=exit_with_parent, name="voicewire-parent-watch", daemon=True).start()
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        host = load_host(settings, config)
        listener = EngineListener(EngineAddress(settings["socket"]))
    except EngineError as error:
        print(error, flush=True)
        sys.exit(1)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    host.start()
    print(READY, flush=True)
    host.serve(listener)


if __name__ == "__main__":
    main()
