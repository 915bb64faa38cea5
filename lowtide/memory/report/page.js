// The report of lt.profile(): memory over time on a canvas, and two tables that sort.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);

// ---- numbers as text ----

function bytes(count) {
  let size = Math.abs(count), unit = "B";
  for (const larger of ["KiB", "MiB", "GiB", "TiB"]) {
    if (size < 1000) break;
    size /= 1024;
    unit = larger;
  }
  const digits = unit === "B" || size >= 100 ? 0 : size >= 10 ? 1 : 2;
  return `${count < 0 ? "-" : ""}${size.toFixed(digits)} ${unit}`;
}

function time(ns) {
  if (ns >= 1e9) return `${(ns / 1e9).toFixed(ns >= 1e10 ? 1 : 2)} s`;
  if (ns >= 1e6) return `${(ns / 1e6).toFixed(ns >= 1e7 ? 1 : 2)} ms`;
  return `${(ns / 1e3).toFixed(1)} µs`;
}

function element(tag, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// The canvas knows no light-dark(): one hidden element resolves it.
const probe = document.body.appendChild(element("i"));
probe.hidden = true;
function resolved(variable) {
  probe.style.color = `var(${variable})`;
  return getComputedStyle(probe).color;
}

// One hue for each place that allocates; neighbours differ by the golden angle.
const hues = new Map();
function placeColour(piece, isDark) {
  const key = `${piece.op}|${piece.source}|${piece.module}`;
  if (!hues.has(key)) hues.set(key, (205 + hues.size * 137.5) % 360);
  return `hsl(${hues.get(key)} ${isDark ? "45% 50%" : "55% 62%"})`;
}

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

// ---- the chart ----

const canvas = byId("chart"), tip = byId("tip"), pen = canvas.getContext("2d");
const margin = { left: 78, right: 14, top: 14, bottom: 46 };
let device = data.main_device;
let view = [0, 1];  // from, to in nanoseconds
let pointer = null, drag = null;

const current = () => data.devices[device] || { times: [0], live: [0], rows: [-1], pieces: [], live_at_peak: [], peak_bytes: 0, peak_ns: 0 };
const plot = () => ({
  x: margin.left, y: margin.top,
  width: canvas.clientWidth - margin.left - margin.right,
  height: canvas.clientHeight - margin.top - margin.bottom,
});
const toX = (ns, p) => p.x + (ns - view[0]) / (view[1] - view[0]) * p.width;
const toTime = (x, p) => view[0] + (x - p.x) / p.width * (view[1] - view[0]);

// The last index whose value is at most `wanted`, -1 if there is none.
function lastAtMost(values, wanted) {
  let low = -1, high = values.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (values[middle] <= wanted) low = middle; else high = middle - 1;
  }
  return low;
}

// The large pieces as rectangles stacked in order of birth: [from, to, bottom, top, piece].
function stacked(pieces) {
  const moments = [...new Set(pieces.flatMap((p) => [p.born_ns, p.freed_ns]))].sort((a, b) => a - b);
  const ordered = [...pieces].sort((a, b) => a.born_ns - b.born_ns);
  const boxes = [];
  for (let i = 0; i + 1 < moments.length; i++) {
    let height = 0;
    for (const piece of ordered) {
      if (piece.born_ns > moments[i]) break;
      if (piece.freed_ns <= moments[i]) continue;
      boxes.push([moments[i], moments[i + 1], height, height + piece.nbytes, piece]);
      height += piece.nbytes;
    }
  }
  return boxes;
}
const boxesOf = new Map();
function boxes() {
  if (!boxesOf.has(device)) boxesOf.set(device, stacked(current().pieces));
  return boxesOf.get(device);
}

function niceSteps(most, count, base) {
  let step = 1;
  const factors = base === 1024 ? [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024] : [2, 5, 10];
  while (most / step > count) {
    const scale = step;
    const factor = factors.find((f) => most / (scale * f) <= count) || factors.at(-1);
    step = scale * factor;
  }
  return step;
}

function topOf() {
  const { times, live } = current();
  let most = 0;
  const first = Math.max(lastAtMost(times, view[0]), 0), last = lastAtMost(times, view[1]);
  for (let i = first; i <= last; i++) most = Math.max(most, live[i]);
  return Math.max(most * 1.08, 1);
}

function draw() {
  const ratio = devicePixelRatio || 1, p = plot(), top = topOf();
  canvas.width = canvas.clientWidth * ratio;
  canvas.height = canvas.clientHeight * ratio;
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, canvas.clientWidth, canvas.clientHeight);
  pen.font = "12px system-ui, sans-serif";
  const toY = (count) => p.y + p.height - count / top * p.height;
  drawGrid(p, top, toY);
  pen.save();
  pen.beginPath();
  pen.rect(p.x, p.y - 1, p.width, p.height + 14);
  pen.clip();
  drawRest(p, toY);
  drawPieces(p, toY);
  drawCurve(p, toY);
  drawPhases(p);
  drawMarks(p, toY);
  pen.restore();
}

