"""The process ends while a loop in a daemon thread is running: quietly, at any point of that thread."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import urllib.parse
from pathlib import Path

import pytest

from support.asyncio_tools import LOOPS
from support.certificates import Certificates
from support.servers import WebSocketsServer

pytestmark = pytest.mark.wirespeed_only("it looks at what is ours")

ROOT = Path(__file__).parent.parent

# For the few processes of a test.
PATIENCE = 20.0

PROGRAM = """
import asyncio, sys, threading, time
import wirespeed

kind, port, mode, delay = sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4])
# The threads take turns as often as they can.
sys.setswitchinterval(1e-5)
busy = threading.Event()

class Echo(wirespeed.Listener):
    def __init__(self):
        self.count = 0

    def on_message(self, ws, message):
        self.count += 1
        if self.count == 20:
            busy.set()
        ws.send_nowait(message)

async def echo(ws):
    async for message in ws:
        await ws.send(message)

async def talk(uri):
    listener = {"listener": Echo()} if mode == "listener" else {}
    async with wirespeed.connect(uri, io_backend=port, proxy=None, **listener) as ws:
        await ws.send("x")
        if listener:
            await asyncio.sleep(3600)
        for count in range(1_000_000_000):
            await ws.recv()
            await ws.send("x")
            if count == 20:
                busy.set()

async def main():
    handling = {"handler": None, "listener": Echo} if mode == "listener" else {"handler": echo}
    async with wirespeed.serve(host="127.0.0.1", port=0, io_backend=port, **handling) as server:
        uri = "ws://127.0.0.1:%d/" % server.sockets[0].getsockname()[1]
        await asyncio.gather(talk(uri), talk(uri))

def run():
    if kind == "uvloop":
        import uvloop
        loop = uvloop.new_event_loop()
    else:
        loop = wirespeed.new_event_loop() if kind == "wirespeed" else asyncio.new_event_loop()
    loop.run_until_complete(main())

threading.Thread(target=run, daemon=True).start()
assert busy.wait(10)
time.sleep(delay)
"""

# Of the main thread, after the others are busy: in seconds.
DELAYS = [0.02, 0.05, 0.08]

CASES = [
    (loop, port, mode)
    for loop in LOOPS
    for port in ("fd", "transport")
    for mode in ("await", "listener")
    if not (loop == "wirespeed" and port == "transport")
]


@pytest.mark.parametrize(("loop", "port", "mode"), CASES, ids=["-".join(case) for case in CASES])
def test_exit(loop: str, port: str, mode: str) -> None:
    """The status is 0, and nothing is printed: neither by the interpreter nor by a killed thread."""
    for delay in DELAYS:
        command = [sys.executable, "-W", "ignore", "-c", PROGRAM, loop, port, mode, str(delay)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert done.returncode == 0, done.stderr
        assert "Fatal" not in done.stderr
        assert "panicked" not in done.stderr


EXCEPTIONS = """
import sys, threading, time
from wirespeed.engine import Engine
from wirespeed.sync import connect

sys.setswitchinterval(1e-6)
engine = Engine("127.0.0.1", workers=1)
engine.start()
host, port = engine.addresses[0]
ws = connect(f"ws://{host}:{port}/", proxy=None)
session = next(iter(next(engine.batches()))).session
session.close()
time.sleep(0.1)

def again(call):
    while True:
        try:
            call()
        except Exception:
            pass

calls = [lambda: session.send("x"), lambda: ws.send("x"), lambda: connect("ws://:a/", proxy=None)]
for call in calls * 2:
    threading.Thread(target=again, args=[call], daemon=True).start()
time.sleep(0.1)
"""


def test_exit_while_exceptions_are_made() -> None:
    """Exception classes are Python code that native code calls: daemon threads are killed in it."""
    for _ in range(10):
        command = [sys.executable, "-W", "ignore", "-c", EXCEPTIONS]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert (done.returncode, done.stderr) == (0, "")


# Functions of the interpreter that the native module calls and that run no Python code and do not release the GIL;
# calls that PyO3 guards by itself; and calls at the import of the module only.
WITHOUT_PYTHON_CODE = """
PyBool_FromLong PyBuffer_FillInfo PyByteArray_AsString PyByteArray_Size PyBytes_FromStringAndSize PyContext_Enter
PyContext_Exit PyDict_Next PyErr_ExceptionMatches PyErr_Fetch PyErr_GetRaisedException PyErr_GivenExceptionMatches
PyErr_Occurred PyException_GetCause PyException_GetTraceback PyFloat_FromDouble PyInterpreterState_Get
PyInterpreterState_ThreadHead PyIter_Check PyList_Append PyLong_AsUnsignedLongLong PyLong_FromLong PyLong_FromSsize_t
PyLong_FromUnsignedLongLong PyModule_GetNameObject PyObject_CheckBuffer PyObject_Free PyObject_GC_Del PyObject_GC_Track
PyObject_GC_UnTrack PyObject_Init PySequence_Check PySlice_AdjustIndices PyThreadState_Get PyThreadState_Next
PyTuple_GetItem PyTuple_Size PyType_GetModuleName PyType_GetName PyType_GetQualName PyType_IsSubtype PyType_Modified
PyUnicode_AsUTF8AndSize PyUnicode_CompareWithASCIIString PyUnicode_EqualToUTF8AndSize PyUnicode_FromString
PyUnicode_FromStringAndSize PyUnicode_InternInPlace PyVectorcall_Function PyWeakref_GetObject PyWeakref_GetRef
Py_GetVersion Py_IsFinalizing Py_IsInitialized _Py_IsFinalizing _PyBytes_Resize _PyLong_AsByteArray _PyObject_New
_Py_CheckFunctionResult

