'use strict';
const EVERY_MS = 5000, TIMEOUT_MS = 10000, LAG_TOO_HIGH_S = 300, OPEN_AT_FIRST = 4, TABLES_OPEN_AT_FIRST = 20;
const STATES = { // colour, symbol
  starting: ['info', '○'], copying: ['info', '◐'], streaming: ['good', '●'],
  error: ['bad', '▲'], stopped: ['warn', '■'], disabled: ['warn', '–'],
};
const TABLE_STATES = {i: 'to be copied', d: 'being copied', f: 'copied', s: 'following', r: 'ready'};
const PHASES = ['form', 'commit', 'flush', 'record']; // of a batch, in this order
const EDGES = ['', 'warn', 'bad'];

// --- text ---------------------------------------------------------------------------------------------------------

const round = (value) => value >= 10 || value === 0 ? value.toFixed(0) : String(+value.toPrecision(2));
const count = (value) => value == null ? '-' : String(value).replace(/\B(?=(\d{3})+(?!\d))/g, '\u202f');
const plural = (number, word, words = `${word}s`) => `${count(number)} ${number === 1 ? word : words}`;
const clock = (time_s) => new Date(time_s * 1000).toISOString().slice(11, 19);

function size(bytes) {
  if (bytes == null) return '-';
  const units = ['bytes', 'kB', 'MB', 'GB', 'TB'];
  let value = bytes, unit = 0;
  while (value >= 1024 && unit < 4) { value /= 1024; unit += 1; }
  return `${unit ? round(value) : value} ${units[unit]}`;
}

function duration(seconds) {
  if (seconds == null) return '-';
  if (seconds < 120) return `${round(seconds)} s`;
  const minutes = Math.floor(seconds / 60), hours = Math.floor(minutes / 60), days = Math.floor(hours / 24);
  if (minutes < 60) return seconds % 60 < 1 ? `${minutes} min` : `${minutes} min ${Math.floor(seconds % 60)} s`;
  if (hours < 48) return minutes % 60 ? `${hours} h ${minutes % 60} min` : `${hours} h`;
  return hours % 24 ? `${days} d ${hours % 24} h` : `${days} d`;
}

const when = (iso) => iso ? iso.replace('T', ' ').replace('+00:00', ' UTC') : '-';

// --- elements: strings become text nodes, never markup --------------------------------------------------------------

function attach(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) if (value != null) node.setAttribute(name, value);
  node.append(...children.flat().filter((child) => child != null));
  return node;
}
const h = (tag, attributes = {}, ...children) => attach(document.createElement(tag), attributes, children);
const s = (tag, attributes = {}, ...children) =>
  attach(document.createElementNS('http://www.w3.org/2000/svg', tag), attributes, children);

const filled = new WeakMap();
/** Build a node's children, unless they show these data already: selected text, focus and scrolling stay. */
function fill(node, data, build) {
  const key = JSON.stringify(data);
  if (filled.get(node) === key) return;
  filled.set(node, key);
  node.replaceChildren(...[build(data)].flat().filter((child) => child != null));
}

const facts = (title, rows) => h('div', {}, h('h3', {}, title), h('dl', {}, ...rows.filter(Boolean).map(
  ([term, value, cls]) => [h('dt', {}, term), h('dd', {class: cls}, value)])));
const badge = (cls, symbol, word) =>
  h('span', {class: `badge ${cls}`}, h('span', {'aria-hidden': true}, symbol), ' ', word);

function command(label, text) {
  const code = h('code', {}, text), button = h('button', {type: 'button', 'aria-label': `Copy: ${text}`}, 'copy');
  const said = h('span', {role: 'status', class: 'muted'});
  button.addEventListener('click', async () => {
    try {
      await navigator.clipboard.writeText(text);
      said.textContent = 'copied';
    } catch { // no permission, or a page without TLS
      getSelection().selectAllChildren(code);
      said.textContent = 'selected: press Ctrl-C';
    }
  });
  return h('div', {class: 'command'}, h('span', {}, label), code, button, said);
}

