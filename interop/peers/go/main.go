// coder/websocket, client and server.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/coder/websocket"
)

// mode is that of compression.
func mode(variant string) websocket.CompressionMode {
	if variant == "no-takeover" {
		return websocket.CompressionNoContextTakeover
	}
	return websocket.CompressionContextTakeover
}

func readLimit(variant string) int64 {
	if variant == "limited" {
		return limit
	}
	return -1
}

func secureClient() *http.Client {
	authority, err := os.ReadFile(os.Getenv("INTEROP_CA"))
	if err != nil {
		log.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(authority)
	return &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}}
}

func run(client *http.Client, job url.Values) {
	ctx := context.Background()
	t := parseTask(job.Get("uri"))
	r := newRecord(t)
	defer r.print()
	headers := http.Header{}
	for _, field := range job["header"] {
		name, value, _ := strings.Cut(field, ": ")
		headers.Add(name, value)
	}
	for _, cookie := range job["cookie"] {
		headers.Add("Cookie", cookie)
	}
	conn, response, err := websocket.Dial(ctx, job.Get("uri"), &websocket.DialOptions{
		HTTPClient:      client,
		HTTPHeader:      headers,
		Subprotocols:    job["subprotocol"],
		CompressionMode: mode(job.Get("variant")),
	})
	if err != nil {
		r.failed(err)
		if response != nil {
			body, _ := io.ReadAll(response.Body)
			text := string(body)
			r.Status, r.Body = &response.StatusCode, &text
		}
		return
	}
	r.Opened = true
	r.Subprotocol = optional(conn.Subprotocol())
	r.Extensions = optional(response.Header.Get("Sec-WebSocket-Extensions"))
	conn.SetReadLimit(readLimit(job.Get("variant")))
	perform(ctx, conn, t, r, nil)
}

func answer(variant string) http.HandlerFunc {
	return func(w http.ResponseWriter, request *http.Request) {
		t := parseTask(request.URL.String())
		if t.name == "reject" {
			w.WriteHeader(http.StatusForbidden)
			io.WriteString(w, refusal)
			return
		}
		r := newRecord(t)
		defer r.print()
		conn, err := websocket.Accept(w, request, &websocket.AcceptOptions{
			Subprotocols:    subprotocols,
			CompressionMode: mode(variant),
		})
		if err != nil {
			r.failed(err)
			return
		}
		r.Opened = true
		r.Subprotocol = optional(conn.Subprotocol())
		r.Extensions = optional(w.Header().Get("Sec-WebSocket-Extensions"))
		conn.SetReadLimit(readLimit(variant))
		headers := map[string]string{}
		for name, values := range request.Header {
			headers[strings.ToLower(name)] = strings.Join(values, ", ")
		}
		perform(context.Background(), conn, t, r, headers)
	}
}

func listen(variant string) int {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	server := &http.Server{Handler: answer(variant)}
	go func() {
		if variant == "tls" {
			log.Fatal(server.ServeTLS(listener, os.Getenv("INTEROP_CERT"), os.Getenv("INTEROP_KEY")))
		}
		log.Fatal(server.Serve(listener))
	}()
	return listener.Addr().(*net.TCPAddr).Port
}

func main() {
	if os.Args[1] == "server" {
		ports := map[string]int{}
		for _, variant := range []string{"default", "no-takeover", "limited", "tls"} {
			ports[variant] = listen(variant)
		}
		print(map[string]any{"ports": ports})
		io.Copy(io.Discard, os.Stdin)
		return
	}
	client := secureClient()
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		job, err := url.ParseQuery(lines.Text())
		if err != nil {
			log.Fatal(err)
		}
		run(client, job)
	}
}
