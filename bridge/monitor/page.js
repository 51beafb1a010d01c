"use strict";
const SVG = "http://www.w3.org/2000/svg";
const PHASES = ["form", "commit", "flush", "record"];
const TABLE_STATES = { i: "to be copied", d: "being copied", f: "copied", s: "following", r: "ready" };
const GOOD = {
  streaming: "ok",
  copying: "ok",
  starting: "warn",
  stopped: "warn",
  disabled: "warn",
  error: "bad",
};
const chosen = new Map();
let answered = 0;

function make(tag, text, name) {
  // what comes from the server is text, never markup
  const node = document.createElement(tag);
  if (text !== undefined && text !== null) node.textContent = text;
  if (name) node.className = name;
  return node;
}
function draw(tag, attributes, text) {
  const node = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
}
function put(parent, ...children) {
  for (const child of children) if (child) parent.append(child);
  return parent;
}
function size(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  for (const unit of ["bytes", "kB", "MB", "GB"]) {
    if (bytes < 10240) return `${Math.round(bytes)} ${unit}`;
    bytes /= 1024;
  }
  return `${Math.round(bytes)} TB`;
}
function count(number) {
  return Math.round(number).toLocaleString("en").replaceAll(",", " ");
}
function span(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 0.095) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} days`;
}
function clock(seconds) {
  return new Date(seconds * 1000).toISOString().slice(11, 19);
}

function command(text) {
  const button = make("button", "copy");
  button.type = "button";
  const code = make("code", text);
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "copied";
    } catch {
      getSelection().selectAllChildren(code);
      button.textContent = "selected";
    }
    setTimeout(() => {
      button.textContent = "copy";
    }, 2000);
  });
  return put(make("div", null, "command"), code, button);
}
function plot(history, column, title, unit, now) {
  const figure = make("figure"),
    width = 560,
    height = 120,
    left = 58,
    bottom = 18;
  const known = history.filter((sample) => sample[column] !== null);
  const top = Math.max(column === 2 ? 1 : 1024, ...known.map((sample) => sample[column]));
  const x = (time) => left + (width - left - 6) * (1 - (now - time) / 3600),
    y = (value) => 6 + (height - bottom - 6) * (1 - value / top);
  const text = known.length
    ? `${title}: now ${unit(known.at(-1)[column])}, at most ${unit(top)}`
    : `${title}: not known yet`;
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": text });
  for (const [value, label] of [
    [0, "0"],
    [top / 2, unit(top / 2)],
    [top, unit(top)],
  ]) {
    svg.append(draw("line", { class: "axis", x1: left, x2: width - 6, y1: y(value), y2: y(value) }));
    svg.append(draw("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, label));
  }
  for (const minutes of [60, 45, 30, 15, 0]) {
    const anchor = minutes === 60 ? "start" : minutes === 0 ? "end" : "middle";
    svg.append(
      draw(
        "text",
        { x: x(now - minutes * 60), y: height - 4, "text-anchor": anchor },
        minutes ? `−${minutes} min` : "now",
      ),
    );
  }
  let run = [];
  const flush = () => {
    if (run.length) svg.append(draw("polyline", { class: "lag", points: run.join(" ") }));
    run = [];
  };
  for (const sample of history) {
    if (sample[column] === null) flush();
    else if (now - sample[0] <= 3600) run.push(`${x(sample[0]).toFixed(1)},${y(sample[column]).toFixed(1)}`);
  }
  flush();
  return put(figure, svg, make("figcaption", text));
}
function batches(list) {
  const part = make("div"),
    shown = list.slice(-30),
    width = 560,
    height = 110,
    left = 58,
    bottom = 18;
  if (!shown.length) return put(part, make("p", "no batch since the daemon began", "soft"));
  const total = (batch) => PHASES.reduce((sum, phase) => sum + (batch.seconds[phase] || 0), 0);
  const top = Math.max(...shown.map(total)),
    wide = (width - left - 6) / 30;
  const text = `seconds of the last ${shown.length} batches by phase, at most ${span(top)}`;
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": text });
  svg.append(
    draw("text", { x: left - 6, y: 14, "text-anchor": "end" }, span(top)),
    draw("text", { x: left - 6, y: height - bottom, "text-anchor": "end" }, "0"),
  );
  svg.append(draw("line", { class: "axis", x1: left, x2: width - 6, y1: height - bottom, y2: height - bottom }));
  shown.forEach((batch, index) => {
    let base = height - bottom;
    const bar = draw("g", {});
    bar.append(
      draw(
        "title",
        {},
        `${clock(batch.finished)} ${batch.end_lsn}: ${span(total(batch))}, ${count(batch.rows)} rows`,
      ),
    );
    for (const phase of PHASES) {
      const tall = ((batch.seconds[phase] || 0) / top) * (height - bottom - 8);
      base -= tall;
      bar.append(
        draw("rect", { class: phase, x: left + index * wide + 1, y: base, width: wide - 2, height: tall }),
      );
    }
    svg.append(bar);
  });
  const legend = make("div", null, "legend");
  for (const phase of PHASES) {
    const mark = draw("svg", { viewBox: "0 0 10 10", "aria-hidden": "true" });
    mark.append(draw("rect", { class: phase, width: 10, height: 10 }));
    put(legend, put(make("span"), mark, ` ${phase}`));
  }
  const table = make("table"),
    body = make("tbody"),
    heads = make("tr");
  for (const head of ["at (UTC)", "end LSN", "trans.", "rows", "delay", ...PHASES])
    heads.append(make("th", head, head === "end LSN" || head.startsWith("at") ? "" : "right"));
  for (const batch of shown.slice(-8).reverse()) {
    const row = put(make("tr"), make("td", clock(batch.finished), "number"), make("td", batch.end_lsn, "number"));
    const cells = [
      count(batch.transactions),
      count(batch.rows),
      span(batch.finished - batch.commit_time),
      ...PHASES.map((phase) => span(batch.seconds[phase] || 0)),
    ];
    for (const cell of cells) row.append(make("td", cell, "number right"));
    body.append(row);
  }
  put(
    table,
    make("caption", "the last batches, the newest first; delay: from the commit on the server to durable"),
    put(make("thead"), heads),
    body,
  );
  part.className = "batches";
  return put(part, put(make("div"), svg, legend), put(make("div", null, "scroll"), table));
}
function tables(entry) {
  const key = `tables ${entry.name}`,
    details = make("details");
  const ready = entry.tables.filter((table) => table.state === "r" || table.state === "s").length;
  details.append(
    make("summary", `${entry.tables.length} ${entry.tables.length === 1 ? "table" : "tables"}, ${ready} following`),
  );
  const fill = () => {
    if (details.querySelector("table")) return;
    const table = make("table"),
      body = make("tbody"),
      heads = make("tr");
    for (const head of ["table", "state", "files", "Delta table"]) heads.append(make("th", head));
    for (const one of entry.tables) {
      const state = make("td", TABLE_STATES[one.state] || one.state);
      if (one.copy) {
        const bar = make("progress");
        bar.max = Math.max(1, one.copy.total_bytes_estimate);
        bar.value = one.copy.bytes;
        put(
          state,
          " ",
          bar,
          make(
            "div",
            `${count(one.copy.rows)} rows, ${size(one.copy.bytes)}, ${span(one.copy.seconds_left)} left`,
            "soft",
          ),
        );
      }
      const files = make("td", one.maintenance ? count(one.maintenance.files) : "–", "number");
      if (one.maintenance && one.maintenance.error) files.append(make("div", one.maintenance.error, "bad"));
      put(body, put(make("tr"), make("td", one.name, "name"), state, files, make("td", one.path, "name soft")));
    }
    put(table, make("caption", `tables of ${entry.name}`), put(make("thead"), heads), body);
    details.append(put(make("div", null, "scroll"), table));
  };
  details.addEventListener("toggle", () => {
    chosen.set(key, details.open);
    if (details.open) fill();
  });
  const moving = entry.tables.some((table) => table.copy || (table.maintenance && table.maintenance.error));
  if (chosen.has(key) ? chosen.get(key) : moving || entry.tables.length <= 12) {
    fill();
    details.open = true;
  }
  return details;
}
function facts(pairs) {
  const list = make("dl");
  for (const [name, value, kind] of pairs) list.append(put(make("div"), make("dt", name), make("dd", value, kind)));
  return list;
}
function slotFacts(slot) {
  if (!slot) return [["slot", "not looked at yet"]];
  const status = slot.invalidation_reason ? `lost (${slot.invalidation_reason})` : slot.wal_status || "missing";
  const kind = ["reserved", "extended"].includes(status) ? "" : "bad";
  const left =
    slot.seconds_left === null
      ? []
      : [["slot lasts, at this rate", span(slot.seconds_left), slot.seconds_left < 3600 ? "bad" : ""]];
  return [["slot", status, kind], ["WAL kept for the slot", size(slot.retained_bytes)], ...left];
}
function subscription(entry, now) {
  const part = make("section"),
    state = GOOD[entry.state] || "warn";
  put(
    part,
    put(
      make("div", null, "head"),
      make("h2", entry.name),
      make("span", entry.state, `state ${state}`),
      make("span", `slot ${entry.slot_name}`, "soft"),
    ),
  );
  part.append(
    facts([
      ["lag", `${span(entry.lag_s)}, ${size(entry.lag_bytes)}`, "number"],
      ["durable up to", entry.remote_lsn || "–"],
      ["received up to", entry.received_lsn || "–"],
      ["confirmed", entry.confirmed_flush_lsn || "–"],
      ...slotFacts(entry.slot),
      ["transactions, rows", `${count(entry.transactions_total)}, ${count(entry.rows_total)}`],
      ["errors", `${entry.apply_error_count} apply, ${entry.sync_error_count} copy`],
    ]),
  );
  if (entry.last_error) {
    put(part, make("h3", `last error, ${entry.last_error.time}`), make("pre", entry.last_error.message));
  }
  if (entry.remedies.skip)
    put(part, make("div", "To skip this transaction, whole:", "soft"), command(entry.remedies.skip));
  if (entry.remedies.resync)
    put(part, make("div", "To copy all tables again:", "soft"), command(entry.remedies.resync));
  if (entry.remedies.enable) put(part, make("div", "To let it run again:", "soft"), command(entry.remedies.enable));
  for (const table of entry.left_out || []) part.append(make("p", `left out: ${table.reason}`, "warn"));
  if (entry.conflicts)
    part.append(
      make(
        "p",
        "conflicts: " +
          Object.entries(entry.conflicts)
            .map(([kind, number]) => `${kind} ${number}`)
            .join(", "),
        "warn",
      ),
    );
  put(
    part,
    make("h3", "lag over the last hour"),
    put(
      make("div", null, "plots"),
      plot(entry.lag_history, 2, "lag in time", span, now),
      plot(entry.lag_history, 1, "lag in WAL", size, now),
    ),
  );
  put(part, make("h3", "batches"), batches(entry.batches), make("h3", "tables"), tables(entry));
  return part;
}
function show(status) {
  const spark = status.spark,
    heap = spark.heap_max_bytes ? `, heap ${size(spark.heap_used_bytes)} of ${size(spark.heap_max_bytes)}` : "";
  const again = spark.restarts ? `, started again ${spark.restarts} times` : "";
  document.getElementById("about").textContent =
    `${status.version}, up ${span(status.time - status.started)}, Spark ${spark.state}${heap}${again}`;
  const rank = (entry) => (entry.state === "error" || entry.remedies.resync ? 0 : 1);
  const sorted = [...status.subscriptions].sort((a, b) => rank(a) - rank(b));
  document.getElementById("main").replaceChildren(...sorted.map((entry) => subscription(entry, status.time)));
}
async function look() {
  try {
    const response = await fetch("status.json", { cache: "no-store" });
    const status = await response.json();
    if (!response.ok) throw new Error(status.error);
    answered = Date.now();
    document.getElementById("stale").textContent = "";
    const selecting = !getSelection().isCollapsed; // do not take away what is being copied
    if (!selecting) show(status);
  } catch (error) {
    const since = answered ? ` since ${new Date(answered).toISOString().slice(11, 19)} UTC` : "";
    document.getElementById("stale").textContent = `no answer${since}`;
  }
  setTimeout(look, 5000);
}
look();