// --- what is wrong with a subscription, worst first: [1 (warning) or 2 (problem), text] ------------------------------

function slotSeverity(slot) {
  const left_s = slot.seconds_left ?? Infinity;
  if (slot.invalidation_reason || ['lost', 'unreserved', 'missing'].includes(slot.wal_status)) return 2;
  if (left_s < 3600) return 2;
  return slot.wal_status === 'extended' || left_s < 86400 ? 1 : 0;
}

function problemsOf(sub) {
  const found = [], add = (severity, text) => found.push([severity, text]);
  const {slot, last_error: error} = sub;
  if (error) add(2, `${sub.state === 'error' ? '' : `${sub.state}, last `}error: ${error.message.split('\n')[0]}`);
  else if (sub.state === 'error') add(2, 'error');
  if (slot && slotSeverity(slot)) {
    const left = slot.seconds_left == null ? '' : `, lost in about ${duration(slot.seconds_left)} at this rate`;
    const why = slot.invalidation_reason ? ` (${slot.invalidation_reason})` : '';
    const holds = slot.retained_bytes == null ? '' : `, holds ${size(slot.retained_bytes)}`;
    add(slotSeverity(slot), `slot ${sub.slot_name} is ${slot.wal_status}${why}${holds}${left}`);
  }
  if (slot?.synchronous) {
    const ever = slot.active ? '' : ', for ever if it does not stream';
    add(slot.active ? 1 : 2, `the server's commits wait for it (synchronous_standby_names)${ever}`);
  }
  if (sub.state === 'disabled') add(1, 'disabled; its slot goes on holding WAL on the server');
  if (sub.state === 'stopped') add(1, 'stopped');
  if (sub.lag_s > LAG_TOO_HIGH_S) add(1, `${duration(sub.lag_s)} behind`);
  if (!slot && sub.remote_lsn && ['streaming', 'copying'].includes(sub.state)) add(1, 'the server does not answer');
  if (sub.skip_lsn) add(1, `will skip the transaction that finished at ${sub.skip_lsn}`);
  const failed = sub.tables.filter((table) => table.maintenance?.error).length;
  if (failed) add(1, `maintenance of ${plural(failed, 'table')} failed, and is tried again`);
  if (sub.left_out?.length) add(1, `Delta cannot hold ${plural(sub.left_out.length, 'published table')}`);
  if (sub.waiting?.length) add(2, `${plural(sub.waiting.length, 'table')} waiting for a resync`);
  if (sub.differences?.length) {
    const named = new Set(sub.differences.map(({relation}) => relation));
    add(1, `${plural(named.size, 'table')} not as published`);
  }
  return found.sort((a, b) => b[0] - a[0]);
}

// --- plots --------------------------------------------------------------------------------------------------------

// the highest value of a y axis, so that it and its half are short to read
const SECONDS = [.1, .2, .4, 1, 2, 4, 10, 20, 60, 120, 240, 600, 1200, 3600, 7200, 14400, 43200, 86400, 172800, 864000];
const BYTES = [1, 2, 3, 4].flatMap((unit) => [1, 2, 4, 10, 20, 40, 100, 200, 400].map((n) => n * 1024 ** unit));
const LEFT = 62, RIGHT = 8, TOP = 8, BOTTOM = 20;

/** An empty plot: grid, labels of the y axis, and how values become y. */
function axes(label, width, height, highest, steps, format) {
  const top = steps.find((step) => step >= highest) ?? highest;
  const y = (value) => +(height - BOTTOM - value / top * (height - BOTTOM - TOP)).toFixed(1);
  const svg = s('svg', {viewBox: `0 0 ${width} ${height}`, height, role: 'img', 'aria-label': label});
  for (const value of [0, top / 2, top]) {
    svg.append(s('line', {class: 'grid', x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value)}),
      s('text', {x: LEFT - 6, y: y(value) + 4, 'text-anchor': 'end'}, format(value)));
  }
  return {svg, y, base: y(0)};
}

