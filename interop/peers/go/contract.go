package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/coder/websocket"
)

const (
	limit   = 1000
	refusal = "no entry\n"
)

var subprotocols = []string{"superchat", "chat"}

// task is what a URI asks for: the word of its path, and the query.
type task struct {
	name  string
	query url.Values
}

func parseTask(target string) task {
	parsed, err := url.Parse(target)
	if err != nil {
		panic(err)
	}
	return task{strings.Trim(parsed.Path, "/"), parsed.Query()}
}

func (t task) number(name string) int {
	number, _ := strconv.Atoi(t.query.Get(name))
	return number
}

// record is what this end sees of one connection.
type record struct {
	ID          string  `json:"id"`
	Opened      bool    `json:"opened"`
	Status      *int    `json:"status"`
	Body        *string `json:"body"`
	Subprotocol *string `json:"subprotocol"`
	Extensions  *string `json:"extensions"`
	Count       int     `json:"count"`
	Digest      string  `json:"digest"`
	Code        *int    `json:"code"`
	Reason      *string `json:"reason"`
	Error       *string `json:"error"`
	last        []byte
}

func newRecord(t task) *record {
	return &record{ID: t.query.Get("id")}
}

func optional(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

func (r *record) message(kind websocket.MessageType, data []byte) {
	letter := "b"
	if kind == websocket.MessageText {
		letter = "t"
	}
	hash := sha256.New()
	hash.Write(r.last)
	hash.Write([]byte(letter))
	hash.Write(data)
	r.last = hash.Sum(nil)
	r.Count++
}

func (r *record) closed(code int, reason string) {
	r.Code, r.Reason = &code, &reason
}

func (r *record) failed(err error) {
	r.Error = optional(err.Error())
}

func (r *record) print() {
	r.Digest = hex.EncodeToString(r.last)
	print(r)
}

var output sync.Mutex

func print(value any) {
	line, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	output.Lock()
	defer output.Unlock()
	os.Stdout.Write(append(line, '\n'))
}
