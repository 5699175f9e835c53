// ws, client and server.

import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import https from "node:https";
import http from "node:http";
import { once } from "node:events";
import { WebSocket, WebSocketServer } from "ws";
import { forEachJob, print } from "./jobs.mjs";

const SUBPROTOCOLS = ["superchat", "chat"];
const LIMIT = 1000;
const UNLIMITED = 64 * 2 ** 20;
const REFUSAL = "no entry\n";

function options(variant) {
  return {
    maxPayload: variant === "limited" ? LIMIT : UNLIMITED,
    // "false" would refuse to do without.
    perMessageDeflate:
      variant === "no-takeover" ? { serverNoContextTakeover: true, clientNoContextTakeover: true } : true,
  };
}

function pieces(data, size) {
  const count = Math.max(1, Math.ceil(data.length / size));
  return Array.from({ length: count }, (_, index) => data.subarray(index * size, (index + 1) * size));
}

function send(ws, data, binary, cut) {
  if (!cut) return ws.send(data, { binary });
  const parts = pieces(data, cut);
  parts.forEach((part, index) => ws.send(part, { binary, fin: index === parts.length - 1 }));
}

async function ping(ws, times) {
  for (let number = 0; number < times; number++) {
    ws.ping(`ping ${number}`);
    const [payload] = await once(ws, "pong");
    if (payload.toString() !== `ping ${number}`) throw new Error(`not the pong: ${payload}`);
  }
  ws.send(`${times} pongs`);
}

/** Does on an open connection what its URI says, and fills the report until it is closed. */
function perform(ws, url, headers, report) {
  const query = url.searchParams;
  const task = url.pathname.slice(1);
  let digest = Buffer.alloc(0);
  Object.assign(report, { opened: true, subprotocol: ws.protocol || null, extensions: ws.extensions || null });
  ws.on("message", (data, binary) => {
    report.count += 1;
    digest = createHash("sha256").update(digest).update(binary ? "b" : "t").update(data).digest();
    report.digest = digest.toString("hex");
    send(ws, data, binary, Number(query.get("cut")));
  });
  if (task === "close" && query.has("code")) ws.close(Number(query.get("code")), query.get("reason") ?? "");
  else if (task === "close") ws.close();
  else if (task === "push") ws.send(Buffer.alloc(Number(query.get("size"))));
  else if (task === "headers") ws.send(JSON.stringify(headers));
  else if (task === "ping") ping(ws, Number(query.get("n")));
}

const started = (url) => ({ id: url.searchParams.get("id"), opened: false, count: 0, digest: "" });

function run(job) {
  const url = new URL(job.get("uri"));
  const report = started(url);
  const fields = [...job.getAll("header"), ...job.getAll("cookie").map((value) => `Cookie: ${value}`)];
  const headers = Object.fromEntries(fields.map((field) => field.split(": ")));
  const ws = new WebSocket(url.href, job.getAll("subprotocol"), { headers, ...options(job.get("variant")) });
  return new Promise((resolve) => {
    ws.on("open", () => perform(ws, url, {}, report));
    ws.on("error", (error) => (report.error = String(error)));
    ws.on("close", (code, reason) => resolve({ ...report, code, reason: reason.toString() }));
    ws.on("unexpected-response", async (request, response) => {
      let body = "";
      for await (const chunk of response) body += chunk;
      resolve({ ...report, status: response.statusCode, body, error: "unexpected response" });
    });
  });
}

async function listen(variant) {
  const server =
    variant === "tls"
      ? https.createServer({
          cert: readFileSync(process.env.INTEROP_CERT),
          key: readFileSync(process.env.INTEROP_KEY),
        })
      : http.createServer();
  const wss = new WebSocketServer({
    server,
    ...options(variant),
    handleProtocols: (offered) => SUBPROTOCOLS.find((name) => offered.has(name)) ?? false,
    verifyClient: ({ req }, done) => (req.url.startsWith("/reject") ? done(false, 403, REFUSAL) : done(true)),
  });
  wss.on("connection", (ws, request) => {
    const url = new URL(request.url, "ws://localhost");
    const report = started(url);
    ws.on("error", (error) => (report.error = String(error)));
    ws.on("close", (code, reason) => print({ ...report, code, reason: reason.toString() }));
    perform(ws, url, request.headers, report);
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  return server.address().port;
}

if (process.argv[2] === "client") {
  await forEachJob(run);
} else {
  const ports = {};
  for (const variant of ["default", "no-takeover", "limited", "tls"]) ports[variant] = await listen(variant);
  print({ ports });
  process.stdin.resume();
  await once(process.stdin, "end");
  process.exit(0);
}