/** Lag over the last hour; a null, or half a minute without a value, leaves a gap. */
function lagPlot(title, history, column, width, steps, format) {
  const height = 130, scale = (width - RIGHT - LEFT) / 3600, end = history.at(-1)[0], now = history.at(-1)[column];
  const x = (time_s) => +(width - RIGHT - (end - time_s) * scale).toFixed(1);
  const points = history.filter((point) => point[column] != null && point[0] > end - 3600);
  const peak = points.reduce((a, b) => b[column] > a[column] ? b : a, points[0]);
  const summary = peak ? `now ${format(now)}, highest ${format(peak[column])} at ${clock(peak[0])}` : 'no values';
  const label = `${title} over the last hour: ${summary}`;
  const {svg, y, base} = axes(label, width, height, peak?.[column] ?? 0, steps, format);
  for (let tick = Math.ceil((end - 3600) / 900) * 900; tick <= end; tick += 900) {
    const anchor = x(tick) > width - 24 ? 'end' : 'middle';
    svg.append(s('text', {x: x(tick), y: height - 5, 'text-anchor': anchor}, clock(tick).slice(0, 5)),
      s('line', {class: 'grid', x1: x(tick), x2: x(tick), y1: base, y2: base + 4}));
  }
  const runs = [];
  let before = null;
  for (const [time_s, ...values] of history) {
    const value = values[column - 1];
    if (value != null && time_s > end - 3600) {
      if (before == null || time_s - before > 30) runs.push([]);
      runs.at(-1).push([x(time_s), y(value)]);
    }
    before = value == null ? null : time_s;
  }
  for (const run of runs) {
    const line = run.map((point) => point.join(' ')).join('L');
    svg.append(s('path', {class: 'under', d: `M${run[0][0]} ${base}L${line}L${run.at(-1)[0]} ${base}Z`}),
      s('path', {class: 'curve', d: `M${line}${run.length === 1 ? 'h.1' : ''}`}));
  }
  const readout = h('span', {class: 'muted'}, summary), cursor = s('line', {class: 'cursor', y1: TOP, y2: base});
  svg.addEventListener('pointermove', (event) => {
    const under = event.clientX - svg.getBoundingClientRect().left;
    const distance = (point) => Math.abs(x(point[0]) - under);
    const nearest = points.reduce((a, b) => distance(b) < distance(a) ? b : a, points[0]);
    if (!nearest) return;
    svg.append(attach(cursor, {x1: x(nearest[0]), x2: x(nearest[0])}, []));
    readout.textContent = `${clock(nearest[0])}: ${format(nearest[column])}`;
  });
  svg.addEventListener('pointerleave', () => { cursor.remove(); readout.textContent = summary; });
  return h('figure', {}, h('figcaption', {}, h('h3', {}, title), readout), svg);
}

const total = (batch) => PHASES.reduce((sum, phase) => sum + (batch.seconds[phase] ?? 0), 0);

function batchBars(batches, width) {
  const height = 176, highest = Math.max(...batches.map(total));
  const step = Math.min(22, (width - LEFT - RIGHT) / batches.length), end = LEFT + step * batches.length;
  const last = plural(batches.length, 'batch', 'batches');
  const label = `Seconds by phase of the last ${last}, highest ${duration(highest)}`;
  const {svg, y, base} = axes(label, width, height, highest, SECONDS, duration);
  batches.forEach((batch, index) => {
    const parts = PHASES.map((phase) => `${phase} ${duration(batch.seconds[phase] ?? 0)}`);
    const bar = s('g', {}, s('title', {}, `${clock(batch.finished)}: ${parts.join(', ')}`));
    const place = {x: (LEFT + index * step + .5).toFixed(1), width: Math.max(1, step - 1.5).toFixed(1)};
    let from = 0;
    for (const phase of PHASES) {
      const to = from + (batch.seconds[phase] ?? 0), height = Math.max(0, y(from) - y(to)).toFixed(1);
      bar.append(s('rect', {class: phase, ...place, y: y(to), height}));
      from = to;
    }
    svg.append(bar);
  });
  svg.append(s('text', {x: LEFT, y: base + 15}, clock(batches[0].finished)));
  if (end > LEFT + 130) {
    svg.append(s('text', {x: end, y: base + 15, 'text-anchor': 'end'}, clock(batches.at(-1).finished)));
  }
  const legend = h('ul', {class: 'legend'}, ...PHASES.map((phase) => h('li', {},
    s('svg', {viewBox: '0 0 10 10', 'aria-hidden': true}, s('rect', {class: phase, width: 10, height: 10})), phase)));
  return h('figure', {}, h('figcaption', {}, h('h3', {}, 'Seconds by phase, a bar for each batch')), svg, legend);
}

