import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.FileInputStream;
import java.io.InputStreamReader;
import java.net.URI;
import java.net.URLDecoder;
import java.net.http.HttpClient;
import java.net.http.WebSocket;
import java.net.http.WebSocketHandshakeException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.KeyStore;
import java.security.MessageDigest;
import java.security.cert.CertificateFactory;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.stream.Collectors;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;

/** The client of java.net.http. It compresses nothing and has no limit of its own. */
public final class Peer {
    /** What the listener hands over: a String or bytes, a Pong, a Closed, or a Throwable. */
    private final BlockingQueue<Object> events = new LinkedBlockingQueue<>();

    private final Map<String, Object> report = new LinkedHashMap<>();
    private final Map<String, List<String>> query;
    private byte[] digest = {};
    private int count;

    private record Pong(String data) {}

    private record Closed(int code, String reason) {}

    private Peer(Map<String, List<String>> query) {
        this.query = query;
        report.put("id", value("id"));
        report.put("opened", false);
    }

    /** Puts whole messages into the queue. */
    private final class Listener implements WebSocket.Listener {
        private final StringBuilder text = new StringBuilder();
        private final ByteArrayOutputStream binary = new ByteArrayOutputStream();

        @Override
        public CompletionStage<?> onText(WebSocket socket, CharSequence data, boolean last) {
            text.append(data);
            if (last) {
                events.add(text.toString());
                text.setLength(0);
            }
            socket.request(1);
            return null;
        }

        @Override
        public CompletionStage<?> onBinary(WebSocket socket, ByteBuffer data, boolean last) {
            byte[] part = new byte[data.remaining()];
            data.get(part);
            binary.writeBytes(part);
            if (last) {
                events.add(binary.toByteArray());
                binary.reset();
            }
            socket.request(1);
            return null;
        }

        @Override
        public CompletionStage<?> onPong(WebSocket socket, ByteBuffer data) {
            events.add(new Pong(StandardCharsets.UTF_8.decode(data).toString()));
            socket.request(1);
            return null;
        }

        @Override
        public CompletionStage<?> onClose(WebSocket socket, int code, String reason) {
            events.add(new Closed(code, reason));
            return null;
        }

        @Override
        public void onError(WebSocket socket, Throwable error) {
            events.add(error);
        }
    }

    private String value(String name) {
        return query.containsKey(name) ? query.get(name).get(0) : null;
    }

    private int number(String name) {
        return query.containsKey(name) ? Integer.parseInt(value(name)) : 0;
    }

    private void received(String kind, byte[] data) throws Exception {
        MessageDigest hash = MessageDigest.getInstance("SHA-256");
        hash.update(digest);
        hash.update(kind.getBytes(StandardCharsets.UTF_8));
        digest = hash.digest(data);
        count++;
    }

    private void send(WebSocket socket, Object message) {
        int cut = number("cut");
        if (message instanceof String text) {
            int size = cut > 0 ? cut : Math.max(1, text.length());
            for (int at = 0; at == 0 || at < text.length(); at += size) {
                int end = Math.min(at + size, text.length());
                socket.sendText(text.substring(at, end), end == text.length()).join();
            }
        } else {
            byte[] data = (byte[]) message;
            int size = cut > 0 ? cut : Math.max(1, data.length);
            for (int at = 0; at == 0 || at < data.length; at += size) {
                int end = Math.min(at + size, data.length);
                socket.sendBinary(ByteBuffer.wrap(data, at, end - at), end == data.length).join();
            }
        }
    }

