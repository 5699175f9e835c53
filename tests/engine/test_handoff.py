"""An engine that can be taken over: its files, and its costs while no handoff happens."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from engine.callers import dial
from wirespeed.engine import Engine

pytestmark = [
    pytest.mark.wirespeed_only("websockets has no engine"),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork"),
]


def run(code: str, *arguments: str) -> str:
    """Runs a program in a process of its own; returns its output."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_ending_child_keeps_the_socket(tmp_path: Path) -> None:
    said = run(
        """
        import os, sys, warnings
        from wirespeed.engine import Engine
        warnings.simplefilter("ignore")
        path = sys.argv[1]
        old = Engine("127.0.0.1", workers=1, handoff=path, drain_timeout=5)
        old.start()
        child = os.fork()
        if not child:
            old.stop()
            del old
            sys.exit(0)  # with all that the interpreter does at its end
        assert os.waitpid(child, 0)[1] == 0
        assert os.path.exists(path)
        with Engine(*old.addresses[0], workers=1, handoff=path):
            for batch in old.batches():
                pass
            print("taken over")
        """,
        str(tmp_path / "next"),
    )
    assert said == "taken over\n"


@pytest.mark.parametrize("how", ["threads", "main", "loop"])
def test_blocked_handlers_do_not_delay_the_old_engine(how: str, tmp_path: Path) -> None:
    """The old engine ends within its time limit plus a second, in which `run` and `serve` return."""
    said = run(
        """
        import asyncio, subprocess, sys, threading, time
        from wirespeed.engine import Engine
        from wirespeed.sync import connect
        path, how = sys.argv[1:]
        old = Engine("127.0.0.1", workers=1, handoff=path, drain_timeout=1)
        called = threading.Event()
        if how == "loop":
            @old.on_message
            async def handle(session, message):
                called.set()
                await asyncio.Event().wait()
        else:
            @old.on_message
            def handle(session, message):
                called.set()
                threading.Event().wait()
        taken_over = []
        def take_over():
            host, port = old.addresses[0]
            with connect(f"ws://{host}:{port}/", proxy=None) as ws:
                ws.send("forever")
                called.wait()
                new = Engine(host, port, workers=1, handoff=path)
                new.start()
                taken_over.append(time.monotonic())
                time.sleep(30)
        old.start()
        threading.Thread(target=take_over, daemon=True).start()
        old.run(threads=1 if how == "threads" else 0)
        print(time.monotonic() - taken_over[0] < 10)
        """,
        str(tmp_path / "next"),
        how,
    )
    assert said == "True\n"


def test_waiting_handoff_ends_with_the_engine(tmp_path: Path) -> None:
    engine = Engine("127.0.0.1", workers=1, handoff=tmp_path / "next")
    with engine:
        waiting = [thread for thread in threading.enumerate() if thread.name == "wirespeed-ending"]
        assert len(waiting) == 1
    waiting[0].join(20)
    assert not waiting[0].is_alive()


def test_socket_of_an_ended_engine_refuses(tmp_path: Path) -> None:
    """A child keeps a copy of the listener: clients that connected before its end get an error nevertheless."""
    said = run(
        """
        import os, signal, socket, sys, warnings
        from wirespeed.engine import Engine
        warnings.simplefilter("ignore")
        path = sys.argv[1]
        old = Engine("127.0.0.1", workers=1, handoff=path)
        old.start()
        child = os.fork()
        if not child:
            signal.pause()
        os.link(path, path + ".kept")
        try:
            old.stop()
            with socket.socket(socket.AF_UNIX) as other:
                try:
                    other.settimeout(8)  # less than the engine waits for a word
                    other.connect(path + ".kept")
                    print(other.recv(1))
                except ConnectionError:
                    print("refused")
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        """,
        str(tmp_path / "next"),
    )
    assert said in ("refused\n", "b''\n")


def test_missing_descriptors_do_not_spin(tmp_path: Path) -> None:
    said = run(
        """
        import os, resource, socket, sys, time
        from wirespeed.engine import Engine
        path = sys.argv[1]
        with Engine("127.0.0.1", workers=1, handoff=path):
            other = socket.socket(socket.AF_UNIX)
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))), limit[1]))
            kept = []
            try:
                while True:
                    kept.append(os.dup(0))
            except OSError:
                pass
            other.connect(path)
            begin = time.process_time()
            time.sleep(1)
            used = time.process_time() - begin
            for descriptor in kept:
                os.close(descriptor)
            resource.setrlimit(resource.RLIMIT_NOFILE, limit)
            other.settimeout(20)
            other.sendall(b"nonsense\\n")
            assert other.recv(1) == b""  # it goes on
            print(used)
        """,
        str(tmp_path / "next"),
    )
    assert float(said) < 0.3