function batchTable(batches) {
  const heads = ['finished', 'end LSN', 'transactions', 'rows', 'tables', ...PHASES, 'total', 'after commit'];
  const rows = batches.toReversed().map((batch) => h('tr', {}, h('td', {}, clock(batch.finished)),
    h('td', {class: 'lsn'}, batch.end_lsn),
    ...[batch.transactions, batch.rows, batch.tables].map((value) => h('td', {class: 'num'}, count(value))),
    ...[...PHASES.map((phase) => batch.seconds[phase]), total(batch),
      batch.commit_time == null ? null : Math.max(0, batch.finished - batch.commit_time)]
      .map((value) => h('td', {class: 'num'}, duration(value)))));
  return h('div', {class: 'scroll', tabindex: 0, role: 'region', 'aria-label': 'Last batches'}, h('table', {},
    h('caption', {}, 'Last batches, newest first'),
    h('thead', {}, h('tr', {}, ...heads.map((head, index) =>
      h('th', {scope: 'col', class: index > 1 ? 'num' : null}, head)))),
    h('tbody', {}, ...rows)));
}

// --- tables -------------------------------------------------------------------------------------------------------

function tablesWord(tables) {
  const number = (state) => tables.filter((table) => table.state === state).length;
  const parts = Object.entries(TABLE_STATES).map(([state, word]) => number(state) && `${count(number(state))} ${word}`);
  return `${plural(tables.length, 'table')}${tables.length ? ': ' : ''}${parts.filter(Boolean).join(', ')}`;
}

function copyCell(copy) {
  if (!copy) return [];
  const share = copy.total_bytes_estimate ? Math.min(1, copy.bytes / copy.total_bytes_estimate) : null;
  const parts = [plural(copy.rows, 'row'), size(copy.bytes)];
  if (share != null) parts.unshift(`${Math.floor(share * 100)} %`);
  if (copy.rows_per_s != null) parts.push(`${count(Math.round(copy.rows_per_s))} rows/s`);
  if (copy.seconds_left != null) parts.push(`${duration(copy.seconds_left)} left`);
  return [share == null ? null : h('progress', {max: 1, value: share, 'aria-label': 'Copied'}), ' ', parts.join(', ')];
}

function tableRow(table) {
  const kept = table.maintenance, bad = kept?.error;
  const cell = (label, cls, ...children) => h('td', {class: cls, role: 'cell', 'data-label': label}, ...children);
  const followed = 'sr'.includes(table.state), optimized = kept?.optimized ? `optimized ${when(kept.optimized)}` : '';
  return h('tr', {role: 'row'}, h('th', {scope: 'row', role: 'rowheader'}, table.name),
    cell('state', followed ? 'state good' : 'state info', `${table.state} (${TABLE_STATES[table.state]})`),
    cell('copy', null, ...copyCell(table.copy)),
    cell('files', 'num', kept ? count(kept.files) : ''),
    cell('maintenance', bad ? 'bad path' : 'muted', bad ? `failed, is tried again: ${bad}` : optimized),
    cell('Delta table', 'path muted', table.path));
}

