'use strict';
const EVERY_MS = 5000, TIMEOUT_MS = 10000, OPEN_AT_FIRST = 4, LISTED = 20;
const STATES = {starting: ['info', '○'], copying: ['info', '◐'], streaming: ['good', '●'], error: ['bad', '▲'],
  stopped: ['warn', '■'], disabled: ['warn', '–']};
const TABLE_STATES = {i: 'to be copied', d: 'being copied', f: 'copied', s: 'following', r: 'ready'};
const PHASES = ['form', 'commit', 'flush', 'record']; // of a batch, in this order
const LEVELS = {problem: ['bad', '▲'], warning: ['warn', '!']}; // the worst first

const round = (value) => value >= 10 || value === 0 ? value.toFixed(0) : String(+value.toPrecision(2));
const count = (value) => value == null ? '-' : String(value).replace(/\B(?=(\d{3})+(?!\d))/g, '\u202f');
const plural = (number, word) => `${count(number)} ${word}${number === 1 ? '' : 's'}`;
const clock = (time_s) => new Date(time_s * 1000).toISOString().slice(11, 19);
const when = (iso) => iso ? iso.replace('T', ' ').replace('+00:00', ' UTC') : '';
const unitOf = (bytes) => Math.min(4, Math.floor(Math.log2(Math.max(1, bytes)) / 10));
const size = (bytes) => bytes == null ? '-' :
  `${round(bytes / 1024 ** unitOf(bytes))} ${['bytes', 'kB', 'MB', 'GB', 'TB'][unitOf(bytes)]}`;
