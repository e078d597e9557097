// The console: pictures of the server come in once a second; the page is drawn from the last of them.
// Everything shown is set as text, never as markup.
"use strict";

const API = "/api/v1";
const SAMPLES = 90; // seconds in a sparkline
const ROWS = 100; // rows of a table before "more"
const NS = "http://www.w3.org/2000/svg";

const seen = { picture: null, before: null, channels: new Map(), history: new Map(), waits: [] };
const view = { sort: { column: "rate", down: true }, rows: ROWS, filter: "", here: -1, detail: null, error: "" };

// --- small tools -----------------------------------------------------------------------------------------------------

const byId = (id) => document.getElementById(id);

function h(tag, attributes = {}, ...children) {
  const node = NS_TAGS.has(tag) ? document.createElementNS(NS, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}
const NS_TAGS = new Set(["svg", "path", "rect", "line", "title"]);

const number = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const count = (value) => (Math.abs(value) >= 100000 ? compact.format(value) : number.format(value));

function bytes(value) {
  for (const unit of ["B", "KiB", "MiB", "GiB", "TiB"]) {
    if (Math.abs(value) < 1024 || unit === "TiB") return `${value < 10 && unit !== "B" ? value.toFixed(1) : Math.round(value)} ${unit}`;
    value /= 1024;
  }
}

function lasting(seconds) {
  if (seconds < 1) return seconds < 0.001 ? "0 s" : `${Math.round(seconds * 1000)} ms`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} d`;
}

const moment = (ns) => new Date(ns / 1e6).toISOString().replace("T", " ").slice(0, 19);
const ago = (at) => (at ? `${lasting(Math.max(0, seen.picture.at - at))} ago` : "never");

// --- asking the server -------------------------------------------------------------------------------------------------

const credential = {
  get: () => sessionStorage.getItem("holdfast-credential"),
  set: (text) => (text ? sessionStorage.setItem("holdfast-credential", text) : sessionStorage.removeItem("holdfast-credential")),
};

async function ask(path, signal) {
  const headers = credential.get() ? { Authorization: credential.get() } : {};
  const response = await fetch(path, { headers, signal, cache: "no-store" });
  if (response.status === 401) {
    login("The server does not know this credential.");
    throw new Error("not signed in");
  }
  if (!response.ok) {
    const body = await response.json().catch(() => ({}));
    throw new Error(body.error ? body.error.message : `${response.status} ${response.statusText}`);
  }
  return response;
}

const get = async (path) => (await ask(API + path)).json();

function login(reason) {
  const dialog = byId("login");
  byId("login-error").textContent = credential.get() ? reason : "";
  if (!dialog.open) dialog.showModal();
}

byId("login-form").addEventListener("submit", () => {
  const token = byId("token").value;
  const pair = new TextEncoder().encode(`${byId("user").value}:${byId("password").value}`);
  credential.set(token ? `Bearer ${token}` : `Basic ${btoa(String.fromCharCode(...pair))}`);
  byId("password").value = byId("token").value = "";
});

async function follow() {
  let pause = 500;
  for (;;) {
    try {
      const response = await ask(`${API}/live`);
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        text += value;
        let end;
        while ((end = text.indexOf("\n\n")) >= 0) {
          take(JSON.parse(text.slice(6, end)));
          text = text.slice(end + 2);
        }
        pause = 500;
      }
      view.error = "the server ended the connection";
    } catch (error) {
      view.error = error.message;
    }
    seen.lostAt ??= Date.now();
    seen.channels.clear();
    drawStatus();
    await new Promise((resolve) => setTimeout(resolve, pause));
    pause = Math.min(5000, pause * 2);
  }
}

// --- what came ---------------------------------------------------------------------------------------------------------

function take(picture) {
  const seconds = seen.picture ? Math.max(0.001, picture.at - seen.picture.at) : 1;
  if (seen.lostAt) {
    seen.outage = (Date.now() - seen.lostAt) / 1000;
    seen.lostAt = null;
    seen.picture = null;
    seen.waits = [];
    load();
  }
  view.error = "";
  for (const [name, last, events, size, active] of picture.channels.changed) {
    const known = seen.channels.get(name);
    const rate = known && seen.picture ? Math.max(0, last - known.last) / seconds : 0;
    seen.channels.set(name, { name, last, events, size, active, rate, at: picture.at });
  }
  for (const name of picture.channels.gone) seen.channels.delete(name);
  for (const channel of seen.channels.values()) if (channel.at !== picture.at) channel.rate = 0;
  const was = seen.picture;
  seen.before = was;
  seen.picture = picture;
  if (picture.latency) {
    seen.waits.push(picture.latency.counts);
    if (seen.waits.length > SAMPLES) seen.waits.shift();
  }
  if (was && picture.store && was.store) {
    note("events", (picture.store.events - was.store.events) / seconds);
    note("bytes", (picture.ingest.bytes - was.ingest.bytes) / seconds);
    note("frames", (picture.ingest.frames - was.ingest.frames) / seconds);
    note("syncs", (picture.store.syncs - was.store.syncs) / seconds);
  }
  draw();
}

function note(name, value) {
  const line = seen.history.get(name) ?? [];
  line.push(Math.max(0, value));
  if (line.length > SAMPLES) line.shift();
  seen.history.set(name, line);
}

// The wait that a part of all frames did not exceed, in the seconds that are kept, or since the start if none came in
// them; the upper end of its class.
function quantile(part) {
  const now = seen.waits.at(-1) ?? [];
  const sum = (counts) => counts.reduce((total, n) => total + n, 0);
  const lately = now.map((n, index) => n - seen.waits[0][index]);
  const counts = sum(lately) ? lately : now;
  const total = sum(counts);
  if (!total) return null;
  let below = 0;
  const found = counts.findIndex((n) => (below += n) >= total * part);
  return seen.picture.latency.bounds[found] ?? Infinity;
}

const waited = (seconds) => (seconds === null ? "–" : seconds === Infinity ? "> 40 s" : seconds < 0.01 ? `${(seconds * 1000).toFixed(1)} ms` : lasting(seconds));

const latest = (name) => seen.history.get(name)?.at(-1) ?? 0;

// --- pieces ------------------------------------------------------------------------------------------------------------

function sparkline(name) {
  const line = seen.history.get(name) ?? [];
  const top = Math.max(...line, 1e-9);
  const x = (index) => (100 * (SAMPLES - line.length + index)) / (SAMPLES - 1);
  const points = line.map((value, index) => `${x(index)},${24 - (value / top) * 22}`);
  const label = `last ${line.length} seconds, at most ${count(top)}`;
  return h(
    "svg",
    { viewBox: "0 0 100 26", preserveAspectRatio: "none", role: "img", "aria-label": label },
    points.length > 1 ? h("path", { class: "spark-fill", d: `M${x(0)},26 L${points.join(" L")} L${x(line.length - 1)},26 Z` }) : null,
    points.length > 1 ? h("path", { class: "spark", d: `M${points.join(" L")}` }) : null,
  );
}

function tile(name, value, note, extra) {
  return h("div", { class: "tile" }, h("div", { class: "name" }, name), h("div", { class: "value" }, value), h("div", { class: "note" }, note ?? ""), extra ?? null);
}

function bar(used, cap) {
  const part = cap ? Math.min(1, used / cap) : 0;
  const kind = part > 0.95 ? "bad" : part > 0.8 ? "warn" : "";
  const fill = h("i", { class: kind });
  fill.style.width = `${part * 100}%`;
  return h("div", { class: "bar", role: "meter", "aria-valuenow": Math.round(part * 100), "aria-valuemin": 0, "aria-valuemax": 100 }, fill);
}

function table(columns, rows, options = {}) {
  if (!rows.length) return h("div", { class: "empty" }, options.empty ?? "Nothing here.");
  const head = columns.map(([name, kind]) =>
    h("th", { class: kind === "n" ? "n" : "", scope: "col" }, options.sortable?.[name] ? sorter(name, options.sortable[name]) : name),
  );
  const body = rows.map((row) =>
    h("tr", { "data-open": row.open ?? null }, row.cells.map((cell, index) => h("td", { class: columns[index][1] ?? "" }, cell ?? ""))),
  );
  return h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, head)), h("tbody", {}, body)));
}

function sorter(name, column) {
  const mine = view.sort.column === column;
  return h(
    "button",
    {
      type: "button",
      "data-key": `sort-${column}`,
      onclick: () => {
        view.sort = { column, down: mine ? !view.sort.down : true };
        draw();
      },
    },
    `${name}${mine ? (view.sort.down ? " ↓" : " ↑") : ""}`,
  );
}

const link = (text, target) => h("a", { href: target, "data-key": target }, text);
const channelLink = (name) => link(name, `#/channel/${encodeURIComponent(name)}`);
const subscriberLink = (name) => link(name, `#/subscriber/${encodeURIComponent(name)}`);
const isDead = (name) => name.endsWith(".dead");

// What a subscriber has not confirmed, as ranges: the gaps, and everything above the highest event it confirmed.
function owed(lag, last) {
  const holes = lag.gaps.reduce((sum, [first, end]) => sum + end - first + 1, 0);
  const known = lag.gaps_total === lag.gaps.length; // a very long list is cut; then all above it counts as owed
  const highest = known ? Math.max(lag.mark, last - (lag.events - holes)) : lag.gaps.at(-1)[1];
  return highest < last ? [...lag.gaps, [highest + 1, last]] : lag.gaps;
}

function gapPicture(lag, last) {
  const top = Math.max(last, lag.mark, 1);
  const pieces = [];
  let from = 0;
  for (const [first, end] of [...owed(lag, top), [top + 1, top + 1]]) {
    if (first > from + 1) pieces.push(h("rect", { x: (100 * from) / top, y: 0, width: (100 * (first - 1 - from)) / top, height: 10 }));
    from = Math.max(from, end);
  }
  const label = `confirmed up to ${number.format(lag.mark)} of ${number.format(top)}, ${lag.gaps_total} gaps`;
  return h("svg", { class: "gaps", viewBox: "0 0 100 10", preserveAspectRatio: "none", role: "img", "aria-label": label }, h("title", {}, label), pieces);
}

// --- the pages ---------------------------------------------------------------------------------------------------------

function overview() {
  const p = seen.picture;
  const lagged = p.subscribers.map((s) => ({ ...s, behind: s.channels.reduce((sum, lag) => sum + lag.events, 0) }));
  const behind = lagged.reduce((most, s) => (s.behind > (most?.behind ?? 0) ? s : most), null);
  const tiles = [];
  if (p.store) {
    tiles.push(
      tile("Events accepted", `${count(latest("events"))}/s`, `${count(p.store.events)} since the start`, sparkline("events")),
      tile("Coming in", `${bytes(latest("bytes"))}/s`, `${count(latest("frames"))} frames/s, ${bytes(p.ingest.inflight_bytes)} in flight`, sparkline("bytes")),
      tile("Accepted within", waited(quantile(0.5)), `for half of the frames, ${waited(quantile(0.99))} for 99 %`),
      tile("Syncs", `${count(latest("syncs"))}/s`, `${p.store.syncs ? (p.store.events / p.store.syncs).toFixed(1) : "0"} events share one`, sparkline("syncs")),
      tile("Log", bytes(p.store.wal_bytes), `of ${bytes(p.caps.wal_bytes)} before it pushes back`, bar(p.store.wal_bytes, p.caps.wal_bytes)),
      tile(
        "On disk",
        bytes(p.store.segment_bytes + p.store.wal_bytes),
        p.caps.store_bytes ? `of ${bytes(p.caps.store_bytes)} allowed` : `${bytes(p.disk.free)} free on the disk`,
        p.caps.store_bytes ? bar(p.store.segment_bytes + p.store.wal_bytes, p.caps.store_bytes) : bar(p.disk.total - p.disk.free, p.disk.total),
      ),
      tile("Memory for events", bytes(p.store.open_bytes), `of ${bytes(p.caps.memory_bytes)}`, bar(p.store.open_bytes, p.caps.memory_bytes)),
      tile("Connections", count(p.connections.length), Object.entries(p.ingest.by_kind).map(([kind, n]) => `${n} ${kind}`).join(", ") || "nobody"),
    );
  }
  tiles.push(tile("Furthest behind", behind ? count(behind.behind) : "nobody", behind ? `events, ${behind.name}` : "every subscriber is up to date"));
  const page = [h("h1", {}, "Overview"), h("div", { class: "tiles" }, tiles)];
  page.push(h("h2", {}, "Busiest channels"), channelTable(8), h("h2", {}, "Subscribers"), subscriberTable(8));
  if (p.senders) page.push(h("h2", {}, "Senders"), senderTable(8));
  if (p.connections) page.push(h("h2", {}, "Connections"), connectionTable(8));
  if (p.queries?.length) page.push(h("h2", {}, "Spark queries"), queryTable());
  if (p.tier) page.push(h("h2", {}, "Object store"), tierPicture(p.tier));
  if (p.store) page.push(h("h2", {}, "Trouble"), troubleTable());
  if (p.errors?.length) page.push(h("h2", {}, "Last errors"), errorTable(p.errors.slice(0, 8)), h("p", { class: "more" }, link("All that are kept", "#/errors")));
  return page;
}

function channelRows() {
  const wanted = view.filter.toLowerCase();
  const { column, down } = view.sort;
  const rows = [...seen.channels.values()].filter((c) => c.name.toLowerCase().includes(wanted));
  rows.sort((a, b) => (a[column] < b[column] ? -1 : a[column] > b[column] ? 1 : a.name < b.name ? 1 : -1) * (down ? -1 : 1));
  return rows;
}

function channelTable(limit) {
  const rows = channelRows();
  const shown = rows.slice(0, limit);
  const columns = [["channel"], ["events/s", "n"], ["events", "n"], ["size", "n"], ["last seq", "n"], ["last event", "n"]];
  const cells = shown.map((c) => ({
    open: `#/channel/${encodeURIComponent(c.name)}`,
    cells: [
      h("span", {}, channelLink(c.name), isDead(c.name) && c.events ? h("span", { class: "bad" }, "  dead letters") : null),
      count(c.rate), count(c.events), bytes(c.size), number.format(c.last), ago(c.active),
    ],
  }));
  const sortable = { channel: "name", "events/s": "rate", events: "events", size: "size", "last event": "active" };
  const found = [table(columns, cells, { sortable, empty: view.filter ? "No channel has that in its name." : "No channel yet. Try: holdfast send trades file.ndjson" })];
  if (rows.length > shown.length) {
    const text = `Show more (${number.format(rows.length - shown.length)} are hidden)`;
    found.push(h("p", { class: "more" }, limit === view.rows ? h("button", { type: "button", "data-key": "more", onclick: () => { view.rows += 400; draw(); } }, text) : link(`All ${number.format(rows.length)} channels`, "#/channels")));
  }
  return h("div", {}, found);
}

function subscriberTable(limit) {
  const wanted = view.filter.toLowerCase();
  const rows = seen.picture.subscribers.filter((s) => s.name.toLowerCase().includes(wanted) || s.patterns.some((p) => p.includes(wanted)));
  const columns = [["subscriber"], ["channel"], ["confirmed"], ["behind", "n"], ["size", "n"], ["oldest", "n"], ["gaps", "n"], ["held", "n"]];
  const cells = rows.slice(0, limit).flatMap((s) =>
    (s.channels.length ? s.channels.slice(0, 5) : [null]).map((lag) => ({
      open: `#/subscriber/${encodeURIComponent(s.name)}`,
      cells: lag
        ? [subscriberLink(s.name), channelLink(lag.channel), gapPicture(lag, seen.channels.get(lag.channel)?.last ?? 0), count(lag.events), bytes(lag.bytes), lasting(lag.seconds), count(lag.gaps_total), count(s.leases)]
        : [subscriberLink(s.name), h("span", { class: "dim" }, s.patterns.join(", "))],
    })),
  );
  const found = [table(columns, cells, { empty: "No subscriber yet: a Spark query with option(\"subscriber\", …), a durable consumer, or store.subscriber(…)." })];
  if (rows.length > limit) found.push(h("p", { class: "more" }, link(`All ${number.format(rows.length)} subscribers`, "#/subscribers")));
  return h("div", {}, found);
}

function connectionTable(limit) {
  const rows = seen.picture.connections.slice(0, limit);
  const columns = [["peer"], ["who"], ["speaks"], ["frames", "n"], ["received", "n"], ["waiting", "n"], ["state"], ["slot"]];
  return table(
    columns,
    rows.map((c) => ({
      cells: [
        c.peer, c.principal || h("span", { class: "dim" }, "everyone"), c.kind, count(c.frames), bytes(c.bytes), count(c.waiting),
        c.last_error ? h("span", { class: "bad" }, c.last_error) : c.paused ? h("span", { class: "warn" }, `waits: ${c.paused}`) : "reading",
        h("code", { class: "dim" }, c.slot_id ? c.slot_id.slice(0, 8) : ""),
      ],
    })),
    { empty: "Nobody is connected." },
  );
}

function senderTable(limit) {
  const columns = [["slot"], ["state"], ["who"], ["peer"], ["outages", "n"], ["last outage", "n"], ["sent again", "n"]];
  const state = (s) =>
    s.connected ? h("span", {}, `connected for ${lasting(seen.picture.at - s.since)}`) : h("span", { class: "bad" }, `away for ${lasting(Math.max(0, seen.picture.at - s.since))}`);
  const rows = seen.picture.senders.slice(0, limit).map((s) => ({
    cells: [
      h("code", { title: s.slot_id }, s.slot_id.slice(0, 8)), state(s), s.principal || h("span", { class: "dim" }, "everyone"), s.peer,
      count(s.outages), s.outages ? lasting(s.outage_s) : "", s.replayed ? `${count(s.replayed)} frames` : "",
    ],
  }));
  return table(columns, rows, { empty: "No sender with a slot has been here." });
}

function errorTable(errors) {
  const columns = [["when"], ["what"], ["why", "wide"], ["channel"], ["from"]];
  const rows = errors.map((e) => ({
    cells: [
      h("span", { title: moment(e.at_ns) }, ago(e.at_ns / 1e9)), h("span", { class: "bad" }, e.category), e.message,
      e.channel ? channelLink(e.channel) : "", `${e.principal ? `${e.principal} at ` : ""}${e.peer}${e.connection === null ? "" : `, connection ${e.connection}`}`,
    ],
  }));
  return table(columns, rows, { empty: "Nothing was refused since the start." });
}

function errorPage() {
  const detail = view.detail;
  const page = [h("h1", {}, "Errors"), h("h2", {}, "Refused, newest first")];
  const newest = detail?.errors?.[0]?.id ?? 0;
  if (detail?.errors) detail.errors.unshift(...(seen.picture.errors ?? []).filter((e) => e.id > newest));
  page.push(detail?.errors ? errorTable(detail.errors) : h("div", { class: "empty" }, detail?.error ?? "Loading…"));
  const dead = [...seen.channels.values()].filter((c) => isDead(c.name) && c.events);
  const rows = dead.map((c) => ({ open: `#/channel/${encodeURIComponent(c.name)}`, cells: [channelLink(c.name), count(c.events), ago(c.active)] }));
  page.push(h("h2", {}, "Dead letters: open a channel, then look into an event"), table([["channel"], ["events", "n"], ["last", "n"]], rows, { empty: "None." }));
  if (seen.picture.store) page.push(h("h2", {}, "Trouble"), troubleTable());
  return page;
}

function queryTable() {
  const columns = [["query"], ["batch", "n"], ["rows/s", "n"], ["rows", "n"], ["behind", "n"], ["took", "n"], ["heard", "n"]];
  return table(columns, seen.picture.queries.map((q) => ({
    cells: [h("span", {}, q.name, q.error ? h("span", { class: "bad" }, `  ${q.error}`) : null), count(q.batch), count(q.rows_per_s), count(q.rows), count(q.behind), lasting(q.batch_s), ago(q.at)],
  })));
}

function tierPicture(tier) {
  const upload = tier.upload ?? {};
  return h(
    "div",
    { class: "tiles" },
    tile("Not there yet", bytes(upload.pending_bytes ?? 0), `${count(upload.pending_segments ?? 0)} segments, oldest ${lasting(upload.lag_s ?? 0)}`),
    tile("In the object store", `${count(tier.segments)} segments`, `${bytes(upload.uploaded_bytes ?? 0)} uploaded since the start`),
    tile("Trouble", tier.alarm ? h("span", { class: "bad" }, "alarm") : "none", tier.alarm ?? `${count(tier.failures)} requests were repeated`),
  );
}

function troubleTable() {
  const p = seen.picture;
  const rows = [];
  for (const [category, n] of Object.entries(p.ingest.refusals)) rows.push(["frames refused", category, n, "bad"]);
  for (const [reason, n] of Object.entries(p.losses)) if (n) rows.push(["events gone unconfirmed", reason, n, "bad"]);
  for (const c of seen.channels.values()) if (isDead(c.name) && c.events) rows.push(["dead letters", channelLink(c.name), c.events, "warn"]);
  if (p.ingest.stalls) rows.push(["frames that waited for a full store", "", p.ingest.stalls, "warn"]);
  if (p.store.throttled) rows.push(["commits that met a bound", "", p.store.throttled, "warn"]);
  if (p.store.scrub_findings) rows.push(["damaged segments", "found by scrubbing; run holdfast verify", p.store.scrub_findings, "bad"]);
  if (p.store.seal_postponed) rows.push(["the disk is full", p.store.seal_postponed, 1, "bad"]);
  const others = p.errors.filter((e) => !(e.category in p.ingest.refusals)); // connections that were not let in, requests
  if (others.length) rows.push(["refused lately, no frames", link("see errors", "#/errors"), others.length, "warn"]);
  if (p.ingest.duplicates) rows.push(["frames sent again and recognised", "", p.ingest.duplicates, "dim"]);
  const cells = rows.map(([what, where, n, kind]) => ({ cells: [h("span", { class: kind }, what), where, number.format(n)] }));
  return table([["what"], ["where"], ["how many", "n"]], cells, { empty: "None: nothing was refused, lost or damaged." });
}

// --- pages of one thing ------------------------------------------------------------------------------------------------

async function loadChannel(name, from) {
  const path = `/channels/${encodeURIComponent(name)}`;
  const [channel, segments, events] = await Promise.all([
    get(path),
    get(`${path}/segments?limit=1000`),
    get(`${path}/events?limit=25${from ? `&from_seq=${from}` : ""}`),
  ]);
  return { channel: channel.data, segments: segments.data, events: events.data, more: events.next, from };
}

function channelPage(name) {
  const detail = view.detail;
  const now = seen.channels.get(name);
  const page = [h("h1", {}, name, isDead(name) ? h("span", { class: "dim" }, "  (dead letters)") : null)];
  if (!detail?.channel) return [...page, h("div", { class: "empty" }, detail?.error ?? "Loading…")];
  const facts = detail.channel;
  const pair = (label, value) => h("div", {}, h("span", { class: "dim" }, label), h("b", {}, value));
  page.push(
    h(
      "div",
      { class: "pairs" },
      pair("events", number.format(now?.events ?? facts.events)), pair("coming in", `${count(now?.rate ?? 0)}/s`), pair("size", bytes(now?.size ?? facts.bytes)),
      pair("seqs", facts.first_seq === null ? "none" : `${number.format(facts.first_seq)} – ${number.format(now?.last ?? facts.last_seq)}`),
      pair("segments", number.format(detail.segments.length)), pair("last event", ago(now?.active)),
    ),
  );
  const followers = seen.picture.subscribers.flatMap((s) => s.channels.filter((lag) => lag.channel === name).map((lag) => ({ name: s.name, lag })));
  page.push(h("h2", {}, "Segments, and who still needs them"), timeline(detail.segments, followers, now?.last ?? facts.last_seq ?? 0));
  page.push(
    table([["subscriber"], ["confirmed"], ["mark", "n"], ["behind", "n"], ["gaps", "n"]], followers.map(({ name: who, lag }) => ({
      open: `#/subscriber/${encodeURIComponent(who)}`,
      cells: [subscriberLink(who), gapPicture(lag, now?.last ?? 0), number.format(lag.mark), count(lag.events), count(lag.gaps_total)],
    })), { empty: "Nobody follows this channel, so nothing is deleted but by its limits." }),
  );
  page.push(h("h2", {}, "Events"), eventTable(name, detail));
  page.push(h("h2", {}, "Columns"), table([["column"], ["type"], ["null"]], facts.columns.map((c) => ({ cells: [c.name, h("code", {}, c.type), c.nullable ? "yes" : "no"] }))));
  page.push(h("h2", {}, "Limits"), h("div", { class: "pairs" }, Object.entries(facts.limits).map(([key, value]) => pair(key, value === 0 ? "unlimited" : String(value === "" ? "–" : value)))));
  return page;
}

function timeline(segments, followers, last) {
  if (!segments.length) return h("div", { class: "empty" }, "No segment yet: events are in the log until one is sealed.");
  const first = segments[0].first_seq;
  const top = Math.max(last, segments.at(-1).last_seq);
  const x = (seq) => (1000 * (seq - first)) / Math.max(1, top - first + 1);
  const wanting = followers.map(({ name, lag }) => ({ name, ranges: owed(lag, last) }));
  const meets = (segment) => ([from, to]) => from <= segment.last_seq && to >= segment.first_seq;
  const needed = (segment) => wanting.filter(({ ranges }) => ranges.some(meets(segment))).map(({ name }) => name).sort();
  const rects = segments.map((segment) => {
    const who = needed(segment);
    const text = `segment ${segment.segment}: ${number.format(segment.first_seq)} – ${number.format(segment.last_seq)}, ${bytes(segment.bytes)}, ${moment(segment.last_ingested_at_ns)}; ${who.length ? `needed by ${who.join(", ")}` : "needed by nobody"}`;
    const width = Math.max(0.5, x(segment.last_seq + 1) - x(segment.first_seq) - 0.6);
    return h("rect", { class: who.length ? "" : "old", x: x(segment.first_seq), y: 8, width, height: 26 }, h("title", {}, text));
  });
  const marks = followers.filter(({ lag }) => lag.mark >= first).map(({ name, lag }) => h("line", { class: "mark", x1: x(lag.mark + 1), x2: x(lag.mark + 1), y1: 0, y2: 42 }, h("title", {}, `${name}: ${number.format(lag.mark)}`)));
  const label = `${segments.length} segments from ${number.format(first)} to ${number.format(top)}`;
  return h("div", { class: "scroll" }, h("svg", { class: "strip", viewBox: "0 0 1000 44", preserveAspectRatio: "none", role: "img", "aria-label": label }, rects, marks));
}

function eventTable(name, detail) {
  if (!detail.events.length) return h("div", { class: "empty" }, "No events from here on.");
  const names = Object.keys(detail.events[0]).filter((key) => !key.startsWith("_"));
  const columns = [["seq", "n"], ["came in"], ...names.slice(0, 8).map((key) => [key]), ["", ""]];
  const text = (value) => (value === null ? h("span", { class: "dim" }, "null") : typeof value === "object" ? JSON.stringify(value) : String(value));
  const rows = detail.events.map((event) => ({
    cells: [
      number.format(event._seq), String(event._ingested_at).replace("T", " ").slice(0, 19),
      ...names.slice(0, 8).map((key) => { const shown = text(event[key]); return typeof shown === "string" && shown.length > 60 ? `${shown.slice(0, 60)}…` : shown; }),
      h("button", { type: "button", "data-key": `event-${event._seq}`, onclick: () => { detail.open = detail.open === event._seq ? null : event._seq; draw(); } }, detail.open === event._seq ? "Hide" : "Look"),
    ],
  }));
  const opened = detail.events.find((event) => event._seq === detail.open);
  const ask = (from) => h("button", { type: "button", "data-key": `from-${from}`, onclick: () => open(() => loadChannel(name, from)) }, from === undefined ? "Latest" : from === 1 ? "First" : "Later");
  const later = detail.events.at(-1)._seq + 1;
  return h("div", {}, table(columns, rows), opened ? h("pre", { id: "event" }, JSON.stringify(opened, null, 2)) : null, h("p", { class: "more" }, ask(1), " ", detail.more ? ask(later) : null, " ", ask(undefined)));
}

function subscriberPage(name) {
  const found = seen.picture.subscribers.find((s) => s.name === name);
  const page = [h("h1", {}, name)];
  if (!found) return [...page, h("div", { class: "empty" }, "There is no such subscriber, or it is not among those furthest behind.")];
  const pair = (label, value) => h("div", {}, h("span", { class: "dim" }, label), h("b", {}, value));
  page.push(
    h("div", { class: "pairs" }, pair("follows", found.patterns.join(", ")), pair("reads", found.newest_first ? "newest first" : "oldest first"), pair("since", moment(found.created_at_ns)), pair("held now", count(found.leases)), pair("waiting to be tried again", count(found.waiting))),
    h("h2", {}, "Answers since the start"),
    h("div", { class: "pairs" }, Object.entries(found.outcomes).map(([outcome, n]) => pair(outcome, number.format(n)))),
    h("h2", {}, "Channels"),
    table([["channel"], ["confirmed"], ["mark", "n"], ["behind", "n"], ["size", "n"], ["oldest", "n"], ["gaps", "wide"]], found.channels.map((lag) => ({
      open: `#/channel/${encodeURIComponent(lag.channel)}`,
      cells: [channelLink(lag.channel), gapPicture(lag, seen.channels.get(lag.channel)?.last ?? 0), number.format(lag.mark), count(lag.events), bytes(lag.bytes), lasting(lag.seconds), lag.gaps.slice(0, 20).map(([a, b]) => (a === b ? number.format(a) : `${number.format(a)}–${number.format(b)}`)).join(", ") + (lag.gaps_total > 20 ? ` and ${lag.gaps_total - 20} more` : "")],
    }))),
  );
  return page;
}

async function open(load) {
  try {
    view.detail = await load();
  } catch (error) {
    view.detail = { error: error.message };
  }
  draw();
}

// --- drawing -----------------------------------------------------------------------------------------------------------

function route() {
  const [, page = "", name = ""] = location.hash.split("/");
  return { page, name: decodeURIComponent(name) };
}

function pageOf({ page, name }) {
  if (page === "channels") return [h("h1", {}, "Channels"), channelTable(view.rows)];
  if (page === "subscribers") return [h("h1", {}, "Subscribers"), subscriberTable(view.rows)];
  if (page === "connections") return connectionPage();
  if (page === "errors") return errorPage();
  if (page === "channel") return channelPage(name);
  if (page === "subscriber") return subscriberPage(name);
  return overview();
}

function connectionPage() {
  const heading = h("h1", {}, "Connections");
  if (!seen.picture.connections) return [heading, h("div", { class: "empty" }, "Connections are for administrators.")];
  return [heading, h("h2", {}, "Senders, those that are away first"), senderTable(200), h("h2", {}, "All connections"), connectionTable(200)];
}

function draw() {
  drawStatus();
  if (!seen.picture) return;
  const main = byId("main");
  const focused = document.activeElement?.closest("#main")?.id ? document.activeElement.dataset?.key : null;
  const [x, y] = [window.scrollX, window.scrollY];
  const where = route();
  main.replaceChildren(...pageOf(where));
  if (focused) main.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  markRow(false);
  window.scrollTo(x, y);
  for (const item of document.querySelectorAll("nav a")) {
    const here = item.getAttribute("href") === `#/${where.page}` || (where.page === "channel" && item.hash === "#/channels") || (where.page === "subscriber" && item.hash === "#/subscribers");
    if (here) item.setAttribute("aria-current", "page");
    else item.removeAttribute("aria-current");
  }
}

function drawStatus() {
  const pill = byId("status");
  const p = seen.picture;
  let [text, kind] = ["connecting", ""];
  if (view.error) [text, kind] = [`no answer for ${lasting((Date.now() - (seen.lostAt ?? Date.now())) / 1000)}`, "bad"];
  else if (p?.server.failed) [text, kind] = ["the store has failed", "bad"];
  else if (p?.server.draining) [text, kind] = ["stopping", "warn"];
  else if (p?.server.insecure) [text, kind] = ["open to everyone", "warn"];
  else if (p) [text, kind] = ["accepting", "ok"];
  pill.textContent = text;
  pill.className = `pill ${kind}`;
  pill.title = view.error;
  if (p) {
    const outage = seen.outage ? `, back after ${lasting(seen.outage)}` : "";
    byId("facts").textContent = `${p.server.version}, up ${lasting(p.at - p.server.started_at)}${outage}`;
  }
}

function markRow(scroll) {
  const rows = [...document.querySelectorAll("tbody tr[data-open]")];
  rows.forEach((row, index) => row.classList.toggle("here", index === view.here));
  if (scroll) rows[view.here]?.scrollIntoView({ block: "nearest" });
  return rows;
}

function arrive() {
  view.detail = null;
  view.here = -1;
  view.rows = ROWS;
  load();
  draw();
  window.scrollTo(0, 0);
}

function load() {
  const { page, name } = route();
  if (page === "channel") open(() => loadChannel(name));
  if (page === "errors") open(async () => ({ errors: (await get("/errors?limit=200")).data }));
}

// --- keys --------------------------------------------------------------------------------------------------------------

const GO = { o: "#/", c: "#/channels", s: "#/subscribers", n: "#/connections", e: "#/errors" };

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  localStorage.setItem("holdfast-theme", theme);
}