function tablesTable(sub) {
  const rank = (table) => table.maintenance?.error ? 0 : 'dfi'.includes(table.state) ? 1 : 2;
  const tables = sub.tables.toSorted((a, b) => rank(a) - rank(b) || (a.name < b.name ? -1 : 1));
  const heads = ['table', 'state', 'copy', 'files', 'maintenance', 'Delta table'];
  return h('div', {class: 'scroll', tabindex: 0, role: 'region', 'aria-label': `Tables of ${sub.name}`},
    h('table', {role: 'table'}, h('caption', {}, `Tables of ${sub.name}, problems and copies first`),
      h('thead', {role: 'rowgroup'}, h('tr', {role: 'row'}, ...heads.map((head) =>
        h('th', {scope: 'col', role: 'columnheader', class: head === 'files' ? 'num' : null}, head)))),
      h('tbody', {role: 'rowgroup'}, ...tables.map(tableRow))));
}

// --- a subscription -----------------------------------------------------------------------------------------------

function summaryOf([sub, severity]) {
  const [cls, symbol] = STATES[sub.state] ?? ['warn', '?'];
  const fact = (term, value, style) => h('span', {class: style}, h('span', {class: 'muted'}, `${term} `), value);
  const slotClass = sub.slot ? ['', 'warn', 'bad'][slotSeverity(sub.slot)] : '';
  return [h('h2', {}, sub.name), badge(cls, symbol, sub.state),
    fact('lag', `${duration(sub.lag_s)}, ${size(sub.lag_bytes)}`, sub.lag_s > LAG_TOO_HIGH_S ? 'warn' : ''),
    fact('slot', sub.slot?.wal_status ?? 'unknown', slotClass),
    h('span', {class: 'muted'}, plural(sub.tables.length, 'table')),
    severity ? h('span', {class: EDGES[severity]}, severity > 1 ? 'needs attention' : 'has warnings') : null];
}

function factsOf(sub) {
  const lsn = (text) => h('span', {class: 'lsn'}, text ?? '-');
  const {slot} = sub, left_s = slot?.seconds_left;
  const worst = slot ? ['good', 'warn', 'bad'][slotSeverity(slot)] : 'muted';
  return [
    facts('Positions', [
      ['remote_lsn', lsn(sub.remote_lsn)], ['received_lsn', lsn(sub.received_lsn)],
      ['confirmed_flush_lsn', lsn(sub.confirmed_flush_lsn)], sub.skip_lsn && ['skip_lsn', lsn(sub.skip_lsn)]]),
    facts('Slot', [
      ['name', sub.slot_name], ['WAL', slot ? slot.wal_status : 'unknown', worst],
      slot && ['holds', size(slot.retained_bytes)],
      slot?.safe_wal_size_bytes != null && ['may still hold', size(slot.safe_wal_size_bytes), worst],
      slot && ['runs out', left_s == null ? 'not at this rate' : `in about ${duration(left_s)}`, worst],
      slot?.invalidation_reason && ['invalidated', slot.invalidation_reason, 'bad'],
      slot?.synchronous && ['commits', 'wait for it', 'warn'],
      slot && ['in use', slot.active ? 'yes' : 'no', slot.active ? '' : 'warn']]),
    facts('Applied since the start', [
      ['transactions', count(sub.transactions_total)], ['rows', count(sub.rows_total)],
      ['batches', count(sub.batches_total)],
      ['errors so far', `${count(sub.apply_error_count)} applying, ${count(sub.sync_error_count)} copying`],
      ...Object.entries(sub.conflicts ?? {}).map(([kind, number]) => [`${kind} so far`, count(number), 'warn'])]),
  ];
}

function errorOf([error, remedies, skipLsn]) {
  const skip = remedies?.skip && (!error || skipLsn !== error.finish_lsn) && remedies.skip;
  const where = error && [when(error.time), error.relation, error.finish_lsn && `finished at ${error.finish_lsn}`];
  return [
    error && h('h3', {}, 'Last error'), error && h('div', {class: 'muted'}, where.filter(Boolean).join(' · ')),
    error && h('pre', {tabindex: 0}, error.message),
    skip && command('To skip this transaction, if there is no other way:', skip),
    remedies?.resync && command('To copy afresh:', remedies.resync),
    remedies?.enable && command('To let it run again:', remedies.enable)].map((child) => child || null);
}

