// One job of the contract with the WebSocket of the platform: that of a browser, or that of Node.

const join = (...parts) => new Blob(parts).arrayBuffer();

/**
 * Opens the connection that a job asks for, does what its URI says, and returns the report.
 *
 * @param {URLSearchParams} job
 * @param {(subprotocols: string[], headers: string[]) => any} options Second argument of the constructor.
 */
export function run(job, options) {
  const uri = job.get("uri");
  const url = new URL(uri);
  const query = url.searchParams;
  const task = url.pathname.slice(1);
  const report = { id: query.get("id"), opened: false, count: 0, digest: "" };
  let digest = new Uint8Array(0);
  let hashing = Promise.resolve();

  async function add(data) {
    const kind = typeof data === "string" ? "t" : "b";
    digest = await crypto.subtle.digest("SHA-256", await join(digest, kind, data));
  }

  const headers = [...job.getAll("header"), ...job.getAll("cookie").map((value) => `Cookie: ${value}`)];
  const ws = new WebSocket(uri, options(job.getAll("subprotocol"), headers));
  ws.binaryType = "arraybuffer";
  return new Promise((resolve) => {
    ws.onopen = () => {
      report.opened = true;
      report.subprotocol = ws.protocol || null;
      report.extensions = ws.extensions || null;
      if (task === "close" && query.has("code")) ws.close(Number(query.get("code")), query.get("reason") ?? "");
      else if (task === "close") ws.close();
      else if (task === "push") ws.send(new Uint8Array(Number(query.get("size"))));
    };
    ws.onmessage = ({ data }) => {
      report.count += 1;
      hashing = hashing.then(() => add(data));
      ws.send(data);
    };
    ws.onerror = (event) => {
      report.error = event.message || event.type;
      // After a refusal, Node 20 has no close event.
      if (!report.opened) setTimeout(resolve, 500, { ...report, code: 1006 });
    };
    ws.onclose = async ({ code, reason, wasClean }) => {
      await hashing;
      const hex = [...new Uint8Array(digest)].map((byte) => byte.toString(16).padStart(2, "0"));
      resolve({ ...report, digest: hex.join(""), code, reason, clean: wasClean });
    };
  });
}
