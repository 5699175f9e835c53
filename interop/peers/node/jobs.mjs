// Jobs from standard input, one after the other, and reports to standard output.

import readline from "node:readline";

export function print(report) {
  process.stdout.write(JSON.stringify(report) + "\n");
}

export async function forEachJob(run) {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    print(await run(new URLSearchParams(line)));
  }
}