class Card {
  constructor(name) {
    const part = (cls) => h('div', {class: cls});
    Object.assign(this, {summary: h('summary'), error: part('remedies'), notes: h('ul', {class: 'notes'}),
      facts: part('facts'), plots: part('plots'), batches: part('batches'),
      tablesSummary: h('summary'), tables: h('div')});
    this.tablesFold = h('details', {class: 'tables'}, this.tablesSummary, this.tables);
    const body = [this.error, this.notes, this.facts, this.plots, this.batches, this.tablesFold];
    this.node = h('details', {class: 'card'}, this.summary, h('div', {class: 'body'}, body));
    this.node.id = `subscription ${name}`;
    for (const fold of [this.node, this.tablesFold]) fold.addEventListener('toggle', () => this.draw());
  }

  draw() {
    const {sub, severity} = this, history = sub.lag_history ?? [], batches = sub.batches ?? [];
    fill(this.summary, [{...sub, lag_history: 0, batches: 0, tables: sub.tables.map(() => 0)}, severity], summaryOf);
    this.node.className = `card ${EDGES[severity] || (STATES[sub.state] ?? ['warn'])[0]}-edge`;
    if (!this.node.open) return;
    this.error.className = sub.last_error ? 'remedies error' : 'remedies';
    fill(this.error, [sub.last_error, sub.remedies, sub.skip_lsn], errorOf);
    const noted = [sub.waiting ?? [], sub.left_out ?? [], sub.differences ?? []];
    fill(this.notes, noted, ([waiting, tables, differences]) => [
      ...waiting.map(({relation, since, message, hint}) => h('li', {class: 'warn'},
        `${relation} waits for its resync since ${since}: ${message}`, h('div', {}, `HINT: ${hint}`))),
      ...tables.map(({reason}) => h('li', {class: 'warn'}, `Left out: ${reason}`)),
      ...differences.map(({since, message, hint}) =>
        h('li', {class: 'warn'}, `Since ${since}: ${message}`, h('div', {}, `HINT: ${hint}`)))]);
    fill(this.facts, {...sub, lag_history: 0, batches: 0, tables: 0}, factsOf);
    const wide = this.facts.clientWidth, half = wide < 868 ? wide : (wide - 28) / 2;
    fill(this.plots, [half, history], () => !history.length ? [] : [
      lagPlot('Lag in seconds', history, 2, half, SECONDS, duration),
      lagPlot('Lag in bytes', history, 1, half, BYTES, size)]);
    const bars = innerWidth <= 760 ? wide : (wide - 28) / 3;
    fill(this.batches, [bars, batches], () => batches.length ? [batchBars(batches, bars), batchTable(batches)] : []);
    fill(this.tablesSummary, tablesWord(sub.tables), (words) => words);
    if (this.tablesFold.open) fill(this.tables, [sub.name, sub.tables], () => tablesTable(sub));
  }
}

// --- the whole page -----------------------------------------------------------------------------------------------

const at = (id) => document.getElementById(id);
const cards = new Map();
let received = null, shown = null; // the last document, and when it came (performance.now)