    private void perform(WebSocket socket, String task) throws Exception {
        switch (task) {
            case "close" -> socket.sendClose(number("code"), value("reason") == null ? "" : value("reason")).join();
            case "push" -> socket.sendBinary(ByteBuffer.allocate(number("size")), true).join();
            case "ping" -> socket.sendPing(StandardCharsets.UTF_8.encode("ping 0")).join();
            default -> {}
        }
        int pongs = 0;
        while (true) {
            Object event = events.take();
            if (event instanceof Closed closed) {
                report.put("code", closed.code());
                report.put("reason", closed.reason());
                // It answers with a close frame by itself, a little later.
                for (int turn = 0; turn < 1000 && !socket.isOutputClosed(); turn++) {
                    Thread.sleep(2);
                }
                return;
            } else if (event instanceof Throwable error) {
                report.put("code", 1006);
                report.put("error", error.toString());
                return;
            } else if (event instanceof Pong pong) {
                if (!pong.data().equals("ping " + pongs)) {
                    throw new IllegalStateException("not the pong: " + pong.data());
                }
                pongs++;
                if (pongs == number("n")) {
                    send(socket, pongs + " pongs");
                } else {
                    socket.sendPing(StandardCharsets.UTF_8.encode("ping " + pongs)).join();
                }
            } else {
                if (event instanceof String text) {
                    received("t", text.getBytes(StandardCharsets.UTF_8));
                } else {
                    received("b", (byte[]) event);
                }
                send(socket, event);
            }
        }
    }

    private void run(HttpClient client, Map<String, List<String>> job, URI uri) throws Exception {
        WebSocket.Builder builder = client.newWebSocketBuilder();
        List<String> subprotocols = job.getOrDefault("subprotocol", List.of());
        if (!subprotocols.isEmpty()) {
            String[] others = subprotocols.subList(1, subprotocols.size()).toArray(String[]::new);
            builder.subprotocols(subprotocols.get(0), others);
        }
        for (String field : job.getOrDefault("header", List.of())) {
            String[] parts = field.split(": ", 2);
            builder.header(parts[0], parts[1]);
        }
        job.getOrDefault("cookie", List.of()).forEach(cookie -> builder.header("Cookie", cookie));
        try {
            WebSocket socket = builder.buildAsync(uri, new Listener()).join();
            report.put("opened", true);
            report.put("subprotocol", socket.getSubprotocol().isEmpty() ? null : socket.getSubprotocol());
            perform(socket, uri.getPath().substring(1));
        } catch (CompletionException failure) {
            report.put("error", failure.getCause().toString());
            if (failure.getCause() instanceof WebSocketHandshakeException refused) {
                report.put("status", refused.getResponse().statusCode());
            } else if (Boolean.TRUE.equals(report.get("opened"))) {
                report.put("code", 1006);
            }
        }
        report.put("count", count);
        report.put("digest", HexFormat.of().formatHex(digest));
    }

    private static Map<String, List<String>> parseQuery(String query) {
        Map<String, List<String>> fields = new HashMap<>();
        for (String field : query == null || query.isEmpty() ? new String[0] : query.split("&")) {
            String[] parts = field.split("=", 2);
            fields.computeIfAbsent(parts[0], name -> new ArrayList<>())
                .add(URLDecoder.decode(parts[1], StandardCharsets.UTF_8));
        }
        return fields;
    }

    private static String json(Object value) {
        if (!(value instanceof String text)) {
            return String.valueOf(value);
        }
        return text.chars()
            .mapToObj(unit -> unit < 0x20 || unit > 0x7e || unit == '"' || unit == '\\'
                ? String.format("\\u%04x", unit)
                : String.valueOf((char) unit))
            .collect(Collectors.joining("", "\"", "\""));
    }

    private static SSLContext trusting(String path) throws Exception {
        KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
        store.load(null, null);
        try (FileInputStream file = new FileInputStream(path)) {
            store.setCertificateEntry("ca", CertificateFactory.getInstance("X.509").generateCertificate(file));
        }
        TrustManagerFactory factory = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        factory.init(store);
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(null, factory.getTrustManagers(), null);
        return context;
    }

    public static void main(String[] arguments) throws Exception {
        HttpClient client = HttpClient.newBuilder().sslContext(trusting(System.getenv("INTEROP_CA"))).build();
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            Map<String, List<String>> job = parseQuery(line);
            URI uri = URI.create(job.get("uri").get(0));
            Peer peer = new Peer(parseQuery(uri.getRawQuery()));
            peer.run(client, job, uri);
            System.out.println(peer.report.entrySet().stream()
                .map(field -> json(field.getKey()) + ":" + json(field.getValue()))
                .collect(Collectors.joining(",", "{", "}")));
        }
        // Threads of the HTTP client would keep the process alive.
        System.exit(0);
    }
}