function drawGrid(p, top, toY) {
  pen.strokeStyle = resolved("--line");
  pen.fillStyle = resolved("--faint");
  pen.textBaseline = "middle";
  pen.textAlign = "right";
  const step = niceSteps(top, 6, 1024);
  for (let count = 0; count <= top; count += step) {
    const y = Math.round(toY(count)) + 0.5;
    pen.beginPath();
    pen.moveTo(p.x, y);
    pen.lineTo(p.x + p.width, y);
    pen.stroke();
    pen.fillText(bytes(count), p.x - 8, y);
  }
  pen.textAlign = "center";
  pen.textBaseline = "top";
  const every = niceSteps(view[1] - view[0], 9, 10);
  for (let t = Math.ceil(view[0] / every) * every; t <= view[1]; t += every) {
    const x = toX(t, p);
    if (x < p.x + 12 || x > p.x + p.width - 12) continue;
    pen.fillText(time(t), x, p.y + p.height + 20);
  }
}

// Points of the curve inside the view; where many share a pixel, their extremes.
function visiblePoints(p) {
  const { times, live } = current(), points = [];
  const first = Math.max(lastAtMost(times, view[0]), 0);
  let column = NaN, low = 0, high = 0, end = 0;
  const flush = () => { if (!Number.isNaN(column)) points.push([column, low], [column, high], [column, end]); };
  for (let i = first; i < times.length && times[i] <= view[1]; i++) {
    const x = Math.round(toX(times[i], p) * 2) / 2;
    if (x !== column) {
      flush();
      if (points.length) points.push([x, end]);
      column = x; low = high = live[i];
    }
    low = Math.min(low, live[i]); high = Math.max(high, live[i]); end = live[i];
  }
  flush();
  points.push([toX(Math.min(view[1], data.end_ns), p), end]);
  return points;
}

function tracePoints(p, toY) {
  const points = visiblePoints(p);
  pen.beginPath();
  points.forEach(([x, count], i) => i ? pen.lineTo(x, toY(count)) : pen.moveTo(x, toY(count)));
  return points;
}

function drawRest(p, toY) {
  const points = tracePoints(p, toY);
  pen.lineTo(points.at(-1)[0], toY(0));
  pen.lineTo(points[0][0], toY(0));
  pen.closePath();
  pen.fillStyle = resolved("--rest");
  pen.fill();
}

function drawPieces(p, toY) {
  const dark = isDark();
  for (const [from, to, bottom, upper, piece] of boxes()) {
    if (to < view[0] || from > view[1]) continue;
    const x = toX(Math.max(from, view[0]), p), right = toX(Math.min(to, view[1]), p);
    const y = toY(upper), height = toY(bottom) - y;
    pen.fillStyle = placeColour(piece, dark);
    pen.globalAlpha = hovered && hovered !== piece ? 0.55 : 1;
    pen.fillRect(x, y, Math.max(right - x, 0.7), Math.max(height - (height > 3 ? 0.7 : 0), 0.4));
  }
  pen.globalAlpha = 1;
}

function drawCurve(p, toY) {
  tracePoints(p, toY);
  pen.strokeStyle = resolved("--ink");
  pen.globalAlpha = 0.75;
  pen.lineWidth = 1.1;
  pen.stroke();
  pen.globalAlpha = 1;
  pen.lineWidth = 1;
}

function drawPhases(p) {
  for (const [from, to, phase] of data.phases) {
    if (to < view[0] || from > view[1]) continue;
    const x = toX(Math.max(from, view[0]), p), right = toX(Math.min(to, view[1]), p);
    pen.fillStyle = resolved(`--${phase}`);
    pen.fillRect(x, p.y + p.height + 6, Math.max(right - x, 0.8), 6);
  }
}

function drawMarks(p, toY) {
  pen.strokeStyle = pen.fillStyle = resolved("--faint");
  pen.setLineDash([3, 4]);
  for (const ns of data.step_ends_ns) {
    const x = Math.round(toX(ns, p)) + 0.5;
    pen.beginPath();
    pen.moveTo(x, p.y);
    pen.lineTo(x, p.y + p.height);
    pen.stroke();
  }
  pen.setLineDash([]);
  const { peak_ns: peakNs, peak_bytes: peak } = current(), x = toX(peakNs, p), y = toY(peak);
  pen.fillStyle = resolved("--accent");
  pen.beginPath();
  pen.arc(x, y, 4, 0, 7);
  pen.fill();
  const isRight = x > p.x + p.width - 130;
  pen.textAlign = isRight ? "right" : "left";
  pen.textBaseline = "middle";
  const label = `peak ${bytes(peak)}`, labelX = x + (isRight ? -9 : 9), labelY = Math.max(y - 10, p.y + 7);
  pen.strokeStyle = resolved("--paper");  // a rim, so that it reads on any colour
  pen.lineWidth = 4;
  pen.lineJoin = "round";
  pen.strokeText(label, labelX, labelY);
  pen.fillText(label, labelX, labelY);
  pen.lineWidth = 1;
  if (drag && drag.mode === "zoom") {
    pen.globalAlpha = 0.2;
    pen.fillRect(Math.min(drag.x, pointer.x), p.y, Math.abs(pointer.x - drag.x), p.height);
    pen.globalAlpha = 1;
  }
}