function showProblems(entries) {
  const lines = entries.flatMap(([sub, problems]) => problems.map(([severity, text]) => [severity, sub.name, text]));
  lines.sort((a, b) => b[0] - a[0]);
  const worst = lines.length ? lines[0][0] : 0;
  const numbers = [[2, 'problem'], [1, 'warning']]
    .map(([severity, word]) => [lines.filter((line) => line[0] === severity).length, word])
    .filter(([number]) => number).map(([number, word]) => plural(number, word)).join(', ');
  at('problems').hidden = !worst;
  at('problems').className = `${EDGES[worst]}-edge`;
  document.title = worst ? `${worst > 1 ? '▲' : '!'} ${numbers} – pgbridge` : 'pgbridge';
  fill(at('problems'), lines, () => [h('h2', {}, numbers), h('ul', {},
    ...lines.slice(0, 20).map(([severity, name, text]) => {
      const link = h('a', {href: '#'}, name);
      link.addEventListener('click', (event) => {
        event.preventDefault();
        const {node, summary} = cards.get(name);
        node.open = true;
        node.scrollIntoView();
        summary.focus();
      });
      const mark = severity > 1 ? badge('bad', '▲', 'problem') : badge('warn', '!', 'warning');
      return h('li', {}, mark, h('span', {}, link, `: ${text}`));
    }),
    lines.length > 20 ? h('li', {}, `and ${lines.length - 20} more, below`) : null)]);
}

function showDaemon({version, time, started, spark}) {
  const heap = spark.heap_max_bytes ? spark.heap_used_bytes / spark.heap_max_bytes : null;
  const rows = [['version', version], ['up', duration(Math.floor(time - started))],
    ['Spark', spark.state, spark.state === 'running' ? 'good' : 'info'],
    heap != null && ['JVM heap',
      `${size(spark.heap_used_bytes)} of ${size(spark.heap_max_bytes)} (${Math.round(heap * 100)} %)`],
    spark.restarts && ['JVM restarts', count(spark.restarts), 'warn'], ['times', 'UTC']];
  fill(at('daemon'), rows, () => rows.filter(Boolean).map(
    ([term, value, cls]) => h('div', {}, h('dt', {}, term), h('dd', {class: cls}, value))));
}

function show(status) {
  showDaemon(status);
  const entries = status.subscriptions.map((sub) => [sub, problemsOf(sub)]);
  const severity = ([, problems]) => problems.length ? problems[0][0] : 0;
  entries.sort((a, b) => severity(b) - severity(a) || (a[0].name < b[0].name ? -1 : 1));
  showProblems(entries);
  entries.forEach((entry, index) => {
    const [sub] = entry, known = cards.has(sub.name);
    if (!known) cards.set(sub.name, new Card(sub.name));
    const card = cards.get(sub.name);
    Object.assign(card, {sub, severity: severity(entry)});
    if (at('subscriptions').children[index] !== card.node) {
      at('subscriptions').insertBefore(card.node, at('subscriptions').children[index] ?? null);
    }
    if (!known) {
      card.node.open = entries.length <= OPEN_AT_FIRST || (index < OPEN_AT_FIRST && card.severity > 1);
      card.tablesFold.open = sub.tables.length <= TABLES_OPEN_AT_FIRST;
    }
    card.draw();
  });
  const names = new Set(entries.map(([sub]) => sub.name));
  for (const [name, card] of cards) if (!names.has(name)) { card.node.remove(); cards.delete(name); }
}

/** Say since when there is no answer, and why; nothing while answers come. */
function showStale(why) {
  const since = shown ? `No answer since ${clock(shown.time)} UTC` : 'No answer yet';
  const text = why && `${since} (${why}).${shown ? ' What stands below is of then.' : ''}`;
  at('stale').hidden = !text;
  if (at('stale').textContent !== text) at('stale').textContent = text;
}

function showAge() {
  if (!shown) return;
  const age_s = Math.floor((performance.now() - received) / 1000);
  at('answer').textContent = `answered ${duration(age_s)} ago, at ${clock(shown.time)}`;
}

async function poll() {
  try {
    const answer = await fetch('status.json', {cache: 'no-store', signal: AbortSignal.timeout(TIMEOUT_MS)});
    if (!answer.ok) throw new Error(`HTTP ${answer.status}`);
    shown = await answer.json();
    received = performance.now();
    showStale('');
  } catch (error) {
    showStale(error.message);
    return;
  } finally {
    setTimeout(poll, EVERY_MS);
    showAge();
  }
  show(shown);
}

addEventListener('resize', () => cards.forEach((card) => card.draw()));
setInterval(showAge, 1000);
poll();