function duration(seconds) {
  if (seconds == null || seconds < 120) return seconds == null ? '-' : `${round(seconds)} s`;
  const minutes = Math.floor(seconds / 60), hours = Math.floor(minutes / 60);
  return hours < 1 ? `${minutes} min` : hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d`;
}
function attach(node, attributes, children) { // strings become text nodes, never markup
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children.flat());
  return node;
}
const h = (tag, attributes = {}, ...children) => attach(document.createElement(tag), attributes, children);
const s = (tag, attributes, ...children) =>
  attach(document.createElementNS('http://www.w3.org/2000/svg', tag), attributes, children);
const filled = new WeakMap();
/** Build a node's children, unless they show these data already: selected text, focus and scrolling stay. */
function fill(node, data, build) {
  const key = JSON.stringify(data);
  if (filled.get(node) !== key) node.replaceChildren(...[build(data)].flat());
  filled.set(node, key);
}
const badge = ([cls, symbol], word) => h('span', {class: `badge ${cls}`}, `${symbol} ${word}`);
const facts = (title, rows) => h('div', {}, h('h3', {}, title),
  h('dl', {}, ...rows.flatMap(([term, value]) => [h('dt', {}, term), h('dd', {}, value)])));
const table = (caption, heads, rows) => h('div', {class: 'scroll', tabindex: 0, role: 'region', 'aria-label': caption},
  h('table', {}, h('caption', {}, caption), h('thead', {}, h('tr', {}, ...heads.map((head) => h('th', {}, head)))),
    h('tbody', {}, ...rows.map((row) => h('tr', {}, ...row.map((cell) => h('td', {}, cell)))))));
/** Lag over the last hour; a null, or half a minute without a value, leaves a gap. */
function lagPlot(title, history, column, format) {
  const width = 600, height = 120, left = 70, base = height - 20, end = history.at(-1)[0];
  const values = history.map((point) => point[column]).filter((value) => value != null), top = Math.max(...values, 0);
  const x = (time_s) => +(width - (end - time_s) * (width - left) / 3600).toFixed(1);
  const y = (value) => +(base - value / (top || 1) * (base - 10)).toFixed(1);
  const label = `${title} over the last hour: ${values.length ? `highest ${format(top)}` : 'no values'}`;
  const svg = s('svg', {viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': label});
  for (const value of new Set([0, top]))
    svg.append(s('line', {class: 'grid', x1: left, x2: width, y1: y(value), y2: y(value)}),
      s('text', {x: left - 6, y: y(value) + 4, 'text-anchor': 'end'}, format(value)));
  for (const [ago_s, anchor] of [[3600, 'start'], [0, 'end']])
    svg.append(s('text', {x: x(end - ago_s), y: height - 5, 'text-anchor': anchor}, clock(end - ago_s).slice(0, 5)));
  let curve = '', before = [0];
  for (const point of history) {
    const gap = before[column] == null || point[0] - before[0] > 30 || before[0] <= end - 3600;
    if (point[column] != null && point[0] > end - 3600) curve += `${gap ? 'M' : 'L'}${x(point[0])} ${y(point[column])}`;
    before = point;
  }
  svg.append(s('path', {class: 'curve', d: curve}));
  return h('figure', {}, h('figcaption', {}, label), svg);
}
const batchTable = (batches) => table('Last batches, newest first',
  ['finished', 'end LSN', 'transactions', 'rows', 'tables', ...PHASES, 'after commit'],
  batches.toReversed().map((batch) => [clock(batch.finished), batch.end_lsn, count(batch.transactions),
    count(batch.rows), count(batch.tables), ...PHASES.map((phase) => duration(batch.seconds[phase])),
    duration(batch.commit_time && Math.max(0, batch.finished - batch.commit_time))]));
const copyText = ({rows, bytes, total_bytes_estimate: total, rows_per_s: rate, seconds_left: left_s}) =>
  [total && `${Math.floor(Math.min(1, bytes / total) * 100)} %`, plural(rows, 'row'), size(bytes),
    rate && `${count(Math.round(rate))} rows/s`, left_s && `${duration(left_s)} left`].filter(Boolean).join(', ');
const tablesTable = (tables) => table(plural(tables.length, 'table'), [
  'table', 'state', 'files', 'optimized', 'Delta table'], tables.map((of) => [of.name,
  `${of.state} (${TABLE_STATES[of.state]})${of.copy ? ` ${copyText(of.copy)}` : ''}`,
  of.maintenance ? count(of.maintenance.files) : '', when(of.maintenance?.optimized), of.path]));
const summaryOf = (sub) => [h('h2', {}, sub.name), badge(STATES[sub.state] ?? ['warn', '?'], sub.state),
  ...[`lag ${duration(sub.told.lag_s)}, ${size(sub.lag_bytes)}`, `slot ${sub.slot?.wal_status ?? 'unknown'}`,
    plural(sub.tables.length, 'table'), sub.commit_interval_s && `a batch every ${duration(sub.commit_interval_s)}`]
    .filter(Boolean).map((text) => h('span', {}, text))];
const problemOf = ({level, time, message, hint}) => h('div', {class: LEVELS[level][0]},
  when(time), h('pre', {tabindex: 0}, message + (hint ? `\nHINT:  ${hint}` : '')));
const factsOf = ({slot, told, ...sub}) => [
  facts('Positions', ['remote_lsn', 'received_lsn', 'confirmed_flush_lsn'].map((key) => [key, sub[key] ?? '-'])),
  facts('Slot', [['name', sub.slot_name], ['holds', size(slot?.retained_bytes)],
    ['may still hold', size(slot?.safe_wal_size_bytes)], ['in use', slot ? (slot.active ? 'yes' : 'no') : '-'],
    ['runs out', slot?.seconds_left == null ? 'not at this rate' : `in about ${duration(slot.seconds_left)}`]]),
  facts('Applied since the start', [['transactions', count(told.transactions_total)], ['rows', count(told.rows_total)],
    ['errors so far', `${count(sub.apply_error_count)} applying, ${count(sub.sync_error_count)} copying`],
    ...Object.entries(sub.conflicts).map(([kind, number]) => [kind, count(number)])])];
const PARTS = [ // of an open card: its class, what of a subscription is shown, and how
  ['problems', (sub) => sub.problems, (problems) => problems.map(problemOf)], ['facts', (sub) => sub, factsOf],
  ['facts', (sub) => sub.told.lag_history, (history) => history.length ? [
    lagPlot('Lag in seconds', history, 2, duration), lagPlot('Lag in bytes', history, 1, size)] : []],
  ['', (sub) => sub.told.batches, (batches) => batches.length ? batchTable(batches) : []],
  ['', (sub) => sub.tables, tablesTable]];
class Card {
  constructor(name, open) {
    [this.summary, this.parts] = [h('summary'), PARTS.map(([cls]) => h('div', {class: cls}))];
    this.node = h('details', {id: `subscription-${name}`}, this.summary, ...this.parts);
    this.node.open = open;
    this.node.addEventListener('toggle', () => this.draw());
  }
  draw() {
    fill(this.summary, this.sub, summaryOf);
    this.node.className = `card ${(LEVELS[this.sub.problems[0]?.level] ?? STATES[this.sub.state] ?? ['warn'])[0]}-edge`;
    if (this.node.open) PARTS.forEach(([, of, build], index) => fill(this.parts[index], of(this.sub), build));
  }
}
const at = (id) => document.getElementById(id), cards = new Map();
const worst = (sub) => sub.problems[0]?.level ?? 'without'; // a problem comes before a warning, as in the alphabet
let shown = null; // the last document
function showProblems(lines) {
  const number = (level) => lines.filter(([, problem]) => problem.level === level).length;
  const numbers = Object.keys(LEVELS).filter(number).map((level) => plural(number(level), level)).join(', ');
  at('problems').hidden = !lines.length;
  document.title = lines.length ? `${LEVELS[lines[0][1].level][1]} ${numbers} – pgbridge` : 'pgbridge';
  fill(at('problems'), lines, () => [h('h2', {}, numbers), ...lines.slice(0, LISTED).map(([name, {level, message}]) =>
    h('div', {}, badge(LEVELS[level], level), h('a', {href: `#subscription-${name}`}, name),
      `: ${message.split('\n')[0]}`)), lines.length > LISTED ? `and ${lines.length - LISTED} more, below` : '']);
}
function show({version, time, started, spark, subscriptions}) {
  fill(at('daemon'), [['version', version], ['up', duration(Math.floor(time - started))], ['Spark', spark.state],
    ['JVM heap', `${size(spark.heap_used_bytes)} of ${size(spark.heap_max_bytes)}`],
    ['JVM restarts', count(spark.restarts)], ['times', 'UTC']], (rows) => rows.map(
    ([term, value]) => h('div', {}, h('dt', {}, term), h('dd', {}, value))));
  subscriptions.sort((a, b) => worst(a).localeCompare(worst(b)) || a.name.localeCompare(b.name));
  showProblems(subscriptions.flatMap((sub) => sub.problems.map((problem) => [sub.name, problem]))
    .sort((a, b) => a[1].level.localeCompare(b[1].level)));
  subscriptions.forEach((sub, index) => {
    const wanted = subscriptions.length <= OPEN_AT_FIRST || (index < OPEN_AT_FIRST && worst(sub) === 'problem');
    if (!cards.has(sub.name)) cards.set(sub.name, new Card(sub.name, wanted));
    const card = Object.assign(cards.get(sub.name), {sub}), place = at('subscriptions').children[index];
    if (place !== card.node) at('subscriptions').insertBefore(card.node, place ?? null);
    card.draw();
  });
  const gone = [...cards.keys()].filter((name) => !subscriptions.some((sub) => sub.name === name));
  for (const name of gone) { cards.get(name).node.remove(); cards.delete(name); }
}
async function poll(why = '') {
  try {
    const answer = await fetch('status.json', {cache: 'no-store', signal: AbortSignal.timeout(TIMEOUT_MS)});
    if (!answer.ok) throw new Error(`HTTP ${answer.status}`);
    show(shown = await answer.json());
  } catch (error) { why = error.message; }
  at('stale').hidden = !why;
  at('stale').textContent = why && `No answer ${shown ? `since ${clock(shown.time)} UTC` : 'yet'} (${why}).`;
  at('answer').textContent = shown ? `answered at ${clock(shown.time)}` : '';
  setTimeout(poll, EVERY_MS, '');
}
poll();
