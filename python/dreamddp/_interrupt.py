"""Makes Ctrl-C end a call that waits for other ranks.

Python runs signal handlers between two bytecodes of the main thread, so not while this thread waits inside the library.
But the interpreter immediately writes the number of each signal to the wakeup descriptor. A thread reads this number and
fails the waiting call; when the call returns, the interpreter raises KeyboardInterrupt.
"""
import os
import signal
import threading
import time

# Calls that return within this time do not fail: the program may catch KeyboardInterrupt and continue.
GRACE_S = 0.3

_lock = threading.Lock()
_watched = []  # contexts that the main thread opened
_wakeup = None


class _Wakeup:
    """The wakeup descriptor of this process, its reader, and the previous descriptor."""

    def __init__(self):
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.writer, False)
        self.previous = signal.set_wakeup_fd(self.writer, warn_on_full_buffer=False)
        threading.Thread(target=self.run, name="dreamddp-interrupt", daemon=True).start()

    def run(self):
        for signals in iter(lambda: os.read(self.reader, 64), b""):
            if self.previous >= 0:
                try:
                    os.write(self.previous, signals)
                except OSError:
                    pass  # its owner closed it, or its buffer is full
            if signal.SIGINT in signals:
                _interrupt()
        os.close(self.reader)

    def restore(self):
        """Restores the previous descriptor, unless another one was installed since, which may depend on this one."""
        current = signal.set_wakeup_fd(-1)
        if current == self.writer:
            signal.set_wakeup_fd(self.previous)
            os.close(self.writer)
        elif current >= 0:
            signal.set_wakeup_fd(current)


def _interrupt():
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return  # the program has its own handler, which may not end the run
    calls = [(c, c.call) for c in list(_watched) if c.call is not None]
    if not calls:
        return
    time.sleep(GRACE_S)
    with _lock:
        for context, call in calls:
            if context in _watched and context.call is call:
                context.interrupt()


def watch(context):
    """Until unwatch, SIGINT fails the call that context.call identifies, with context.interrupt() on another
    thread. Only for the main thread, because KeyboardInterrupt is raised only there."""
    global _wakeup
    if threading.current_thread() is not threading.main_thread():
        return
    with _lock:
        _watched.append(context)
        if _wakeup is None:
            _wakeup = _Wakeup()


def unwatch(context):
    """Afterwards no other thread uses the context."""
    global _wakeup
    with _lock:
        if context in _watched:
            _watched.remove(context)
        if _wakeup is not None and not _watched and threading.current_thread() is threading.main_thread():
            _wakeup.restore()
            _wakeup = None


def _forked():
    """A forked process has no reader thread, and would write its signals to its parent's descriptor."""
    global _lock, _wakeup
    _lock = threading.Lock()
    _watched.clear()
    left, _wakeup = _wakeup, None
    if left is not None:
        current = signal.set_wakeup_fd(-1)
        if current not in (-1, left.writer):
            signal.set_wakeup_fd(current)
        os.close(left.reader)
        os.close(left.writer)


os.register_at_fork(after_in_child=_forked)
