"""Work in a child process that has limits: when it crashes, this process goes on."""

from __future__ import annotations

import errno
import faulthandler
import json
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import current_process, get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Literal, NamedTuple, TypeAlias

from headtail.data.processes import leave_with_parent, sigint_blocked, without_main
from headtail.data.progress import Progress
from headtail.errors import HeadtailError, PythonName, Sentence, Setting, Word

Work: TypeAlias = Callable[[Progress], object]
"""What a child does: it reports its progress, and what it returns is dropped."""
LONGEST_MESSAGE = 1 << 20
"""Bytes of a message; a child that sends more is out of order."""
REPORT_EVERY = 0.05
"""Seconds between two reports of progress."""
LONGEST_TEXT = 1 << 14
"""Characters of a part of a sentence, and of a traceback."""
LOOK_EVERY = 0.1
"""Seconds between two looks at the clock."""
PATIENCE = 2.0
"""Seconds that a child gets to remove what it has half written."""


class Limits(NamedTuple):
    """What a child may take.

    Attributes:
        memory: bytes, beyond those that it starts with; only Linux has such a limit.
        seconds: on the clock.
    """

    memory: int
    seconds: float


class Failure(NamedTuple):
    """Why a child did not do its work.

    Attributes:
        reason: `error`, a sentence of headtail; `exception`, any other; `memory` or `seconds`, a
            limit; `died`, with the name of the signal or with the exit status.
        about: the sentence, or what is known.
        traceback: of an exception.
    """

    reason: Literal["error", "exception", "memory", "seconds", "died"]
    about: Sentence
    traceback: str = ""


def run(work: Work, limits: Limits, progress: Progress | None = None) -> Failure | None:
    """Do `work` in a child process; None if it succeeded.

    The child is forked where that is safe, on Linux: it starts in milliseconds and has imported
    what it needs. Messages from it are JSON, which cannot run code here: the file that it reads may
    have corrupted its memory. Ctrl-C reaches this process only, which then ends the child.

    Args:
        work: a function, which other systems than Linux send to the child.
        limits: of the child.
        progress: called here with what the child reports.

    >>> run(lambda progress: progress("done", 1.0), Limits(1 << 30, 10.0), print)
    done 1.0
    >>> run(lambda progress: os.abort(), Limits(1 << 30, 10.0)).about
    'SIGABRT'
    """
    context = get_context("fork" if sys.platform == "linux" else "spawn")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_begin, args=(work, limits.memory, sender), daemon=False)
    with sigint_blocked(), without_main(), _may_have_children(), warnings.catch_warnings():
        # Threads and fork: of what other threads may have locked, the child uses nothing.
        warnings.simplefilter("ignore")
        child.start()
    try:
        sender.close()
        return _follow(child, receiver, limits, progress)
    finally:
        _end(child)
        receiver.close()


def _follow(
    child: BaseProcess, receiver: Connection, limits: Limits, progress: Progress | None
) -> Failure | None:
    """Wait for the child's last message, its death, or the end of its time."""
    until = time.monotonic() + limits.seconds
    while True:
        # Not its sentinel alone: processes that it started may hold the other end.
        wait([receiver, child.sentinel], LOOK_EVERY)
        alive = child.is_alive()
        while receiver.poll():
            try:
                message = json.loads(receiver.recv_bytes(LONGEST_MESSAGE))
                if "progress" not in message:
                    return _last_words(message)
                what, share = message["progress"]
                what, share = str(what), float(share)
            except (EOFError, OSError, ValueError, KeyError, TypeError):
                # The pipe is closed, or the child is out of order.
                child.join(PATIENCE)
                return _death(child)
            if progress is not None:
                progress(what, share)
        if not alive:
            return _death(child)
        if time.monotonic() > until:
            return Failure("seconds", Sentence(f"{limits.seconds:g}"))


def _death(child: BaseProcess) -> Failure:
    code = child.exitcode
    if code is not None and code < 0:
        with suppress(ValueError):
            return Failure("died", Sentence(signal.Signals(-code).name))
    return Failure("died", Sentence(f"exit status {code}" if code else "without a message"))


