# cython: boundscheck=False, wraparound=False, initializedcheck=False, nonecheck=False, cdivision=True
"""The callbacks of ../picows/peer.py in Cython, as in picows' own benchmark: called, and calling, without Python.

They look at a payload where it lies, as compiled code does: there is no object for a message.
"""

from libc.string cimport memcmp

from picows.picows cimport WSFrame, WSListener, WSMsgType, WSTransport


cdef class Listener(WSListener):
    cdef object course
    cdef long remaining, window

    def __init__(self, course):
        self.course = course
        self.remaining = course.count
        self.window = course.window

    cpdef on_ws_disconnected(self, WSTransport transport):
        self.course.fail("the connection ended")


cdef class Replying(Listener):
    cdef bytes even, odd
    cdef bint over

    def __init__(self, course):
        super().__init__(course)
        self.even, self.odd = course.messages

    cdef inline bytes message(self, long number):
        return self.odd if number & 1 else self.even

    cpdef on_ws_connected(self, WSTransport transport):
        cdef long number
        for number in range(self.window):
            transport.send(WSMsgType.BINARY, self.message(number))

    cpdef on_ws_frame(self, WSTransport transport, WSFrame frame):
        cdef bytes expected = self.message(self.remaining)
        if (
            frame.payload_size != len(expected)
            or memcmp(frame.payload_ptr, <const char *>expected, frame.payload_size) != 0
        ):
            self.course.fail()
            return
        self.remaining -= 1
        if self.over:
            self.course.late()
            return
        if self.remaining == 0:
            self.remaining = self.course.again()
            self.over = self.remaining == 0
            self.even, self.odd = self.course.messages
        if not self.over:
            # So many messages ahead as are under way.
            transport.send(WSMsgType.BINARY, self.message(self.remaining + self.window - 1))


cdef class Streaming(Listener):
    cpdef on_ws_frame(self, WSTransport transport, WSFrame frame):
        self.remaining -= 1
        if self.remaining == 0:
            self.remaining = self.course.over(
                frame.get_payload_as_memoryview() if self.course.views else frame.get_payload_as_bytes()
            )


cdef class OneWay(Listener):
    """At /stamp: each message is built by the course, which checks the replies too."""

    cpdef on_ws_connected(self, WSTransport transport):
        for _ in range(self.window):
            transport.send(WSMsgType.BINARY, self.course.stamps.message())

    cpdef on_ws_frame(self, WSTransport transport, WSFrame frame):
        if not self.course.check(frame.get_payload_as_memoryview()):
            return
        if self.remaining == 0:
            self.course.late()
            return
        self.remaining -= 1
        if self.remaining == 0:
            self.remaining = self.course.again()
        if self.remaining:
            transport.send(WSMsgType.BINARY, self.course.stamps.message())


def send_each(WSTransport transport, list messages):
    """Sends messages, one after the other."""
    cdef bytes message
    for message in messages:
        transport.send(WSMsgType.BINARY, message)