// ---- what is under the pointer ----

let hovered = null;

function pieceAt(ns, count) {
  for (const [from, to, bottom, upper, piece] of boxes()) {
    if (from <= ns && ns < to && bottom <= count && count < upper) return piece;
  }
  return null;
}

function describe(ns, count) {
  const { times, live, rows } = current(), at = lastAtMost(times, ns);
  const lines = [];
  const add = (...parts) => {
    const line = element("div");
    line.append(...parts);
    lines.push(line);
  };
  add(element("b", bytes(at < 0 ? 0 : live[at])), element("span", ` live at ${time(ns)}`, "faint"));
  hovered = pieceAt(ns, count);
  if (hovered) {
    const chip = element("span", undefined, "chip");
    chip.style.background = placeColour(hovered, isDark());
    add(chip, element("b", `${bytes(hovered.nbytes)} `), element("code", hovered.op));
    add(element("code", [hovered.source, hovered.module].filter(Boolean).join(" · ")));
    const until = hovered.is_freed ? time(hovered.freed_ns) : "the end";
    add(element("span", [hovered.shape, `${time(hovered.born_ns)} to ${until}`].filter(Boolean).join(" · "), "faint"));
  } else if (at >= 0 && rows[at] >= 0) {
    const row = data.rows[rows[at]];
    add(element("span", "last: ", "faint"), element("code", row.op));
    add(element("code", [row.source, row.module].filter(Boolean).join(" · ")));
  }
  return lines;
}

function showTip() {
  const p = plot();
  const isInside = pointer && !drag && pointer.x >= p.x && pointer.x <= p.x + p.width
    && pointer.y >= p.y && pointer.y <= p.y + p.height;
  tip.hidden = !isInside;
  if (!isInside) { hovered = null; return; }
  const count = (p.y + p.height - pointer.y) / p.height * topOf();
  tip.replaceChildren(...describe(toTime(pointer.x, p), count));
  const isRight = pointer.x > canvas.clientWidth / 2;
  tip.style.left = isRight ? "" : `${pointer.x + 16}px`;
  tip.style.right = isRight ? `${canvas.clientWidth - pointer.x + 16}px` : "";
  tip.style.top = `${Math.max(pointer.y - 20, 0)}px`;
}

// ---- zoom ----

function setView(from, to) {
  const end = Math.max(data.end_ns, 1), least = Math.min(1000, end);
  const width = Math.min(Math.max(to - from, least), end);
  const start = Math.min(Math.max(from, 0), end - width);
  view = [start, start + width];
  refresh();
}
function refresh() { showTip(); draw(); }

canvas.addEventListener("pointermove", (event) => {
  pointer = { x: event.offsetX, y: event.offsetY };
  if (drag && drag.mode === "move") {
    const moved = (drag.x - pointer.x) / plot().width * (drag.view[1] - drag.view[0]);
    setView(drag.view[0] + moved, drag.view[1] + moved);
  }
  refresh();
});
canvas.addEventListener("pointerdown", (event) => {
  drag = { mode: event.shiftKey ? "move" : "zoom", x: event.offsetX, view: [...view] };
  canvas.setPointerCapture(event.pointerId);
});
canvas.addEventListener("pointerup", (event) => {
  const started = drag;
  drag = null;
  if (started && started.mode === "zoom" && Math.abs(event.offsetX - started.x) > 4) {
    const ends = [toTime(started.x, plot()), toTime(event.offsetX, plot())].sort((a, b) => a - b);
    setView(...ends);
  }
  refresh();
});
canvas.addEventListener("pointerleave", () => { pointer = drag ? pointer : null; refresh(); });
canvas.addEventListener("dblclick", () => setView(0, data.end_ns));
canvas.addEventListener("wheel", (event) => {
  event.preventDefault();
  const at = toTime(event.offsetX, plot()), factor = Math.exp(event.deltaY * 0.0015);
  setView(at - (at - view[0]) * factor, at + (view[1] - at) * factor);
}, { passive: false });
canvas.addEventListener("keydown", (event) => {
  const width = view[1] - view[0];
  if (event.key === "ArrowLeft") setView(view[0] - width / 5, view[1] - width / 5);
  if (event.key === "ArrowRight") setView(view[0] + width / 5, view[1] + width / 5);
  if (event.key === "+") setView(view[0] + width / 5, view[1] - width / 5);
  if (event.key === "-") setView(view[0] - width / 4, view[1] + width / 4);
  if (event.key === "Escape") setView(0, data.end_ns);
});

