// Runs genuine insieme clients for a test: commands come as JSON lines on stdin, answers go to stdout.
//
//   node agent.mjs <insieme-1|insieme-2> <ws url>
//
// The package does not notice a closed socket. `LoudSocket` tells it, as an application has to: with the one error that
// makes it connect again.
import { createInterface } from "node:readline";
import WebSocket from "ws";

const [, , packageName, url] = process.argv;
const insieme = await import(packageName);
const isProject = packageName === "insieme-2";
const clients = new Map();

class LoudSocket extends WebSocket {
  set onclose(handler) {
    super.onclose = (event) => {
      handler?.(event);
      if (this.leaving) return;
      const payload = { code: "server_error", message: "the socket is gone", details: {} };
      const data = JSON.stringify({ type: "error", protocolVersion: "1.0", payload });
      this.onmessage?.({ data });
    };
  }

  close(...rest) {
    this.leaving = true;
    super.close(...rest);
  }
}

const open = ({ name, scope, token = "token", clientId = name, keep = false, clock }) => {
  const store = keep ? clients.get(name).store : insieme.createInMemoryClientStore();
  const seen = [];
  const wire = [];
  const raw = insieme.createBrowserWebSocketTransport({ url, WebSocketImpl: LoudSocket });
  const transport = {
    ...raw,
    send: async (message) => {
      wire.push(["out", message.type]);
      return raw.send(message);
    },
    onMessage: (handler) =>
      raw.onMessage((message) => {
        wire.push(["in", message.type, message.payload]);
        handler(message);
      }),
  };
  const client = insieme.createSyncClient({
    transport,
    store,
    token,
    clientId,
    ...(isProject ? { projectId: scope } : { partitions: [scope].flat() }),
    ...(clock ? { now: () => clock } : {}),
    onEvent: ({ type, payload }) => seen.push([type, payload]),
    reconnect: { enabled: true, initialDelayMs: 20, maxDelayMs: 200, jitter: 0.1 },
  });
  clients.set(name, { client, store, seen, wire });
};

const state = ({ store, client, seen, wire }) => ({
  committed: store._debug.getCommitted(),
  drafts: store._debug.getDrafts(),
  cursor: store._debug.getCursor(),
  status: client.getStatus(),
  seen,
  wire,
});

const submit = async ({ client }, events) => {
  if (isProject) return client.submitEvents(events);
  const ids = [];
  for (const event of events) ids.push(await client.submitEvent(event));
  return ids;
};

const until = async ({ store, client }, { committed = 0, drafts, connected }, timeoutMs) => {
  const end = Date.now() + timeoutMs;
  for (;;) {
    const enough =
      store._debug.getCommitted().length >= committed &&
      (drafts === undefined || store._debug.getDrafts().length <= drafts) &&
      (connected === undefined || client.getStatus().connected === connected);
    if (enough) return true;
    if (Date.now() > end) return false;
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
};

const commands = {
  open: async (input) => open(input),
  start: async ({ name }) => clients.get(name).client.start(),
  stop: async ({ name }) => clients.get(name).client.stop(),
  sync: async ({ name, since }) => clients.get(name).client.syncNow({ sinceCommittedId: since }),
  submit: async ({ name, events }) => submit(clients.get(name), events),
  state: async ({ name }) => state(clients.get(name)),
  until: async ({ name, what, timeoutMs = 30000 }) => until(clients.get(name), what, timeoutMs),
};

for await (const line of createInterface({ input: process.stdin })) {
  const { number, command, ...input } = JSON.parse(line);
  commands[command](input)
    .then((result) => ({ number, result: result ?? null }))
    .catch((error) => ({ number, error: String(error?.message ?? error) }))
    .then((answer) => process.stdout.write(`${JSON.stringify(answer)}\n`));
}
process.exit(0);