def _end(child: BaseProcess) -> None:
    """Ask the child to end; kill it if it does not."""
    if child.is_alive():
        child.terminate()
        child.join(PATIENCE)
    if child.is_alive():
        child.kill()
    child.join()
    child.close()


@contextmanager
def _may_have_children() -> Iterator[None]:
    """Daemonic processes may start none, because nothing would end them: `run` does."""
    config: dict[str, Any] = getattr(current_process(), "_config", {})
    before = config.get("daemon", False)
    config["daemon"] = False
    try:
        yield
    finally:
        config["daemon"] = before


def _begin(work: Work, memory: int, sender: Connection) -> None:
    """What the child does, and how it ends: without the clean-up of a process that is not its."""
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        threading.Thread(target=leave_with_parent, daemon=True).start()
        _silence()
        _limit(memory)
        signal.signal(signal.SIGTERM, _stop)
        message = _outcome(work, _Reports(sender))
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sender.send_bytes(json.dumps(message).encode())
        status = 0
    finally:
        os._exit(status)


def _stop(*_: object) -> None:
    raise KeyboardInterrupt


def _silence() -> None:
    """What libraries write as they abort is not for the user; the parent says one sentence."""
    faulthandler.disable()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)


def _limit(memory: int) -> None:
    if "torch" in sys.modules:
        # The threads that share a sum are not copied by a fork: with several, it would wait.
        sys.modules["torch"].set_num_threads(1)
    if sys.platform != "linux":
        return
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with open("/proc/self/status", encoding="utf-8") as lines:
        held = next(line for line in lines if line.startswith("VmData:"))
    most = (int(held.split()[1]) << 10) + memory
    # Of data, not of addresses: allocators and CUDA reserve far more than they use.
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if soft == resource.RLIM_INFINITY or most < soft:
        resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


class _Reports:
    """Sends progress to the parent, not too often."""

    def __init__(self, sender: Connection) -> None:
        self.sender = sender
        self.next = 0.0

    def __call__(self, what: str, share: float) -> None:
        now = time.monotonic()
        if now >= self.next or share >= 1:
            self.next = now + REPORT_EVERY
            self.sender.send_bytes(json.dumps({"progress": [what, share]}).encode())


def _outcome(work: Work, progress: Progress) -> dict[str, Any]:
    """The last message of the child: success, or why there is none."""
    try:
        work(progress)
    except HeadtailError as error:
        # A reader may have taken an allocation that failed for a damaged file.
        if _is_memory(error.__cause__):
            return {"memory": True}
        return {"error": [_as_json(part) for part in error.sentence.parts]}
    except BaseException as error:
        if _is_memory(error):
            return {"memory": True}
        name = type(error).__name__
        why = " ".join(str(error).split())[:200].rstrip(".")
        trace = traceback.format_exc()[-LONGEST_TEXT:]
        return {"exception": f"{name}: {why}" if why else name, "traceback": trace}
    return {"done": True}


def _is_memory(error: BaseException | None) -> bool:
    """Whether an error says that memory could not be had, in the words of one of the libraries."""
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return True
    # torch has no class of its own for it, nor has a thread that cannot be started
    words = ("can't allocate memory", "can't start new thread", "bad_alloc")
    return isinstance(error, RuntimeError) and any(word in str(error) for word in words)


def _last_words(message: dict[str, Any]) -> Failure | None:
    if "error" in message:
        return Failure("error", Sentence(*(_from_json(part) for part in message["error"])))
    if "memory" in message:
        return Failure("memory", Sentence())
    if "exception" in message:
        return Failure("exception", Sentence(str(message["exception"])), str(message["traceback"]))
    if "done" in message:
        return None
    raise ValueError("neither a failure nor success")


def _as_json(part: str | Word) -> Any:
    if isinstance(part, Setting):
        plain = part.value is None or isinstance(part.value, str | int | float)
        return {"setting": part.name, "value": part.value if plain else str(part.value)}
    return {"name": part.name} if isinstance(part, PythonName) else part[:LONGEST_TEXT]


def _from_json(part: Any) -> str | Word:
    if isinstance(part, str):
        return part
    if "setting" in part:
        return Setting(str(part["setting"]), part["value"])
    return PythonName(str(part["name"]))
