package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/coder/websocket"
)

type message struct {
	kind websocket.MessageType
	data []byte
}

// send sends a message, in fragments of a size unless that is 0.
func send(ctx context.Context, conn *websocket.Conn, m message, cut int) error {
	if cut == 0 {
		return conn.Write(ctx, m.kind, m.data)
	}
	writer, err := conn.Writer(ctx, m.kind)
	if err != nil {
		return err
	}
	for at := 0; at < len(m.data); at += cut {
		if _, err := writer.Write(m.data[at:min(at+cut, len(m.data))]); err != nil {
			return err
		}
	}
	return writer.Close()
}

// begin does what the task asks for before messages are sent back.
func begin(ctx context.Context, conn *websocket.Conn, t task, headers map[string]string) error {
	text := func(content string) error { return conn.Write(ctx, websocket.MessageText, []byte(content)) }
	switch t.name {
	case "push":
		return conn.Write(ctx, websocket.MessageBinary, make([]byte, t.number("size")))
	case "headers":
		fields, err := json.Marshal(headers)
		if err != nil {
			return err
		}
		return text(string(fields))
	case "ping":
		for range t.number("n") {
			if err := conn.Ping(ctx); err != nil {
				return err
			}
		}
		return text(fmt.Sprintf("%d pongs", t.number("n")))
	}
	return nil
}

// perform does on an open connection what its URI says, and fills the record until it is closed.
func perform(ctx context.Context, conn *websocket.Conn, t task, r *record, headers map[string]string) {
	defer conn.CloseNow()
	if t.name == "close" {
		code, reason := websocket.StatusCode(websocket.StatusNoStatusRcvd), t.query.Get("reason")
		if t.query.Has("code") {
			code = websocket.StatusCode(t.number("code"))
		}
		// It fails when the code that comes back is another one.
		err := conn.Close(code, reason)
		if err == nil {
			r.closed(int(code), reason)
		} else {
			ended(r, err)
		}
		return
	}
	// Pongs are received by whoever reads: a ping cannot be waited for without a reader beside it.
	received := make(chan message, 1024)
	var failure error
	go func() {
		defer close(received)
		for {
			kind, data, err := conn.Read(ctx)
			if err != nil {
				failure = err
				return
			}
			received <- message{kind, data}
		}
	}()
	err := begin(ctx, conn, t, headers)
	for m := range received {
		r.message(m.kind, m.data)
		if err == nil {
			err = send(ctx, conn, m, t.number("cut"))
		}
	}
	ended(r, failure)
}

// ended notes why a connection is closed. That it was lost, this library tells by another error than a CloseError.
func ended(r *record, err error) {
	var closed websocket.CloseError
	switch {
	case errors.As(err, &closed):
		r.closed(int(closed.Code), closed.Reason)
	case errors.Is(err, websocket.ErrMessageTooBig):
		r.closed(int(websocket.StatusMessageTooBig), "")
	default:
		r.closed(int(websocket.StatusAbnormalClosure), "")
	}
	r.failed(err)
}
