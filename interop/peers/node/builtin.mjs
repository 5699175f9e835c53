// The client that is built into Node. Its constructor also takes headers, other than that of browsers.

import { run } from "../web/client.mjs";
import { forEachJob } from "./jobs.mjs";

await forEachJob((job) =>
  run(job, (protocols, fields) => ({
    protocols,
    headers: Object.fromEntries(fields.map((field) => field.split(": "))),
  })),
);