// ---- tables ----

// `columns`: [title, key, how to show it, whether it is a number].
function makeTable(table, columns, rows, sortKey, decorate) {
  const state = { key: sortKey, up: false, words: "" };
  const head = table.createTHead().insertRow(), body = table.createTBody();
  for (const [title, key, , isNumber] of columns) {
    const cell = head.appendChild(element("th", title, isNumber ? "number" : ""));
    cell.dataset.key = key;
    cell.onclick = () => {
      state.up = state.key === key ? !state.up : !isNumber;
      state.key = key;
      fill();
    };
  }
  function fill() {
    for (const cell of head.cells) {
      cell.classList.toggle("sorted", cell.dataset.key === state.key);
      cell.classList.toggle("up", state.up);
    }
    const sign = state.up ? 1 : -1;
    const compare = (a, b) => {
      const [x, y] = [a[state.key], b[state.key]];
      return sign * (typeof x === "number" ? x - y : String(x).localeCompare(String(y), undefined, { numeric: true }));
    };
    const shown = rows().filter((row) => matches(row, state.words)).sort(compare).slice(0, 2000);
    body.replaceChildren(...shown.map((row) => {
      const line = element("tr");
      for (const [, key, show, isNumber] of columns) {
        const kind = isNumber ? "number" : key === "holders" ? "code wide" : "code";
        const cell = element("td", show ? show(row[key]) : row[key], kind);
        decorate(cell, key, row);
        line.append(cell);
      }
      return line;
    }));
  }
  fill();
  return { fill, filter: (words) => { state.words = words; fill(); } };
}

function matches(row, words) {
  const text = `${row.op} ${row.source} ${row.module} ${row.phase}`.toLowerCase();
  return words.toLowerCase().split(/\s+/).every((word) => text.includes(word));
}

const mostBytes = Math.max(1, ...data.rows.map((row) => row.self_bytes));
const rowTable = makeTable(byId("rows"), [
  ["operator", "op"], ["phase", "phase"], ["calls", "calls", String, true],
  ["self time", "self_time_ns", time, true], ["self bytes", "self_bytes", bytes, true],
  ["at peak", "peak_bytes", bytes, true], ["freed", "freed_bytes", bytes, true],
  ["module", "module"], ["source", "source"],
], () => data.rows, "self_bytes", (cell, key, row) => {
  if (key !== "self_bytes" || !row.self_bytes) return;
  const bar = cell.appendChild(element("span", undefined, "bar"));
  bar.style.width = `${Math.max(row.self_bytes / mostBytes * 90, 1)}px`;
});
const liveTable = makeTable(byId("live"), [
  ["bytes", "nbytes", bytes, true], ["operator", "op"], ["phase", "phase"],
  ["shape", "shape"], ["module", "module"], ["source", "source"], ["held by", "holders"],
], () => current().live_at_peak, "nbytes", (cell, key, row) => {
  if (key !== "op") return;
  const chip = element("span", undefined, "chip");
  chip.style.background = placeColour(row, isDark());
  cell.prepend(chip);
});

// ---- the page ----

function figures() {
  const shown = [["peak", bytes(current().peak_bytes)], ["at", time(current().peak_ns)],
    ["run", time(data.end_ns)], ["operators", data.calls.toLocaleString("en")],
    ["steps", data.step_ends_ns.length || "not marked"]];
  byId("figures").replaceChildren(...shown.map(([name, value]) => {
    const made = element("div", name);
    made.append(element("b", value));
    return made;
  }));
  byId("rows-note").textContent = `${data.rows.length} rows by operator, line, module and phase`;
  byId("live-note").textContent = current().live_note || "";
}
for (const name of Object.keys(data.devices)) byId("device").append(new Option(name, name));
byId("device").hidden = Object.keys(data.devices).length < 2;
byId("device").value = device;
byId("device").onchange = () => {
  device = byId("device").value;
  figures();
  liveTable.fill();
  refresh();
};
byId("filter").oninput = () => rowTable.filter(byId("filter").value);
byId("reset").onclick = () => setView(0, data.end_ns);
byId("theme").onclick = () => {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  rowTable.fill();
  liveTable.fill();
  refresh();
};
byId("remarks").append(...data.remarks.map((text) => element("p", `Note: ${text}.`)));
addEventListener("resize", refresh);
figures();
setView(0, data.end_ns);
