"""The threads of the engine: one owns the device, takes commands, steps and hands over events; one encodes voices."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from engine.api import ClonedVoice, EngineStats, ReferenceAudio
from engine.command_sockets import CommandSockets
from engine.errors import EngineDead, EngineOverloaded
from engine.ipc import (
    CancelRequest,
    Command,
    EndRequestInput,
    PrefetchVoice,
    PushRequestText,
    ReportRequestPlayback,
    SubmitRequest,
)
from engine.process import collect_young, trim_heap, unfreeze_gc
from engine.runtime.request import Emitted

if TYPE_CHECKING:
    from engine.runtime.engine import Engine

MAX_WAITING_SAMPLES = 8
RETRY_MS = 2_000


class VoiceEncodingThread:
    """``encode`` is called on one thread, recording by recording; the thread starts with the first."""

    def __init__(self, encode: Callable[[ReferenceAudio], ClonedVoice]) -> None:
        self._encode = encode
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="voicewire-encode")
        self._unfinished: set[Future[ClonedVoice]] = set()

    def submit(self, sample: ReferenceAudio) -> Future[ClonedVoice]:
        """Queue a recording. Raises ``EngineOverloaded`` when too many wait already."""
        if len(self._unfinished) >= MAX_WAITING_SAMPLES:
            raise EngineOverloaded(f"{MAX_WAITING_SAMPLES} recordings wait to be encoded", RETRY_MS)
        future = self._executor.submit(self._encode, sample)
        self._unfinished.add(future)
        future.add_done_callback(self._unfinished.discard)
        return future

    def close(self) -> None:
        """Drop what waits; returns when the recording under way is done."""
        self._executor.shutdown(wait=True, cancel_futures=True)


MAX_WAIT_S = 60.0
# Of sockets for a command: a long message comes in parts, which do not wait for a step each.
MAX_READS = 16
# Once nothing has been asked for so long, free memory is handed back to the system.
IDLE_CLEANUP_AFTER_S = 0.5

log = logging.getLogger(__name__)


class EngineLoop:
    """Runs one ``Engine`` until ``stop`` or until it raises; ``deliver`` and ``died`` are called on its thread.

    The engine is made on that thread, too: what the math library compiles while it warms up, it keeps by thread.
    """

    engine: Engine
    # Connections of gateways, read within a step and between steps. There from ``start`` on.
    sockets: CommandSockets

    def __init__(
        self,
        make_engine: Callable[[], Engine],
        deliver: Callable[[list[Emitted]], None],
        died: Callable[[BaseException], None],
    ) -> None:
        self._make_engine, self.deliver, self.died = make_engine, deliver, died
        self._made: Future[None] = Future()
        self._starting = threading.Lock()
        self._commands: deque[Command] = deque()
        self._is_waiting = False
        self._stopping = False
        # What is sent now is read while the step waits for the device, behind that wait, or in the next step.
        self.is_stepping = False
        self._thread = threading.Thread(target=self._run, name="voicewire-engine", daemon=True)

    def start(self) -> None:
        """Returns when the engine stands; raises what kept it from that, ``EngineDead`` after ``stop``."""
        with self._starting:
            if self._stopping:
                raise EngineDead("the engine was stopped before it started")
            self.sockets = CommandSockets()
            self._thread.start()
        self._made.result()

    def send(self, command: Command) -> None:
        self._commands.append(command)
        if self._is_waiting:
            self.sockets.wake()

    def stop(self) -> None:
        """Ask the thread to end after the step in flight; returns at once."""
        with self._starting:
            self._stopping = True
            if self._thread.is_alive():
                self.sockets.wake()

    def join(self) -> None:
        if self._thread.is_alive():
            self._thread.join()

    def stats(self) -> EngineStats:
        return self.engine.stats()

    def _run(self) -> None:
        try:
            self._serve()
        finally:
            self.sockets.close()

    def _serve(self) -> None:
        try:
            unfreeze_gc()
            self.engine = self._make_engine()
        except BaseException as error:
            self._made.set_exception(error)
            return
        self.engine.hand_over = self._flush
        self.engine.read_command = self._read_command
        self._made.set_result(None)
        try:
            with self.engine.computing():
                while self._wait_for_work():
                    self.is_stepping = True
                    self.engine.run_step()
                    self._flush()
                    self.is_stepping = False
        except BaseException as error:
            log.exception("engine loop crashed")
            self.died(error)
        finally:
            self.engine.close()

    def _wait_for_work(self) -> bool:
        """Sleep while nothing can move; False once the loop is to end."""
        if not self._sleep(IDLE_CLEANUP_AFTER_S):
            # Takes milliseconds, which the next request would wait for right behind the last one.
            self.engine.pool.check_invariants()
            collect_young()
            trim_heap()
            self._sleep(None)
        return not self._stopping

    def _sleep(self, patience_s: float | None) -> bool:
        """Wait for work. Returns False after a time-out in which only a command could have brought some."""
        while not (self._stopping or self._commands or self.engine.has_work):
            wake_s = self.engine.next_wake_s()
            if wake_s is not None:
                self._wait(min(max(wake_s - self.engine.requests.clock(), 0.0), MAX_WAIT_S))
            elif not self._wait(patience_s):
                return False
        return True

    def _wait(self, max_wait_s: float | None) -> bool:
        """Read the sockets, and wait until there is something to read or to do. Returns False after a time-out."""
        # ``send`` looks at this after it has put a command there, which is looked for after this.
        self._is_waiting = True
        is_woken = bool(self._commands or self._stopping) or self.sockets.poll(max_wait_s)
        self._is_waiting = False
        return is_woken

    def _read_command(self) -> bool:
        """Carry out a command that is there or can be read. Returns False if there is none."""
        for _ in range(MAX_READS):
            if self._commands or not self.sockets.poll(0.0):
                break
        return self._process_next_command()

    def _process_next_command(self) -> bool:
        """Carry out a command. Returns False if there is none."""
        if not self._commands:
            return False
        command = self._commands.popleft()
        try:
            self._process_command(command)
        except Exception as error:
            log.exception("engine command failed: %s", type(command).__name__)
            self._fail(command, error)
        return True

    def _fail(self, command: Command, error: Exception) -> None:
        """A bad command costs the request it speaks of, and no other."""
        request = self.engine.requests.active.get(getattr(command, "epoch", 0))
        if request is not None:
            self.engine.requests.fail(request, error)

    def _process_command(self, command: Command) -> None:
        match command:
            case SubmitRequest(epoch, request):
                self.engine.requests.submit(request, epoch)
            case PushRequestText(epoch, text):
                self.engine.requests.push_text(epoch, text)
            case EndRequestInput(epoch):
                self.engine.requests.end_input(epoch)
            case ReportRequestPlayback(epoch, played_samples):
                self.engine.requests.report_playback(epoch, played_samples)
            case CancelRequest(epoch):
                self.engine.requests.cancel(epoch)
            case PrefetchVoice(voice):
                self.engine.prefetch(voice)

    def _flush(self) -> None:
        events, self.engine.requests.events = self.engine.requests.events, []
        if events:
            self.deliver(events)