def test_signals_do_not_end_a_handoff(tmp_path: Path) -> None:
    """A handled signal interrupts a call on a socket with a timeout; the signal handlers of the new engine are
    installed at its start.
    """
    path = tmp_path / "next"
    with Engine("127.0.0.1", workers=1, handoff=path, drain_timeout=5) as old:
        host, port = old.addresses[0]
        before = signal.signal(signal.SIGUSR1, lambda *_: None)
        over = threading.Event()
        main = threading.main_thread().ident
        assert main is not None

        def knock() -> None:
            while not over.wait(0.0005):
                signal.pthread_kill(main, signal.SIGUSR1)

        knocker = threading.Thread(target=knock)
        knocker.start()
        try:
            new = Engine(host, port, workers=1, handoff=path)
            new.start()
        finally:
            over.set()
            knocker.join()
            signal.signal(signal.SIGUSR1, before)
        try:
            with dial(new, "/"):
                for _ in old.batches():
                    pass
        finally:
            new.stop()
    assert not path.exists()


def test_calls_during_the_start_do_not_block_the_interpreter(tmp_path: Path) -> None:
    """A process is connected to the socket, and does not answer."""
    path = str(tmp_path / "next")
    engine = Engine("127.0.0.1", workers=1, handoff=path)
    failed: list[BaseException] = []

    def start() -> None:
        try:
            engine.start()
        except OSError as error:
            failed.append(error)

    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(path)
        silent.listen()
        starter = threading.Thread(target=start)
        starter.start()
        with silent.accept()[0]:  # it has sent its request
            with pytest.raises(RuntimeError, match="has not started"):
                engine.stats()
            with pytest.raises(RuntimeError, match="has started"):
                engine.route("/late")
            assert starter.is_alive()
            starter.join(30)
    assert [type(error) for error in failed] == [TimeoutError]
    assert "has not answered" in str(failed[0])


def test_ctrl_c_ends_the_wait_for_another_engine_that_is_starting(tmp_path: Path) -> None:
    code = """
        import sys
        from wirespeed.engine import Engine

        engine = Engine("127.0.0.1", workers=1, handoff=sys.argv[1])
        print("starting", flush=True)
        engine.start()
    """
    path = tmp_path / "next"
    with open(f"{path}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        command = [sys.executable, "-c", textwrap.dedent(code), str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "starting\n"
            time.sleep(0.5)  # it waits, or will
            process.send_signal(signal.SIGINT)
            try:
                _, errors = process.communicate(timeout=10)
            finally:
                process.kill()
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert process.returncode == -signal.SIGINT


FOREIGN = textwrap.dedent("""
    import array, json, os, socket, sys

    path, port, user = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    if user:
        os.setgid(user)
        os.setuid(user)
    clients = socket.create_server(("127.0.0.1", 0))
    with socket.socket(socket.AF_UNIX) as asked:
        asked.bind(path)
        os.chmod(path, 0o777)
        asked.listen()
        print("waits", flush=True)
        stream, _ = asked.accept()
        stream.recv(100)
        line = json.dumps({"tcp": f"127.0.0.1:{port}"}).encode() + b"\\n"
        rights = array.array("i", [clients.fileno()])
        try:
            stream.sendmsg([line], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
            for answer in (b"end\\n", b"gone\\n"):
                if not stream.recv(100):
                    break
                stream.sendall(answer)
            else:
                print("given", flush=True)
        except OSError:
            pass
""")


def take_over_from_foreign(path: Path, user: int) -> tuple[BaseException, str]:
    """Starts an engine at a socket of another program; returns its exception, and the other program's output."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    arguments = [sys.executable, "-c", FOREIGN, str(path), str(port), str(user)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "waits\n"
        with pytest.raises(OSError) as raised:
            Engine("127.0.0.1", port, handoff=path).start()
        return raised.value, child.communicate(timeout=20)[0]


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only the superuser becomes another user")
def test_no_listeners_are_taken_from_another_user(tmp_path: Path) -> None:
    """That user would keep a copy, and take clients of this engine."""
    for directory in (tmp_path, *tmp_path.parents):
        if directory != Path("/tmp") and directory.is_relative_to("/tmp"):
            directory.chmod(0o777)
    error, said = take_over_from_foreign(tmp_path / "next", 65_534)
    assert isinstance(error, PermissionError)
    assert "another user" in str(error)
    assert said == ""


def test_no_listener_is_taken_for_another_address(tmp_path: Path) -> None:
    error, said = take_over_from_foreign(tmp_path / "next", 0)
    assert "does not listen at" in str(error)
    assert said == ""