function switchTheme() {
  const dark = document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  setTheme(dark === "dark" ? "light" : "dark");
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || byId("login").open) return;
  const typing = event.target.matches("input");
  if (event.key === "Escape") {
    if (typing) event.target.blur();
    else history.back();
  } else if (typing) {
    return;
  } else if (event.key === "/") {
    event.preventDefault();
    byId("search").focus();
  } else if (event.key === "t") switchTheme();
  else if (event.key in GO) location.hash = GO[event.key];
  else if (event.key === "j" || event.key === "k") {
    const rows = markRow(false);
    view.here = Math.max(0, Math.min(rows.length - 1, view.here + (event.key === "j" ? 1 : -1)));
    markRow(true);
  } else if (event.key === "Enter" && view.here >= 0 && document.activeElement === document.body) {
    location.hash = markRow(false)[view.here]?.dataset.open ?? location.hash;
  }
});

byId("search").addEventListener("input", (event) => {
  view.filter = event.target.value;
  view.rows = ROWS;
  const { page } = route();
  if (view.filter && !["channels", "subscribers"].includes(page)) location.hash = "#/channels";
  draw();
});
byId("theme").addEventListener("click", switchTheme);
window.addEventListener("hashchange", arrive);
if (localStorage.getItem("holdfast-theme")) document.documentElement.dataset.theme = localStorage.getItem("holdfast-theme");
setInterval(drawStatus, 1000);
arrive();
follow();