PyEval_RestoreThread PyEval_SaveThread PyGILState_Ensure PyGILState_Release

PyCMethod_New PyDescr_NewMethod PyErr_NewExceptionWithDoc PyErr_WarnFormat PyModuleDef_Init PyType_FromSpec
"""


@pytest.mark.skipif(shutil.which("nm") is None, reason="needs nm, of binutils")
@pytest.mark.skipif(sys.platform != "linux" or sys.version_info >= (3, 14), reason="threads are not ended by unwinding")
def test_every_function_that_runs_python_code_is_guarded() -> None:
    """Of the functions that the native module calls, so that a daemon thread sleeps instead of being unwound there."""
    guarded = re.findall(r"\bfn (_?Py\w+)\(", (ROOT / "crates/python/src/thread_exit.rs").read_text())
    module = importlib.util.find_spec("wirespeed._native")
    assert module is not None
    assert module.origin is not None
    done = subprocess.run(["nm", "-D", module.origin], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    called = {name for line in lines if (name := line.split(" U ")[-1]).startswith(("Py", "_Py")) and " U " in line}
    data = re.compile(r"PyExc_\w+|\w+Type|_Py_\w+Struct")
    called = {name for name in called if not data.fullmatch(name)}
    assert {"PyObject_Call", "PyObject_GetAttr"} <= called & set(guarded)
    assert called - set(guarded) - set(WITHOUT_PYTHON_CODE.split()) == set()
    exported = {name for line in lines if " T " in line and (name := line.split(" T ")[-1])}
    assert exported >= {f"__wrap_{name}" for name in called & set(guarded)}
    assert "__real_" not in done.stdout  # unused ones are found, too


# A thread that ends in a call which has the lock of its connection: in an SSLContext's object, which is Python code.
# Its functions have names of their own: their frames stay, and those of the program are to be freed.
LOCKED = """
import os, sys, threading

names = {}
exec('''
import asyncio, ssl, threading, time
import wirespeed
from wirespeed.sync import connect

stuck = threading.Event()
made = []

class Slow:
    armed = False

    def __init__(self, of):
        self.of = of

    def __getattr__(self, name):
        if name == "_sslobj":
            raise AttributeError(name)
        return getattr(self.of, name)

    def write(self, data):
        if self.armed:
            stuck.set()
            time.sleep(3600)
        return self.of.write(data)

class Context(ssl.SSLContext):
    def wrap_bio(self, *args, **options):
        return Slow(super().wrap_bio(*args, **options))

def blocking(uri, context):
    ws = connect(uri, ssl=context, proxy=None)
    made.append(ws)
    Slow.armed = True
    ws.send("x")

def run(uri, context):
    async def main():
        ws = await wirespeed.connect(uri, ssl=context, proxy=None, ping_interval=None)
        made.append(ws)
        Slow.armed = True
        await ws.send("x")

    asyncio.run(main())
''', names)

class Kept:
    def __del__(self, write=os.write):
        write(1, self.ws.state.name.encode())

context = names["Context"](names["ssl"].PROTOCOL_TLS_CLIENT)
context.load_verify_locations(sys.argv[1])
arguments = ["wss://localhost:" + sys.argv[2], context]
threading.Thread(target=names[sys.argv[3]], args=arguments, daemon=True).start()
assert names["stuck"].wait(10)
kept = Kept()
kept.ws = names["made"].pop()
"""


@pytest.mark.parametrize("way", ["blocking", "run"])
def test_exit_while_a_thread_has_a_connection(
    way: str, secure_server: WebSocketsServer, certificates: Certificates
) -> None:
    """A finalizer that uses the connection does not wait for the thread, which no longer exists."""
    port = str(urllib.parse.urlsplit(secure_server.uri).port)
    command = [sys.executable, "-W", "ignore", "-c", LOCKED, certificates.ca_file, port, way]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "CLOSED", "")
